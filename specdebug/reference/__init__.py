"""An independent dense implementation of the targets and of every draft head.

It has no pages and no graphs, and shares nothing with ``specdebug.engine``: it is simple enough to be believed by
reading, and training tools and oracles agree on what a draft head is. Functions take a mapping of published tensor
names to tensors; autograd flows through.

Read in order: ``config`` (shapes), ``layers`` (of either family), ``target``, ``draft`` (ways to draft), ``weights``
(files).
"""

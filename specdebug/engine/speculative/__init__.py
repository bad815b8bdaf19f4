"""Drafting and verification. Read in this order: worker, state, draft, tree, verify, accept, commit, extend.

Two conventions carry everything. L counts positions with committed target KV; the bonus token sits at
position L and has no KV yet. Draft KV of slot p is a function of (token p + 1, target hidden p).

Symbols: B requests, K topk, S num_steps, T tree nodes, P page size, V target vocabulary, Vd draft vocabulary,
Hd draft hidden size, F width of the target features the draft consumes.
"""

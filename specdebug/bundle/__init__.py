"""Bundles: one failing (or passing) arm in one file, to be run again on another machine.

``archive.py`` is the container (what is refused before anything is looked at), ``content.py`` what lies in it,
``requests.py`` the planned requests as token ids, ``trust.py`` whose toggles may run. ``again.py`` runs a bundle once
more and says how the two runs differ. ``docs/bundles.md`` describes the format.
"""

ENDING = ".specdebug"  # of a bundle's file name; specdebug replay recognises a bundle by it

"""Bundles: one failing (or passing) arm in one file, to be run again on another machine.

A bundle is a zip archive whose name ends in ``.specdebug``. ``archive.py`` is the container (what is refused before
anything is looked at), ``content.py`` what lies in it, ``requests.py`` the planned requests as token ids, ``trust.py``
whose toggles may run, and ``run.py`` runs an arm keeping its steps and says how two runs of it differ.
``docs/bundles.md`` describes the format.
"""

ENDING = ".specdebug"
"""Of a bundle's file name; ``specdebug replay`` recognises a bundle by it."""

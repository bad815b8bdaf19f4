"""Accuracy and accept length together, as a gate: multiple-choice questions, put to any target that serves.

``questions.py`` reads them, ``prompts.py`` words them, ``scoring.py`` tells the choice that an output takes,
``declared.py`` reads an evaluation's file. ``worker.py`` asks, in a worker, through ``askers.py``; ``run.py`` gathers
the answers in the parent, ``gate.py`` holds them against what is expected.
"""

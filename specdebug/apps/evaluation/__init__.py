"""Accuracy and accept length together, as a gate: multiple-choice questions, put to any target that serves.

``questions.py`` reads them, words them and tells the choice that an output takes; ``declared.py`` reads an evaluation's
file and holds what was measured against it. ``worker.py`` asks, in a worker; ``run.py`` gathers the answers.
"""

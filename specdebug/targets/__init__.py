"""Targets: the engines that a scenario can be run on."""

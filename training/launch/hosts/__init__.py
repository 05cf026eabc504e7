"""Hosts by ssh: who answers, what the way between them bears, and processes owned there.

Its options are declared in `training/config/launcher_specs.py`.
"""

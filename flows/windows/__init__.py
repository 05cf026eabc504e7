"""Retraining windows: when they open, what overrides and holds them, and who may enter.

Kinds of windows are declared in `flows/config/windows.py`. `openings.py` says when they open, `gate.py` who may enter,
and `admission.py` under which Prefect state a run ends. Times are a function of the pipeline file, the overrides on
record and a given moment.
"""

"""Retraining windows: when they open, what overrides and holds them, and who may enter.

Kinds of windows are declared in `flows/config/windows.py`. `openings.py` says when they open, `schedules.py` makes each
kind's starts for Prefect, `gate.py` says who may enter and names what it skips by, `admission.py` under which Prefect
state a run ends, and `flows/show/calendar.py` shows them. Times are a function of the pipeline file, the overrides on
record and a given moment.
"""

"""What people and schedules start: flows that call tasks, and all that shows or decides around them.

Most modules here are one flow. Prefect is known in this package and in `tasks`; MLflow, Great Expectations and torch
are not. States of our own in Prefect are named in `windows/admission.py`, `windows/gate.py`, `watch.py`,
`report/summary.py` and `tasks/core/stopped.py`.
"""

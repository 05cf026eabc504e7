"""What people and schedules start: flows that call tasks, and all that shows or decides around them.

Most modules here are one flow. Prefect is known in this package and in `tasks`; MLflow, Great Expectations and torch
are not. States of our own in Prefect arise in `windows/gate.py` (skipped), `windows/admission.py`, `watch.py`,
`report/summary.py` (approval) and `tasks/core/stopped.py`; `ENDED` of `deploy/automations.py` and
`docs/reference/pages.py` list all of them.
"""

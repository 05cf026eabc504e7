"""What people and schedules start: flows that call tasks, and all that shows or decides around them.

Most modules here are one flow. Prefect is known in this package and in `tasks`; MLflow, Great Expectations and torch
are not. States of our own arise in `windows/gate.py` (skips), `windows/admission.py`, `watch.py`, `report/summary.py`
(approval) and `tasks/core/stopped.py` (stops). `ENDED_BY_NAME` and `docs/reference/pages.py` list them;
`deploy/automations.py` acts on some.
"""

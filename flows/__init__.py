"""What people and schedules start: flows that call tasks, and all that shows or decides around them.

Most modules here are one flow. Prefect is known in this package and in `tasks`; MLflow, Great Expectations and torch
are not. States of our own in Prefect are named where they arise: a skipped window in `windows/gate.py`, other ends at
the gate in `windows/admission.py`, a stop in `tasks/core/stopped.py`, of a watch in `watch.py`, a model that waits for
approval in `report/summary.py`. Each stands in `ENDED_BY_NAME` of `windows/admission.py` or `watch.py`, or in `ENDED`
of `deploy/automations.py`, and its meaning in `docs/reference/pages.py`.
"""

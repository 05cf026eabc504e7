"""What people and schedules start: flows that call tasks, and all that shows or decides around them.

Each module here is one flow. Prefect is known in this package and in `tasks`; MLflow, Great Expectations and torch are
not.
"""

"""What Prometheus is told of a workspace: families of metrics, their values from accounts and live runs, the exporter.

A metric is declared in `families.py`; `workspace_metrics.py`, `totals.py`, `machine.py`
and `devices.py` fill its values. Nothing
here changes what is trained. Values come from records that others keep; pages for people belong to `show`.
"""

"""What Prometheus is told of a workspace: families of metrics, their values from accounts and live runs, the exporter.

A metric is declared in `families.py`; `workspace_metrics.py`, `totals.py`, `machine.py` and `devices.py` fill its
values, from records that others keep. Nothing here changes what is trained. Pages for people belong to `show`, and are
served from here.
"""

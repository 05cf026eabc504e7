"""What Prometheus is told of a workspace: families of metrics, their values from accounts and live runs, the exporter.

Nothing here changes what is trained. Values come from records that others keep; pages for people belong to `show`,
and are served from here.
"""

"""One trace for each flow run, made of its ledgers when it is over, and sent by OTLP where an endpoint is set.

`spans.py` is pure, `read_trace.py` reads ledgers for it, `otlp.py` encodes and posts. `export.py` decides whether:
without an endpoint it looks at the environment and imports nothing.
"""

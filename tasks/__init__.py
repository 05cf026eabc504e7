"""The seven stages as Prefect tasks, and what they stand on: found or made once, under a key of all that decides the
result. The registry in MLflow is known in this package alone.
"""

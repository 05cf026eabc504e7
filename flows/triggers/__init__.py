"""What starts a retrain beside a schedule: events, drift, new data, age.

Triggers are measured here and asked by `flows/watch.py`.
"""

"""Model versions, champions and their history, in refs first and in MLflow after.

Only this room moves an alias, and it says why.
"""

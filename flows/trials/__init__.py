"""A round of trials: which settings are wanted, and the report of what they made.

`flows/search.py` is its flow.
"""

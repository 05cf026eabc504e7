"""One flow run's surroundings: ledger, scratch folder, listeners and signals, opened and closed in one place.

Flows work inside; they open nothing themselves.
"""

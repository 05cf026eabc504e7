"""Where time went: one flow run's under the names of what it did, and a run's whole life under what it was good for.

Derived from ledgers and records alone; nothing here changes a workspace. Whoever shows these figures stands above.
"""

"""`headway report`: a week, month or quarter of a workspace, beside the one before.

`reading.py` makes the record of `record.py`; `decisions.py` says what somebody has to decide, `page.py` writes it for
people. Nothing is counted here that `accounts` does not count, and nothing is changed.
"""

"""Update rules, schedules and parameter groups, in arithmetic that does not depend on how tensors are cut.

A rule is named, with its options, in `training/config/optimizer.py`, and made in `scheduled.py`; each keeps the
protocol of `update_rule.py`. AdamW and SGD are in `elementwise.py`, Muon in `muon.py`. `groups.py` says which parameter
has which.
"""

"""Update rules, schedules and parameter groups, in arithmetic that does not depend on how tensors are cut.

AdamW and SGD are in `elementwise.py`, Muon in `muon.py`. `scheduled.py` makes the rule that
`training/config/optimizer.py` declares.
"""

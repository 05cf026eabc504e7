"""Update rules, a file each, schedules and parameter groups, in arithmetic that does not depend on how tensors are cut.

`scheduled.py` makes the rule that `training/config/optimizer.py` declares.
"""

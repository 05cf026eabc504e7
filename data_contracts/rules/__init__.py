"""What a contract says: columns, constraints, rules over sets, and the flat list of checks it compiles to.

A rule is declared in `constraints.py` (of one value) or `set_rules.py`, takes its key in `contract.py`, and becomes a
kind in `checks.py`. `changes/compatibility.py` must know each list of rules.
"""

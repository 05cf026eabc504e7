"""What a contract says: columns, constraints, rules over sets, and the flat list of checks it compiles to.

A rule is declared in `constraints.py` (of one value), `set_rules.py` or `contract.py` (statistics, row counts). It takes
its key in `contract.py`, and becomes a kind in `checks.py`. A kind is measured in `scans/exact_checks.py` (of one row)
or `scans/set_scans.py` (of the set); `engine/evidence.py` says who answers which. `changes/compatibility.py` must know
each list of rules, and `flows/rehearse/project.py` those that a part of the data need not hold.
"""

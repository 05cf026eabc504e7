"""What a contract says: columns, constraints, rules over sets, and the flat list of checks it compiles to.

A rule is declared in `constraints.py`, `set_rules.py` or `contract.py`, where it takes its key, and becomes a kind in
`checks.py`. A kind is measured in `scans/exact_checks.py` (of a row) or `scans/set_scans.py`; `engine/evidence.py` says
who answers which. `changes/compatibility.py` and `flows/rehearse/project.py` must know each list of rules.
"""

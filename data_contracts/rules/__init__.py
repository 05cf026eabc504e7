"""What a contract says: columns, constraints, rules over sets, and the flat list of checks it compiles to.

A rule is declared in `constraints.py`, `set_rules.py` or `contract.py`, where it takes its key, and becomes a kind in
`checks.py`. A kind is measured in `scans/exact_checks.py` (of a row), `scans/set_scans.py` or `engine/comparison.py`
(beside accepted data). `changes/compatibility.py` lists every rule, `flows/rehearse/project.py` those that a part of
the data need not keep.
"""

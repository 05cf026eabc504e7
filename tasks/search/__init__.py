"""Which settings trials try, which of them go on from one rung to the next, and what that costs.

The same spec, seed and published scores give the same answers in any process; `tasks/stages/search.py` acts on them.
"""

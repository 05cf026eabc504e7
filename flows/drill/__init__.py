"""`headway drill`: a failure planted on purpose in a sandbox, and whether it was seen, named and mended in time.

The sandbox is a made-up pipeline with a workspace of its own; nothing that exists is touched. `headway retrain` runs in
it as a user runs it. What is promised is data in `objectives.py`; the ten drills are in `interruptions.py`, `steps.py`
and `refusals.py`, and what a rank does to itself is `deployments/drill/network.py`.
"""

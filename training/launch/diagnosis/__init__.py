"""Who failed first, who hangs, who is slow: read from what ranks, agents and hosts left.

It ends nothing itself. Causes of a failure are named in `data_contracts/store/errors.py`, and told from an exception in
`training/launch/base/failure.py`. What a person does about each is in `flows/report/next_steps.py`; those that pass by
themselves are listed in `flows/windows/admission.py`, and those that end a run for good are `PERMANENT` of
`tasks/ownership/current_run.py`.
"""

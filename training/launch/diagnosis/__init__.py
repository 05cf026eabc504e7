"""Who failed first, who hangs, who is slow: read from what ranks, agents and hosts left. It ends nothing itself.

Causes of a failure are named in `data_contracts/store/errors.py`, and told from exceptions in `launch/base/failure.py`.
What a person does is in `flows/report/next_steps.py`. Lists that have to know each: `PASSING` of
`flows/windows/admission.py`, `PERMANENT` (by class) of `tasks/ownership/current_run.py`, `ORDERLY` of
`flows/accounts/objectives.py`.
"""

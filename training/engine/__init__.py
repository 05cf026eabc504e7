"""The training loop and what a step does: batches, learner, ledger of steps, profiles.

It knows no launcher but the rank it stands on.
"""

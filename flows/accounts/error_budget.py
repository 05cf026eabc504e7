"""Whether retrains of a workspace may still fail: what an objective leaves over 30 days, and what was spent of it."""

from __future__ import annotations

import time

from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.report_text import count
from headway.flows.accounts.kept_accounts import all_accounts, settle
from headway.flows.accounts.objectives import LEAST_EVENTS, WINDOW_DAYS, objectives_of
from headway.flows.accounts.tally import JobClassTally, Tally
from headway.flows.config.profiles import PricesSpec


def spent_budget(workspace: Workspace, job_class: str) -> str:
    """Why the error budget of a class of a workspace's retrains is spent; empty where it is not, or they are too few to
    say."""
    settle(workspace)
    since_unix_s = time.time() - WINDOW_DAYS * 86400
    tally = Tally()
    for account in all_accounts(workspace):
        if account.end_unix_s >= since_unix_s:
            tally.take(account, PricesSpec())
    found, target = tally.by_class.get(job_class, JobClassTally()), objectives_of(job_class).success
    if found.success is None or found.num_events < LEAST_EVENTS or found.success >= target:
        return ""
    return (
        f"the error budget of {job_class} retrains is spent: {found.num_bad:,} of "
        f"{count(found.num_events, 'flow run')} failed within {WINDOW_DAYS} days, and {1 - target:.1%} may"
    )

"""Whether retrains of a workspace may still fail: what an objective leaves over 30 days, and what was spent of it."""

from __future__ import annotations

import time

from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.report_text import count
from headway.flows.accounts.kept_accounts import all_accounts, settle
from headway.flows.accounts.objectives import LEAST_EVENTS, RUNS, WINDOW_DAYS
from headway.flows.accounts.tally import Tally
from headway.flows.config.profiles import PricesSpec


def spent_budget(workspace: Workspace) -> str:
    """Why the error budget of a workspace's retrains is spent; empty where it is not, or they are too few to say."""
    settle(workspace)
    since_unix_s = time.time() - WINDOW_DAYS * 86400
    tally = Tally()
    for account in all_accounts(workspace):
        if account.end_unix_s >= since_unix_s:
            tally.take(account, PricesSpec())
    num_events = tally.outcomes["succeeded"] + tally.num_bad
    if tally.success is None or num_events < LEAST_EVENTS or tally.success >= RUNS.target:
        return ""
    return (
        f"the error budget of retrains is spent: {tally.num_bad:,} of {count(num_events, 'flow run')} failed within "
        f"{WINDOW_DAYS} days, and {1 - RUNS.target:.0%} may"
    )

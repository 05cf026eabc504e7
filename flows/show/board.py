"""`headway board`: one page of a workspace for who decides, who is on call and who looks for a cause.

Made of accounts, refs and live runs alone: it needs no Prometheus, no Grafana and no network.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from headway.data_contracts.store.publication import Workspace
from headway.flows.accounts.cost import CostLine, costs, total
from headway.flows.accounts.flow_account import PROBE, FlowAccount, Outcome
from headway.flows.accounts.kept_accounts import account_so_far, all_accounts, settle
from headway.flows.accounts.probe_records import ProbeRecord, newest_probes
from headway.flows.accounts.scaling import Scaling, ScalingLine
from headway.flows.accounts.tally import Tally
from headway.flows.config.profiles import PricesSpec
from headway.flows.run.running_retrains import RunningRetrain, read_running
from headway.flows.show.status import KeptStatus, read_kept

DAY_S = 86400.0
CURVES = 8
"""Newest flow runs that trained, whose curves are shown."""
LISTED = 200
"""Newest flow runs that are listed."""


@dataclass(frozen=True, slots=True, order=True)
class Listed:
    """A flow run in one line."""

    end_unix_s: float
    flow_run: str
    pipeline: str
    run: str
    outcome: Outcome
    cause: str
    stage: str
    wall_s: float
    ettr: float | None
    """None: it trained nothing."""
    num_attempts: int
    usd: float


@dataclass(kw_only=True, slots=True)
class Day:
    """UTC; by its number since 1970."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    costs: list[CostLine] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class Board:
    workspace: str
    unix_s: float
    num_days: int
    has_prices: bool
    kept: KeptStatus
    running: list[RunningRetrain]
    probes: list[ProbeRecord]
    """The newest of each launcher."""
    days: dict[int, Day] = field(default_factory=dict)
    listed: list[Listed] = field(default_factory=list)
    """The newest first."""
    tally: Tally = field(default_factory=Tally)
    scaling: dict[str, list[ScalingLine]] = field(default_factory=dict)
    """By pipeline, of those that trained."""
    newest: list[FlowAccount] = field(default_factory=list)
    """Those that trained, the newest first."""


def read_board(workspace_uri: str, num_days: int, prices: PricesSpec) -> Board:
    """What is known of the last days, flow runs that go on among it.

    Raises:
        EnvironmentProblem: there is no workspace.
    """
    workspace = Workspace.existing(workspace_uri)
    living = settle(workspace)
    board = Board(
        workspace=workspace.uri,
        unix_s=time.time(),
        num_days=num_days,
        has_prices=bool(prices.device_hour_usd),
        kept=read_kept(workspace),
        running=read_running(workspace),
        probes=newest_probes(workspace),
    )
    since_unix_s = board.unix_s - num_days * DAY_S
    kept = (account for account in all_accounts(workspace) if account.end_unix_s >= since_unix_s)
    newest: list[tuple[float, str, FlowAccount]] = []
    listed: list[Listed] = []
    scaling = Scaling()
    for account in kept:
        scaling.take(account)
        _add(board, account, prices)
        if account.job_class == PROBE:
            continue
        _push(listed, _line(account, prices), LISTED)
        if account.curve is not None:
            _push(newest, (account.end_unix_s, account.flow_run, account), CURVES)
    so_far = (account_so_far(workspace, flow_run) for flow_run in living)
    for account in (each for each in so_far if each is not None and each.curve is not None):
        _push(newest, (board.unix_s, account.flow_run, account), CURVES)
    board.scaling = {pipeline: scaling.lines(pipeline) for pipeline in scaling.pipelines}
    board.listed = sorted(listed, reverse=True)
    board.newest = [account for *_, account in sorted(newest, key=lambda each: each[:2], reverse=True)]
    return board


def _push(heap: list, item: object, most: int) -> None:  # type: ignore[type-arg]
    """Keep the greatest: a workspace may have ten thousand."""
    heapq.heappush(heap, item)
    if len(heap) > most:
        heapq.heappop(heap)


def _line(account: FlowAccount, prices: PricesSpec) -> Listed:
    lines = costs([account], "pipeline", prices)
    return Listed(
        end_unix_s=account.end_unix_s,
        flow_run=account.flow_run,
        pipeline=account.pipeline,
        run=account.run,
        outcome=account.outcome,
        cause=account.cause,
        stage=account.stage,
        wall_s=account.end_unix_s - account.begin_unix_s,
        ettr=account.goodput.ettr if account.goodput.num_attempts else None,
        num_attempts=account.goodput.num_attempts,
        usd=sum(line.usd for line in lines),
    )


def _add(board: Board, account: FlowAccount, prices: PricesSpec) -> None:
    day = board.days.setdefault(int(account.end_unix_s // DAY_S), Day())
    if account.job_class != PROBE:
        day.outcomes[account.outcome] += 1
    day.costs = [total([*day.costs, *costs([account], "pipeline", prices)], 0)]
    board.tally.take(account, prices)


def failing(board: Board) -> Iterator[str]:
    """Pipelines whose newest retrain to end by itself failed, and that nobody holds."""
    held = {hold.pipeline for hold in board.kept.held}
    yield from (failed.pipeline for failed in board.kept.failed if failed.pipeline not in held)

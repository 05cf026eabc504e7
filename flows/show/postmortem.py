"""`headway postmortem`: the draft of one, of all that ledgers and records say about a run that something happened to.

What they cannot say stands as questions, for the people who write it to the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from headway.data_contracts.report.page import State as PageState
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.report_text import count, length, moment
from headway.flows.accounts.cost import costs
from headway.flows.accounts.goodput import Recovery, RunGoodput, run_goodput
from headway.flows.accounts.kept_accounts import accounts_of, life_in
from headway.flows.config.profiles import PricesSpec
from headway.flows.report.written_report import Section, Table, WrittenReport
from headway.flows.show.logs import EventFormatter
from headway.flows.show.status import read_kept, run_asked
from headway.tasks.ownership.pipeline_history import FailedRetrain
from headway.training.launch.diagnosis.run_events import RunEvents

SUCCESSES = ("step", "checkpoint.durable")
"""What went well, again and again: left out of the timeline."""
MAX_LINES = 1000
"""Of the timeline. A run that was lost again and again has more; its end is what somebody asks about."""


class TimelineLine(BaseModel):
    unix_s: float
    attempt: int
    rank: int | None
    event: str
    text: str


class Postmortem(BaseModel):
    workspace: str
    account: RunGoodput
    failed: FailedRetrain | None
    """What the pipeline's newest retrain failed with, where it is this run's and no retrain has finished since."""
    timeline: list[TimelineLine]
    """The last lines, oldest first."""
    num_lines: int
    """In all."""
    wasted_usd: float | None
    """None: no prices are known."""
    questions: list[str]


def read_postmortem(workspace_uri: str, run: str, prices: PricesSpec) -> Postmortem:
    """
    Args:
        run: the beginning of a run's id, or a flow run's; empty: the one that runs, or the newest.

    Raises:
        ConfigError: no such run, or several; nothing happened to it, or nothing of its training is here.
    """
    workspace = Workspace(workspace_uri)
    asked = run_asked(workspace_uri, run)
    accounts = accounts_of(workspace, asked.run)
    account = run_goodput(life_in(accounts))
    of_run = {each.flow_run for each in accounts}
    failed = next((each for each in read_kept(workspace).failed if each.flow_run in of_run), None)
    if not _recoveries(account) and failed is None:
        raise ConfigError(
            "nothing happened to it: no attempt ended before its last step, and no retrain of it failed.",
            where=account.run,
            advice="`headway goodput RUN` says where its time went; `headway status` names the runs that there are.",
        )
    events = RunEvents(Path(asked.folder), workspace.local_path("ledger"), (), None)
    timeline, num_lines = deque[TimelineLine](maxlen=MAX_LINES), 0
    for line in _timeline(events):
        timeline.append(line)
        num_lines += 1
    wasted_usd = sum(line.wasted_usd for line in costs(accounts, "cause", prices))
    return Postmortem(
        workspace=workspace.uri,
        account=account,
        failed=failed,
        timeline=[*timeline],
        num_lines=num_lines,
        wasted_usd=wasted_usd if prices.device_hour_usd else None,
        questions=list(_questions(account, failed)),
    )


def _recoveries(account: RunGoodput) -> list[Recovery]:
    return [*account.recoveries, *([] if account.open_recovery is None else [account.open_recovery])]


def _timeline(events: RunEvents) -> Iterator[TimelineLine]:
    words = EventFormatter()
    for event in events.read():
        if event.event["event"] in SUCCESSES:
            continue
        if text := " ".join(words(event).split()):
            yield TimelineLine(
                unix_s=event.unix_s,
                attempt=event.attempt,
                rank=event.rank,
                event=str(event.event["event"]),
                text=text,
            )


def _questions(account: RunGoodput, failed: FailedRetrain | None) -> Iterator[str]:
    """What no ledger says."""
    causes = dict.fromkeys(each.cause or "unknown" for each in _recoveries(account))
    for cause in causes:
        yield f"What made {cause} happen, and what is different now?"
    found = _recoveries(account)
    if found:
        longest = max(found, key=lambda each: each.total_s)
        if longest.parts_s:
            state = max(longest.parts_s, key=lambda each: longest.parts_s[each])
            yield f"The longest recovery spent most on {state}: what would make that shorter?"
        noticed_s = max(each.parts_s.get("detection", 0.0) for each in found)
        yield f"It took up to {length(noticed_s)} until something was done about it. Who was told, and when?"
    if failed is not None:
        yield "No retrain has finished since. Who decides until when the champion may stay?"
    yield "Which other pipelines could this happen to?"
    yield "What is to be done, by whom, and until when?"


def written(found: Postmortem) -> WrittenReport:
    """For people."""
    account, failed = found.account, found.failed
    recoveries = _recoveries(account)
    lost_s = sum(each.total_s for each in recoveries)
    state: PageState = "bad" if failed is not None else "warn"
    word = f"{count(len(recoveries), 'interruption')}, and it went on"
    if failed is not None:
        word = "It failed for good"
    elif account.open_recovery is not None:
        word = "Interrupted, and no further since"
    what = failed.failure.what_and_where if failed is not None else recoveries[0].what
    wasted_h = sum(account.waste_device_s.values()) / 3600.0
    return WrittenReport(
        title=f"Postmortem: {account.pipeline}, run {account.run}",
        kicker=f"{found.workspace}, {moment(account.begin_unix_s)} to {moment(account.end_unix_s)} UTC. A draft.",
        state=state,
        word=word,
        lead=what,
        tiles=[
            (f"{len(recoveries):,}", "interruptions"),
            (length(lost_s), "from the last new step to the next"),
            (f"{account.num_redone_steps:,}", "steps made again"),
            (f"{wasted_h:,.2f}", "device-hours in recoveries"),
            *([] if found.wasted_usd is None else [(f"{found.wasted_usd:,.2f}", "USD in recoveries")]),
        ],
        sections=[
            _what_happened(found),
            _by_itself(recoveries),
            Section(
                "Effect",
                paragraphs=[
                    f"{length(account.wall_s)} on {count(account.devices, 'device')}.",
                    f"{100 * account.ettr:.1f} % of device time were steps that count.",
                    "Its model was registered."
                    if account.is_over
                    else "Its model is not registered; the champion stays.",
                ],
            ),
            _timeline_section(found),
            Section("Open questions", points=found.questions),
        ],
    )


def _what_happened(found: Postmortem) -> Section:
    failed = found.failed
    words = [f"{moment(each.begin_unix_s)}, attempt {each.attempt}: {each.cause or 'unknown'}. {each.what}".strip()
             for each in _recoveries(found.account)]  # fmt: skip
    if failed is not None:
        stage = f" in stage {failed.stage}" if failed.stage else ""
        words.append(f"{failed.failed_at}: it failed{stage} on {failed.host}. {failed.failure.what_and_where}")
        if failed.failure.advice:
            words.append(f"What was advised: {failed.failure.advice}")
    return Section("What happened", points=words)


def _by_itself(recoveries: list[Recovery]) -> Section:
    """What was automatic: every recovery of an attempt is."""
    rows = []
    for each in recoveries:
        parts = sorted(each.parts_s.items(), key=lambda part: -part[1])[:4]
        spent = ", ".join(f"{state} {length(seconds)}" for state, seconds in parts)
        took = length(each.total_s)
        rows.append((moment(each.begin_unix_s), each.cause or "unknown", spent, took, f"{each.lost_steps:,}"))
    titles = ("from, UTC", "cause", "most of it", "took", "steps again")
    words = [] if rows else ["No attempt was begun again."]
    return Section("What went by itself", paragraphs=words, table=Table(titles, rows, num_words=3))


def _timeline_section(found: Postmortem) -> Section:
    rows = [
        (moment(line.unix_s), f"{line.attempt}", "" if line.rank is None else f"{line.rank}", line.text)
        for line in found.timeline
    ]
    more = found.num_lines - len(found.timeline)
    words = [f"{more:,} earlier lines are left out; headway logs has all."] if more else []
    table = Table(("UTC", "attempt", "rank", "what"), rows, num_words=4, most=MAX_LINES)
    return Section("Timeline", paragraphs=words, table=table)

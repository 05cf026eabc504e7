"""Ledgers of a run's life, as its flows, supervisors and ranks write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headway.data_contracts.store.publication import Workspace
from headway.flows.accounts.flow_ledgers import ledger_spool
from headway.flows.accounts.goodput import RunGoodput, run_goodput
from headway.flows.accounts.kept_accounts import life_of
from headway.training.launch.base.failure import Failure
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords
from headway.training.observe.ledger import Event, Ledger

RUN = "0123456789abcdef"
LOST = Failure(cause="infrastructure", what="rank 1 was killed.", retryable=True)
STEP = {"tokens": 10, "data_s": 0.1, "forward_s": 0.2, "backward_s": 0.3, "sync_s": 0.3, "staging_s": 0.0}


class Life:
    """Ledgers of a run, written as flows, supervisors and ranks write them."""

    def __init__(self, folder: Path) -> None:
        self.workspace = Workspace.create(str(folder / "workspace"))
        self.run_dir = self.workspace.local_path(f"runs/{RUN}")
        self.run_dir.mkdir(parents=True)
        self._num_attempts = 0

    def flow(
        self,
        name: str,
        begin_s: float,
        end_s: float | None,
        *spans: tuple[str, float, float],
        stop: str = "",
        failed: tuple[str, str, str] | None = None,
        process: Mapping[str, Any] = MappingProxyType({}),
        has_run: bool = True,
        more_runs: Sequence[str] = (),
        verdicts: Mapping[str, Any] | None = None,
        steps_per_epoch: float | None = None,
    ) -> None:
        """Args:
        end_s: None: it was killed, or goes on.
        failed: class of the error, cause and stage.
        process: host, pid and start of a flow that goes on.
        has_run: whether it came to the run.
        more_runs: that it is at, too, as trials are.
        verdicts: what the contract said of its data.
        """
        ledger = Ledger(ledger_spool(self.workspace, name), process="flow", flow_run=name)
        begin = {"pipeline": "p", "started_unix_s": begin_s, **process}
        _write(ledger, {"event": "flow.begin", "unix_s": begin_s, **begin})
        if has_run:
            _write(ledger, {"event": "run.named", "unix_s": begin_s, "run": RUN + "0" * 48})
            epoch = {} if steps_per_epoch is None else {"steps_per_epoch": steps_per_epoch}
            _write(ledger, {"event": "run.folder", "unix_s": begin_s, "path": str(self.run_dir), **epoch})
        for run in more_runs:
            _write(ledger, {"event": "run.named", "unix_s": begin_s, "run": run + "0" * 48})
        if verdicts is not None:
            _write(ledger, {"event": "validate.verdicts", "unix_s": begin_s, **verdicts})
        for span in spans:
            _write(ledger, _span(*span))
        if stop:
            _write(ledger, {"event": "flow.stopped", "unix_s": end_s, "reason": stop, "message": ""})
        if failed is not None:
            error, cause, stage = failed
            if cause:
                _write(ledger, {"event": "flow.card", "unix_s": end_s, "stage": stage, "failure": {"cause": cause}})
            _write(ledger, {"event": "flow.failed", "unix_s": end_s, "error": error, "message": ""})
        if end_s is not None:
            _write(ledger, {"event": "flow.end", "unix_s": end_s})
        ledger.close()

    def attempt(
        self,
        scope: str,
        begin_s: float,
        end_s: float | None,
        steps: Sequence[tuple[int, float]],
        *spans: tuple[str, float, float],
        world_size: int = 2,
        failure: Failure | None = None,
        alarms: Sequence[str] = (),
        validated: Sequence[tuple[int, float]] = (),
    ) -> None:
        """Args:
        steps: number and begin of each; one takes a second.
        alarms: of the step guard.
        validated: step and figure of each.
        """
        self._num_attempts += 1
        number = self._num_attempts
        spool = self.run_dir / "attempts" / f"{number:03d}" / "ledger" / "rank-0.jsonl"
        ledger = Ledger(spool, process="rank", rank=0, attempt=number)
        for span in spans:
            _write(ledger, _span(*span))
        if steps:
            _write(ledger, {"event": "model", "unix_s": steps[0][1], "world_size": world_size})
        for step, at_s in steps:
            _write(ledger, _span("step", at_s, at_s + 1.0) | {"step": step, **STEP})
        for step, value in validated:
            figure = {"step": step, "value": value, "metric": "log_loss", "best_step": step, "stale": 0}
            _write(ledger, _span("validation", begin_s, begin_s) | figure)
        for alarm in alarms:
            _write(ledger, {"event": "guard", "unix_s": begin_s, "alarm": alarm, "action": "skip", "step": 1})
        ledger.close()
        record = AttemptRecord(
            attempt=number,
            scope=scope,
            state="done" if failure is None else "stopped" if failure.cause == "stopped" else "failed",
            **({} if failure is None else {"failure": failure}),
            start_unix_s=begin_s,
            end_unix_s=end_s,
        )
        records = AttemptRecords(self.run_dir)
        records.begin(record)
        if end_s is not None:
            records.end(record)

    def account(self) -> RunGoodput:
        return run_goodput(life_of(self.workspace, RUN))


def _span(name: str, begin_s: float, end_s: float) -> Event:
    task = {"task": name.partition(" ")[2]} if name.startswith("task ") else {}
    return {
        "event": name.partition(" ")[0], "unix_s": begin_s, "duration_s": end_s - begin_s, "outcome": "ok", **task
    }  # fmt: skip


def _write(ledger: Ledger, event: Event) -> None:
    ledger.take_over(event)


def numbered(first: int, last: int, begin_s: float) -> list[tuple[int, float]]:
    return [(step, begin_s + step - first) for step in range(first, last + 1)]


def verdicts(*warned: str, quarantined: int = 0, **drift: float) -> dict[str, Any]:
    """Of 100 rows; rules that warned, and drift by rule."""
    return {
        "num_rows": 100 - quarantined,
        "num_quarantined": quarantined,
        "num_broken": {"critical": 0, "warning": len(warned), "info": 0},
        "broken": {"critical": [], "warning": list(warned), "info": []},
        "drift": drift,
    }

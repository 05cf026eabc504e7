"""Flow runs that go on here, followed by what is new in their ledgers since the last look."""

from __future__ import annotations

from collections import Counter

from headway.data_contracts.store.publication import Workspace
from headway.flows.accounts.figures import TrainingFigures
from headway.flows.accounts.flow_account import STANDARD
from headway.flows.accounts.flow_ledgers import ledger_spool
from headway.flows.accounts.traces import run_named
from headway.flows.run.running_retrains import RunningRetrain
from headway.training.launch.base.gang import attempt_folder
from headway.training.launch.base.protocol import AttemptFiles
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords
from headway.training.observe.ledger import SpoolTail


class LiveFlow:
    """One of them: what its training came to so far."""

    def __init__(self, workspace: Workspace, flow_run: str) -> None:
        self._workspace, self._flow_run = workspace, flow_run
        self.figures = TrainingFigures()
        self.last_step_unix_s: float | None = None
        self.owner, self.job_class = "", STANDARD
        self._flow = SpoolTail(ledger_spool(workspace, flow_run))
        self._runs: dict[str, None] = {}
        """Trials are at several."""
        self._spools: dict[tuple[str, int], SpoolTail] = {}
        self._attempts: list[AttemptRecord] = []

    def look(self) -> None:
        """Take what is new."""
        self._take(self._flow)
        self._attempts = []
        for run in self._runs:
            run_dir = self._workspace.local_path(f"runs/{run}")
            for record in AttemptRecords(run_dir).in_scope(self._flow_run):
                self._attempts.append(record)
                spool = AttemptFiles(attempt_folder(run_dir, record.attempt)).rank_spool(0)
                self._spools.setdefault((run, record.attempt), SpoolTail(spool))
        for tail in self._spools.values():
            self._take(tail)

    def _take(self, tail: SpoolTail) -> None:
        try:
            for event in tail.stream():
                self.figures.take(event)
                if event["event"] == "flow.begin":
                    self.owner, self.job_class = str(event.get("owner") or ""), str(event.get("job_class") or STANDARD)
                if run := run_named(event):
                    self._runs[run] = None
                if event["event"] == "step":
                    self.last_step_unix_s = float(event["unix_s"]) + float(event.get("duration_s") or 0.0)
        except OSError:
            return  # a damaged ledger, or one that another user may not read, silences no other

    def interruptions(self) -> Counter[str]:
        """By cause, of attempts that are over: the one that goes on has no record of its end."""
        ended = (record for record in self._attempts if record.end_unix_s is not None and record.state != "done")
        return Counter(record.failure.cause or record.state for record in ended)


class LiveFlows:
    """All of them, by flow run."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.known: dict[str, LiveFlow] = {}

    def look(self, running: list[RunningRetrain]) -> dict[str, LiveFlow]:
        """Those that run; one that has ended is forgotten, for its account says the same."""
        self.known = {
            retrain.flow_run: self.known.get(retrain.flow_run) or LiveFlow(self._workspace, retrain.flow_run)
            for retrain in running
        }
        for retrain in running:
            self.known[retrain.flow_run].look()
        return self.known

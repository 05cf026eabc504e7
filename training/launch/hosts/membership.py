"""Which hosts an attempt has: those that answer and are fit, without excluded ones where the others suffice."""

from __future__ import annotations

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.training.launch.base.failure import Failure
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.base.host_probe import HostProbe
from headway.training.launch.base.launcher import Launcher
from headway.training.launch.base.retry_budget import AttemptRecords
from headway.training.launch.diagnosis.outcome import AttemptOutcome
from headway.training.launch.diagnosis.stragglers import MIN_GAIN, Straggler
from headway.training.observe.ledger import Ledger


class Membership:
    """Of one run; who is left out is known from its records, whoever owned the attempts."""

    def __init__(
        self, spec: LaunchSpec, gang: Gang, launcher: Launcher, ledger: Ledger, records: AttemptRecords
    ) -> None:
        self._spec, self._gang, self._launcher, self._ledger, self._records = spec, gang, launcher, ledger, records
        self._looked_at: set[str] = set()
        self.is_rescheduled = False
        """Whether the run is better off in another job of its scheduler's, without the host of a slow rank."""

    def is_gathered(self) -> bool:
        """Whether no host that is still to come need be waited for."""
        return self._launcher.is_gathered(self._gang, self._min_nodes)

    @property
    def _min_nodes(self) -> int:
        return min(self._gang.nodes, self._spec.min_nodes or self._gang.nodes)

    def probe_hosts(self, number: int) -> tuple[HostProbe, AttemptOutcome | None]:
        """Hosts for an attempt, and what speaks against it; without those that are left out, if the others will do."""
        # First without excluded machines; with them only where the rest would not do, for slow is better than none.
        for without in dict.fromkeys((self._records.excluded(), frozenset[str]())):
            with self._ledger.span("attempt.muster"):
                found = self._launcher.probe_hosts(self._gang, without)
            if found.unreachable:
                self._ledger.event("host.missing", attempt=number, what=found.describe_unreachable())
            if self._gang.max_nodes(len(found.members)) < self._min_nodes:
                problem: AttemptOutcome | None = _too_few(found, self._min_nodes)
            else:
                problem = self._refused(found)
            if problem is None:
                break
        return found, problem

    def exclude_slow(self, found: HostProbe, slow: Straggler, machine: str) -> bool:
        """Whether the run is better off without the machine of a slow rank."""
        excluded = self._records.excluded()
        if self._spec.stragglers != "exclude" or machine in excluded:
            return False
        there = (*found.members, *found.spare_hosts)
        # Even if nothing else changed, a step must become shorter by this factor, or a restart costs more than it wins.
        if (slow.step_s - slow.excess_s) * MIN_GAIN < slow.step_s:
            taken = {host.machine for host in (*there, *found.unreachable)} | excluded
            self.is_rescheduled = self._launcher.has_capacity_beside(self._gang, taken)
            if self.is_rescheduled:
                return True
        nodes = self._gang.max_nodes(len(found.members))
        left = self._gang.max_nodes(sum(host.machine != machine for host in there))
        # Fewer nodes share the same global batch, so the others' work grows by the ratio of nodes.
        step_s = (slow.step_s - slow.excess_s) * nodes / max(left, 1)
        return left >= self._min_nodes and step_s * MIN_GAIN < slow.step_s

    def _refused(self, found: HostProbe) -> AttemptOutcome | None:
        """What preflight has against these hosts; those that it let through are not looked at again."""
        # A host that passed once is not measured again: the preflight takes seconds of every attempt.
        if found.members and {member.name for member in found.members} <= self._looked_at:
            return None
        with self._ledger.span("attempt.preflight"):
            try:
                self._launcher.preflight(self._gang, found)
            except EnvironmentProblem as error:
                return AttemptOutcome(state="failed", failure=Failure.of(error))
        self._looked_at |= {member.name for member in found.members}
        return None


def _too_few(found: HostProbe, min_nodes: int) -> AttemptOutcome:
    what = f"{len(found.members)} of at least {min_nodes} hosts can take a node ({found.describe_unreachable()})."
    return AttemptOutcome(state="failed", failure=Failure(cause="infrastructure", what=what, retryable=True))

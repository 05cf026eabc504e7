"""Which hosts an attempt has: those that answer and are fit, without those that are left out if the others will do."""

from __future__ import annotations

from data_contracts.errors import EnvironmentProblem
from training.launch.hosts import Muster
from training.launch.launcher import Launcher
from training.launch.outcome import AttemptOutcome
from training.launch.retry_budget import AttemptRecords
from training.launch.spec import Gang, LaunchSpec
from training.launch.stragglers import Straggler
from training.ledger import Ledger

LEAST_GAIN = 1.1
"""How many times as long a step must take as it would without the host of a slow rank."""


class Membership:
    """Of one run; who is left out is known from its records, whoever owned the attempts."""

    def __init__(
        self, spec: LaunchSpec, gang: Gang, launcher: Launcher, ledger: Ledger, records: AttemptRecords
    ) -> None:
        self._spec, self._gang, self._launcher, self._ledger, self._records = spec, gang, launcher, ledger, records
        self._looked_at: set[str] = set()
        self.goes_elsewhere = False
        """Whether the run is better off in another job of its scheduler's, without the host of a slow rank."""

    def is_gathered(self) -> bool:
        """Whether no host that is still to come need be waited for."""
        return self._launcher.is_gathered(self._gang, self._fewest)

    @property
    def _fewest(self) -> int:
        return min(self._gang.nodes, self._spec.min_nodes or self._gang.nodes)

    def muster(self, number: int) -> tuple[Muster, AttemptOutcome | None]:
        """Hosts for an attempt, and what speaks against it; without those that are left out, if the others will do."""
        for without in dict.fromkeys((self._records.left_out(), frozenset[str]())):
            with self._ledger.span("attempt.muster"):
                found = self._launcher.muster(self._gang, without)
            if found.missing:
                self._ledger.event("host.missing", attempt=number, what=found.describe_missing())
            if self._gang.most_nodes(len(found.members)) < self._fewest:
                problem: AttemptOutcome | None = _too_few(found, self._fewest)
            else:
                problem = self._refused(found)
            if problem is None:
                break
        return found, problem

    def goes_without(self, found: Muster, slow: Straggler, machine: str) -> bool:
        """Whether the run is better off without the machine of a slow rank."""
        left_out = self._records.left_out()
        if self._spec.stragglers != "exclude" or machine in left_out:
            return False
        there = (*found.members, *found.spares)
        if (slow.step_s - slow.excess_s) * LEAST_GAIN < slow.step_s:
            taken = {host.machine for host in (*there, *found.missing)} | left_out
            self.goes_elsewhere = self._launcher.has_room_beside(self._gang, taken)
            if self.goes_elsewhere:
                return True
        nodes = self._gang.most_nodes(len(found.members))
        left = self._gang.most_nodes(sum(host.machine != machine for host in there))
        step_s = (slow.step_s - slow.excess_s) * nodes / max(left, 1)
        return left >= self._fewest and step_s * LEAST_GAIN < slow.step_s

    def _refused(self, found: Muster) -> AttemptOutcome | None:
        """What preflight has against these hosts; those that it let through are not looked at again."""
        if found.members and {member.name for member in found.members} <= self._looked_at:
            return None
        with self._ledger.span("attempt.preflight"):
            try:
                self._launcher.preflight(self._gang, found)
            except EnvironmentProblem as error:
                return AttemptOutcome(
                    state="failed",
                    cause=error.cause,
                    what=error.what,
                    where=error.where,
                    advice=error.advice,
                    error=type(error).__name__,
                )
        self._looked_at |= {member.name for member in found.members}
        return None


def _too_few(found: Muster, fewest: int) -> AttemptOutcome:
    return AttemptOutcome(
        state="failed",
        cause="infrastructure",
        what=f"{len(found.members)} of at least {fewest} hosts can take a node ({found.describe_missing()}).",
        retryable=True,
    )

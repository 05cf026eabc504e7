"""How fast a run steps, measured from what its ranks wrote down, and so how soon a missing step is one that hangs.

The times of steps say nothing of what comes between them: a checkpoint, a restore, a trace, the end. So what is learnt
holds only while the last word of every rank is that a step is done; else the configured deadline does. Nor do they say
anything of one step in thousands that always takes long, for the data of a new epoch, say: once an attempt was ended
sooner than configured, the later ones of the run have the whole time, so that such a step is never the end of a run.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from headway.training.launch.base.gang import LaunchSpec, attempt_folder
from headway.training.launch.base.protocol import ENDED, AttemptFiles
from headway.training.launch.diagnosis.rank_event_stream import last_events, rank_spools
from headway.training.observe.ledger import Event, Ledger
from headway.training.observe.step_summary import quantile

STEP_EVENTS = frozenset({"step", "step.excluded"})
BEFORE_A_STEP = STEP_EVENTS | {"checkpoint"}
"""Words after which a rank is at a step."""
LAST_EVENTS = frozenset(f"rank.{state}" for state in ENDED)
WINDOW = 500
"""How many steps are remembered: with so many, p99 knows what happens once in a hundred."""
MIN_STEPS = 20
"""Of this run, before anything is learnt from them."""
MIN_STEPS_OF_ATTEMPT = 5
"""Of this attempt: its first ones may compile, or fill caches."""
TIMES = 10.0
"""How many times the p99 one may take, beyond the floor: a shrunken gang is slower, and a disk may pause."""
TIGHT = 3.0
"""How many times the p99 a configured deadline should leave."""
REPORT_RATIO = 1.25
"""The ratio by which a deadline moves before it is reported again."""


class AdaptiveTimeout:
    """Of one attempt, after those that had as many ranks."""

    def __init__(self, spec: LaunchSpec) -> None:
        self._cap_s, self._floor_s = spec.progress_deadline_s, spec.min_progress_deadline_s
        self._times_s: deque[float] = deque(maxlen=WINDOW)
        # The newest event of each rank: a deadline from steps holds only while all of them are between two steps.
        self._words: dict[int, str] = {}
        self._ended_unix_s = 0.0
        self._num_here = 0
        self._was_too_soon = False
        self._known: tuple[float, float] | None = None
        """p50 and p99 of the times, once somebody has asked."""

    @classmethod
    def after(cls, spec: LaunchSpec, run_dir: Path, *, attempt: int, world_size: int) -> AdaptiveTimeout:
        """Knowing the earlier attempts of the run, whoever owned them."""
        timeout = cls(spec)
        for number in range(1, attempt):
            files = AttemptFiles(attempt_folder(run_dir, number))
            # An attempt that a tight deadline ended proves that such a pause exists; a second one would end there too.
            timeout._was_too_soon |= files.missed_step.exists()
            spools = rank_spools(files)
            # With another number of ranks a step takes another time, so those attempts teach nothing.
            if len(spools) == world_size:
                for event in last_events(spools[0][1]):
                    timeout.take(0, event)
                timeout._words, timeout._num_here = {}, 0
        return timeout

    def take(self, rank: int, event: Event) -> None:
        """Take in what a rank has written down; rank 0's steps are everybody's, for all meet in each."""
        name = str(event["event"])
        if rank == 0:
            ended_unix_s = float(event.get("unix_s", 0.0)) + float(event.get("duration_s", 0.0))
            # The time of a step after a restore or an evaluation holds that work too, and would raise p99.
            if name in STEP_EVENTS and self._words.get(0) in BEFORE_A_STEP:
                self._times_s.append(float(event.get("duration_s", max(0.0, ended_unix_s - self._ended_unix_s))))
                self._num_here += 1
                self._known = None
            self._ended_unix_s = ended_unix_s
        self._words[rank] = name

    @property
    def p50_s(self) -> float:
        return self._percentiles()[0]

    @property
    def p99_s(self) -> float:
        return self._percentiles()[1]

    def _percentiles(self) -> tuple[float, float]:
        if self._known is None:
            self._known = (quantile(self._times_s, 0.5), quantile(self._times_s, 0.99))
        return self._known

    @property
    def is_known(self) -> bool:
        return len(self._times_s) >= MIN_STEPS and self._num_here >= MIN_STEPS_OF_ATTEMPT

    @property
    def timeout_s(self) -> float:
        """How long the next step may take, at the most as long as is configured."""
        if self._was_too_soon or not self.is_known:
            return self._cap_s
        # The floor covers pauses that short steps do not show, such as a disk's; the factor covers slower steps.
        return min(self._cap_s, self._floor_s + TIMES * self.p99_s)

    @property
    def ends_sooner(self) -> bool:
        """Whether what is learnt ends an attempt now before what is configured would."""
        return self.limit_s() < self._cap_s

    @property
    def is_tight(self) -> bool:
        """Whether what is configured is little more than what a step takes anyway."""
        return self.is_known and self._cap_s < TIGHT * self.p99_s

    def limit_s(self) -> float:
        """How long ranks may be silent now."""
        # A rank that has ended sends no more events, and must not hold the others to the long deadline.
        at_steps = all(word in BEFORE_A_STEP for word in self._words.values() if word not in LAST_EVENTS)
        return self.timeout_s if at_steps else self._cap_s

    def figures(self) -> dict[str, float | int]:
        return {"p50_s": self.p50_s, "p99_s": self.p99_s, "num_steps": len(self._times_s)}

    def __str__(self) -> str:
        """For a person; empty while nothing is known."""
        return f"{self.p50_s:.2g} s (p99 {self.p99_s:.2g} s)" if len(self._times_s) >= MIN_STEPS else ""


class TimeoutReporter:
    """Writes down what was learnt, once it is known and whenever it has moved."""

    def __init__(self, timeout: AdaptiveTimeout, ledger: Ledger, attempt: int) -> None:
        self._timeout, self._ledger, self._attempt = timeout, ledger, attempt
        self._reported_s: float | None = None
        self._has_warned = False

    def report(self) -> None:
        timeout = self._timeout
        if not timeout.is_known:
            return
        # Reported by ratio: each step moves the percentiles a little, and an event for each would be noise.
        if self._reported_s is None or not 1 / REPORT_RATIO < timeout.timeout_s / self._reported_s < REPORT_RATIO:
            self._reported_s = timeout.timeout_s
            what = f"a step is missed after {timeout.timeout_s:.3g} s: steps take {timeout}."
            self._report("attempt.deadline", what, deadline_s=timeout.timeout_s)
        if timeout.is_tight and not self._has_warned:
            self._has_warned = True
            what = f"steps take {timeout}, and launch.progress_deadline_s ends an attempt without one; raise it."
            self._report("attempt.tight_deadline", what)

    def _report(self, name: str, what: str, **fields: float) -> None:
        self._ledger.event(name, attempt=self._attempt, what=what, **self._timeout.figures(), **fields)

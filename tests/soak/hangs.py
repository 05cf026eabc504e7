"""Let one rank hang, or be slow, in gang after gang: it is seen in time, and the right one is named.

    python -m tests.soak.hangs [--times 100] [--parallel 4] [--seed N] [--only WORD...] [--json FILE]

Real ranks under real guards and supervisors: two or four replicas, shards, or stages of a pipeline. `hangs` are a rank
that is halted or sleeps anywhere in a step, `slow` one that takes longer in each, half of them healthy gangs, and
`cuts` a host whose link is cut, a fifth as often; these need hosts of namespaces, as root. One JSON object has every
trial. Exits 1 where anybody was named wrongly or too late.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import itertools
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.cluster.namespaces import namespace_hosts
from tests.cluster.prerequisites import why_no_hosts
from tests.soak.hang_table import HangEvidence, HangTrial, table, totals
from tests.soak.hang_trials import GANGS, cut_trials, hang_plans, local_trials, slow_plans
from tests.soak.orphans import machine
from tests.training.conftest import make_project

KINDS = {"hangs": (hang_plans, tuple(GANGS)), "slow": (slow_plans, tuple(GANGS))}
"""What is planned, for gangs of which shapes."""
CUTS = "cuts"
TRIALS_A_RUN = 10
TRIALS_A_CUT = 5
"""A cut link takes so many times as long as a hang."""

Trials = Callable[[], Iterator[HangTrial]]


class Soak:
    """Makes trials, several at the same time, for nearly all of each is waiting.

    Args:
        keep: called with the evidence so far after every trial.
    """

    def __init__(self, folder: Path, evidence: HangEvidence, keep: Callable[[HangEvidence], object]) -> None:
        self.evidence = evidence
        self._folder, self._keep = folder, keep
        self._chance = random.Random(evidence.seed)
        self._started_s, self._lock = time.monotonic(), threading.Lock()
        self._project = make_project(folder / "workspace")

    def run(self, kinds: list[str], times: int, parallel: int) -> HangEvidence:
        runs = [run for kind in kinds if kind in KINDS for run in self._runs(kind, times)]
        with concurrent.futures.ThreadPoolExecutor(parallel + (CUTS in kinds)) as pool:
            cuts = [self._cuts(max(1, times // TRIALS_A_CUT))] if CUTS in kinds else []
            for _ in pool.map(self._make, cuts + runs):
                pass
        return self.evidence

    def _runs(self, kind: str, times: int) -> Iterator[Trials]:
        """Of one kind, in gangs of one shape after another."""
        plans_for, shapes = KINDS[kind]
        gangs = itertools.cycle(shapes)
        a_run = min(TRIALS_A_RUN, -(-times // len(shapes)))
        for number, first in enumerate(range(0, times, a_run)):
            gang, chance = next(gangs), random.Random(self._chance.random())
            plans = plans_for(chance, GANGS[gang].world_size, min(a_run, times - first))
            folder = self._folder / f"{kind}-{number}"
            yield lambda a=(folder, self._project, gang, plans, chance): local_trials(*a)  # type: ignore[misc]

    def _cuts(self, times: int) -> Trials:
        chance = random.Random(self._chance.random())

        def cuts() -> Iterator[HangTrial]:
            if reason := why_no_hosts():
                raise RuntimeError(reason)
            with namespace_hosts(4) as hosts:
                yield from cut_trials(self._folder / CUTS, hosts, times, chance)

        return cuts

    def _make(self, trials: Trials) -> None:
        try:
            for trial in trials():
                self._take(trial)
        except Exception as error:
            # One run that goes wrong is evidence too, and the others are still to be made.
            self._take(
                HangTrial(
                    gang="", how="", culprit=None, problem=f"{type(error).__name__}: {error}"[:2000], was_made=False
                )
            )

    def _take(self, trial: HangTrial) -> None:
        with self._lock:
            self.evidence = self.evidence.with_trials([trial], time.monotonic() - self._started_s)
            self._keep(self.evidence)
            print(outcome(trial), file=sys.stderr, flush=True)


def outcome(trial: HangTrial) -> str:
    where = f"{trial.gang}: {trial.how}{f' at {trial.phase}' if trial.phase else ''} of rank {trial.culprit}"
    seen = "" if trial.seen_s is None else f", seen in {trial.seen_s:.1f} s"
    message = trial.problem or f"named {trial.named or trial.called_slow}{seen}"
    return f"{where}: {message}" + ("" if trial.held else f"   NOT AS PROMISED: {trial.what}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.hangs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=100, help="trials of each kind")
    parser.add_argument("--parallel", type=int, default=4, help="runs at the same time")
    parser.add_argument("--seed", type=int, default=None, help="of what happens to whom; drawn without it")
    parser.add_argument("--only", nargs="+", choices=(*KINDS, CUTS), default=[*KINDS, CUTS], help="these kinds alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the evidence is kept")
    arguments = parser.parse_args()
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed

    def keep(evidence: HangEvidence) -> None:
        if arguments.json is not None:
            arguments.json.write_text(evidence.model_dump_json(indent=1) + "\n")

    evidence = HangEvidence(
        command=f"python -m tests.soak.hangs --times {arguments.times} --parallel {arguments.parallel} --seed {seed} "
        f"--only {' '.join(arguments.only)}",
        machine=machine(),
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seed=seed,
    )
    with tempfile.TemporaryDirectory(prefix="headway-soak-hangs-", ignore_cleanup_errors=True) as folder:
        evidence = Soak(Path(folder), evidence, keep).run(arguments.only, arguments.times, arguments.parallel)
    print(table(evidence.summary))
    print(totals(evidence.trials))
    # What an attempt's early end left unplanned says nothing of hangs; a run that went wrong says something.
    problems = [trial for trial in evidence.trials if not trial.held and (trial.was_made or not trial.how)]
    for trial in problems:
        print(f"NOT AS PROMISED: {trial.model_dump_json()}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

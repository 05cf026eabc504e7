"""End each part of a run in each way, again and again: nobody is left, and the run goes on to the same bits.

    python -m tests.soak.orphans [--times 10] [--cluster] [--only WORD...] [--json FILE]
    python -m tests.soak.orphans --table FILE [--hangs FILE]    # the page of docs/, from the JSON of earlier ones

Real processes: guards, agents and supervisors, the real worker where steps and bits are compared, `headway retrain`
for the command, a Prefect server with its worker, and with --cluster hosts of namespaces with an sshd each and a real
Slurm. One JSON object has every trial and a summary; it is kept up while trials are made. Exits 1 where anybody was
left past the bound, an attempt did not connect, or bits differed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from tests.soak.hang_table import HangEvidence
from tests.soak.orphan_hosts import host_trials
from tests.soak.orphan_jobs import job_trials
from tests.soak.orphan_servers import server_trials
from tests.soak.orphan_table import Evidence, Trial, page, summarise, table
from tests.soak.orphan_trials import (
    NUM_STEPS,
    Bits,
    command_trials,
    connection_trials,
    gang_trials,
    supervisor_trials,
)

Trials = Iterator[list[Trial]]


class Soak:
    """Makes trials, and keeps what came of them.

    Args:
        keep: called with the evidence so far after every round.
        num_steps: of the run whose bits are compared; it has to last for a round.
    """

    def __init__(
        self, folder: Path, *, keep: Callable[[Evidence], object] = lambda _: None, num_steps: int = NUM_STEPS
    ) -> None:
        self._folder, self._keep, self._num_steps = folder, keep, num_steps
        self._bits: Bits | None = None
        self._started_s = time.monotonic()
        self.evidence = Evidence(
            command="",
            machine=machine(),
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            wall_s=0.0,
            trials=[],
        )

    def run(self, names: list[str], times: int) -> Evidence:
        """Make each kind of trial so often, one kind after the other."""
        command = f"python -m tests.soak.orphans --times {times} --only {' '.join(names)}"
        self.evidence = self.evidence.model_copy(update={"command": command})
        for name in names:
            left = times
            while left:
                with contextlib.closing(self._trials(name)) as trials:
                    goes_on = True
                    while left and goes_on:
                        goes_on = self._round(name, trials)
                        left -= 1
        return self.evidence

    def _round(self, name: str, trials: Trials) -> bool:
        """Whether another round can follow it in the same surroundings."""
        try:
            made, goes_on = next(trials), True
        except Exception as error:
            # One that goes wrong is evidence too, and the others are still to be made.
            message = f"{type(error).__name__}: {error}"[:2000]
            made, goes_on = [Trial(where=name, victim="", how="", problem=message)], False
        for trial in made:
            print(f"{trial.where} {trial.victim} {trial.how}: {outcome(trial)}", file=sys.stderr, flush=True)
        trials_so_far = [*self.evidence.trials, *made]
        update = {
            "trials": trials_so_far,
            "summary": summarise(trials_so_far),
            "wall_s": round(time.monotonic() - self._started_s, 1),
        }
        self.evidence = self.evidence.model_copy(update=update)
        self._keep(self.evidence)
        return goes_on

    def _trials(self, name: str) -> Trials:
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._folder))
        if name == "gang":
            yield from gang_trials(folder, self._shared_bits())
        elif name == "connections":
            yield from connection_trials(folder)
        elif name == "supervisor":
            yield from supervisor_trials(folder)
        elif name == "command":
            yield from command_trials(folder)
        elif name == "prefect":
            yield from server_trials(folder)
        elif name == "slurm":
            yield from job_trials(folder)
        else:
            yield from host_trials(folder, self._shared_bits())

    def _shared_bits(self) -> Bits:
        if self._bits is None:
            (self._folder / "bits").mkdir()
            self._bits = Bits(self._folder / "bits", self._num_steps)
        return self._bits


def outcome(trial: Trial) -> str:
    if trial.problem:
        return trial.problem
    gone = "not gone" if trial.gone_s is None else f"gone in {trial.gone_s:.2f} s"
    step = "" if trial.next_step_s is None else f", next step in {trial.next_step_s:.2f} s"
    return gone + step + ("" if trial.held else "   NOT AS PROMISED")


def machine() -> str:
    libraries = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "prefect"))
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} {platform.machine()} cores, load {load:.1f} before, Linux, "
        f"Python {platform.python_version()}, {libraries}"
    )


HERE = ("gang", "supervisor", "command", "prefect")
CLUSTER = ("hosts", "slurm")
KINDS = (*HERE, "connections", *CLUSTER)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.orphans", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=10, help="how often each ending is tried")
    parser.add_argument("--cluster", action="store_true", help="also hosts made of namespaces, and Slurm; as root")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=[], help="these kinds of trials alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the evidence is kept")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the page from earlier evidence, and no more")
    parser.add_argument("--hangs", type=Path, metavar="FILE", help="with --table: the evidence of tests.soak.hangs")
    arguments = parser.parse_args()
    if arguments.table is not None:
        hangs = None if arguments.hangs is None else HangEvidence.model_validate_json(arguments.hangs.read_bytes())
        print(page(Evidence.model_validate_json(arguments.table.read_bytes()), hangs), end="")
        return 0

    # Jobs in a shell's background ignore the interrupt, and so would all that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def keep(evidence: Evidence) -> None:
        if arguments.json is not None:
            arguments.json.write_text(evidence.model_dump_json(indent=1) + "\n")

    names = arguments.only or [*HERE, *(CLUSTER if arguments.cluster else ())]
    with tempfile.TemporaryDirectory(prefix="headway-soak-orphans-") as folder:
        evidence = Soak(Path(folder), keep=keep).run(names, arguments.times)
    print(table(evidence.summary))
    for trial in evidence.failures:
        print(f"NOT AS PROMISED: {trial.model_dump_json()}", file=sys.stderr)
    return 1 if evidence.failures else 0


if __name__ == "__main__":
    sys.exit(main())

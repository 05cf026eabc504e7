"""Room for gangs side by side: hosts of a list, or this machine's processors, GPUs and memory."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.base.host_facts import count_gpus
from headway.training.launch.base.protocol import AttemptFiles, attempt_numbers
from headway.training.launch.supervise.step_pace import StepPaces

MEMORY_MARGIN = 1.25
"""Of the largest gang so far, for the next one: settings vary."""
CGROUP = Path("/sys/fs/cgroup")
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """A place for a gang, which has its hosts or GPUs alone."""

    spec: LaunchSpec
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of its ranks."""


@dataclass(kw_only=True, slots=True)
class Room:
    """How many gangs can run at a time, and where."""

    slots: Sequence[Slot]
    whole: Slot
    """All there is, for a gang that trains alone."""
    is_here: bool
    largest_bytes: int = 0
    """Of memory, that the ranks of one gang had, as far as is known."""
    paces: StepPaces = field(default_factory=StepPaces)
    """What steps took of gangs that were here."""

    def fits_one_more(self, going: Mapping[Path, bool]) -> bool:
        """Whether memory is there for one more gang, by what those before took; other hosts are not asked.

        Args:
            going: folders of runs that train, and whether each has made a step, after which it hardly grows.
        """
        if not self.is_here:
            return True
        sizes = {folder: _ranks_bytes(folder) for folder in going}
        self.largest_bytes = max([self.largest_bytes, *(sizes[folder] for folder, is_up in going.items() if is_up)])
        if not self.largest_bytes:
            return False  # the first has to come up, so that there is a figure
        to_come = sum(max(self.largest_bytes - size, 0) for size in sizes.values())
        return available_bytes() >= MEMORY_MARGIN * self.largest_bytes + to_come


def room_for(spec: LaunchSpec, num_threads: int, at_most: int, *, uses_gpus: bool = True) -> Room:
    """Of a launcher whose gangs have their owner beside them.

    Args:
        num_threads: of a rank.
        at_most: gangs, whatever room there is.
        uses_gpus: whether ranks take those that there are.
    """
    whole = Slot(spec=spec)
    if spec.ssh is not None and spec.launcher == "ssh":
        hosts = spec.ssh.hosts
        num = min(at_most, len(hosts) // spec.nodes)
        # Turn about: the best hosts are shared out, and so are those that stand by.
        shares = [spec.ssh.model_copy(update={"hosts": hosts[place::num]}) for place in range(num)]
        slots = [Slot(spec=spec.model_copy(update={"ssh": share})) for share in shares]
        return Room(slots=slots, whole=whole, is_here=False)
    gpus = visible_gpus() if uses_gpus else []
    if len(gpus) >= spec.world_size:
        shares_of_gpus = [gpus[first : first + spec.world_size] for first in range(0, len(gpus), spec.world_size)]
        slots = [
            Slot(spec=spec, environment={VISIBLE: ",".join(share)})
            for share in shares_of_gpus[:at_most]
            if len(share) == spec.world_size
        ]
        return Room(slots=slots, whole=whole, is_here=True)
    num = min(at_most, max(1, int(usable_processors() // (spec.world_size * num_threads))))
    slots = [Slot(spec=spec) for _ in range(num)]
    return Room(slots=slots, whole=whole, is_here=True)


def visible_gpus() -> list[str]:
    """By the names that CUDA is told them by."""
    if (named := os.environ.get(VISIBLE)) is not None:
        # CUDA stops at the first that is none.
        names = [name.strip() for name in named.split(",")]
        return names[: next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))]
    return [str(number) for number in range(count_gpus()[0])]


def usable_processors(cgroup: Path = CGROUP) -> float:
    """That this process may use: those it may run on, and no more than its control group may have at a time."""
    allowed = float(len(os.sched_getaffinity(0)))
    if (found := re.fullmatch(r"(\d+) (\d+)\s*", _text(cgroup / "cpu.max"))) is not None:
        allowed = min(allowed, int(found[1]) / int(found[2]))
    return allowed


def available_bytes(cgroup: Path = CGROUP) -> int:
    """Memory that processes beside this one can have."""
    available = psutil.virtual_memory().available
    limit, used = _text(cgroup / "memory.max").strip(), _text(cgroup / "memory.current").strip()
    if limit.isdecimal() and used.isdecimal():
        available = min(available, int(limit) - int(used) + _reclaimable_bytes(cgroup))
    return available


def _reclaimable_bytes(cgroup: Path) -> int:
    """Pages of files count as used, and go where memory is needed."""
    found = re.search(r"^inactive_file (\d+)$", _text(cgroup / "memory.stat"), re.MULTILINE)
    return 0 if found is None else int(found[1])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _ranks_bytes(run_dir: Path) -> int:
    """Resident memory of the ranks of a run's newest attempt."""
    if not (attempts := attempt_numbers(run_dir / "attempts")):
        return 0
    size_bytes = 0
    for marker in AttemptFiles(attempts[max(attempts)]).read_markers().values():
        try:
            size_bytes += psutil.Process(marker.pid).memory_info().rss
        except psutil.Error:
            continue
    return size_bytes

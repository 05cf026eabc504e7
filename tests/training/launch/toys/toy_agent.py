"""An agent as torchrun's is for ranks, guards and supervisors, without torch, whose import takes longer than a toy run.

Starts its node's ranks with their places in the world and their own logs, passes SIGTERM on to them, ends the others
when one fails, waits for all, and ends well if all did. What only the real one can show is in `test_torchrun`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.training.launch.base.gang import Attempt, Gang


def toy_argv(gang: Gang, attempt: Attempt, node: int, python: str) -> tuple[str, ...]:
    """What a launcher starts in place of `agent_argv`."""
    told = {
        "node": node,
        "ranks_per_node": gang.ranks_per_node,
        "world_size": gang.world_size,
        "logs": str(attempt.folder / "logs" / f"node-{node}"),
        "module": gang.module,
        "arguments": gang.arguments,
        "meeting": {"MASTER_ADDR": attempt.members[0].address, "MASTER_PORT": str(attempt.members[0].port)},
    }
    return python, str(Path(__file__)), json.dumps(told)


def main(plan: str) -> int:
    told = json.loads(plan)
    ranks: list[subprocess.Popen[bytes]] = []
    told_to_end = False

    def end_all(_number: int, _frame: object) -> None:
        nonlocal told_to_end
        told_to_end = True
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, end_all)
    for local in range(told["ranks_per_node"]):
        folder = Path(told["logs"], "toy", "attempt_0", str(local))
        folder.mkdir(parents=True)
        place = {
            "RANK": str(told["node"] * told["ranks_per_node"] + local),
            "LOCAL_RANK": str(local),
            "GROUP_RANK": str(told["node"]),
            "WORLD_SIZE": str(told["world_size"]),
            "TORCHELASTIC_RUN_ID": "toy",
            **told["meeting"],
        }
        with (folder / "stdout.log").open("wb") as out, (folder / "stderr.log").open("wb") as err:
            command = [sys.executable, "-u", "-m", told["module"], *told["arguments"]]
            ranks.append(subprocess.Popen(command, env=os.environ | place, stdout=out, stderr=err))
            if told_to_end:  # it may have come between the fork and here
                end_all(signal.SIGTERM, None)
    while ranks:
        pid, status = os.wait()
        rank = next((rank for rank in ranks if rank.pid == pid), None)
        if rank is not None:
            ranks.remove(rank)
            rank.returncode = os.waitstatus_to_exitcode(status)
            if rank.returncode:
                end_all(0, None)
                told["failed"] = True
    return int(told.get("failed", False))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

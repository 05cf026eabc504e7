"""Commands that are forks of one process, which has imported what they need.

For each line, which is JSON, it runs `headway` with these arguments in this folder and environment, lets it write into
this file, and answers with its exit code: `python -m tests.flows.toys.forked_commands`.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import Any

import headway.flows.act.clean
import headway.flows.cli.command_line
import headway.flows.config.preflight
import headway.flows.retrain
import headway.flows.show.logs
import headway.flows.show.status
import headway.flows.show.verify  # noqa: F401
from headway.__main__ import main as headway_command
from tests.program_ends import end_with


def main() -> None:
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            end_with(partial(be_the_command, **json.loads(line)))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def be_the_command(arguments: list[str], folder: str, environment: dict[str, Any], message: str) -> None:
    streams = os.open(os.devnull, os.O_RDONLY), os.open(message, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, stream in ((0, streams[0]), (1, streams[1]), (2, streams[1])):
        os.dup2(stream, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["headway", *arguments]
    headway_command()


if __name__ == "__main__":
    main()

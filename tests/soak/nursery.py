"""Starts ranks within milliseconds: a process that has imported all they need, and forks one for each line it reads.

A line on stdin is `{"environment": {...}, "argv": [...], "folder": ..., "log": ...}`, the answer the rank's pid. Each
rank is a process of its own that runs `training.worker.main` from its beginning; only the import is saved. It keeps
no thread of its own, so that nothing is lost in forking.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import training.evaluation
import training.session
import training.worker


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ranks that end are nobody's zombies
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become_rank(json.loads(line))
        print(pid, flush=True)


def _become_rank(told: dict) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(told["folder"])
    log = os.open(told["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(told["environment"])
    sys.argv = ["training.worker", *told["argv"]]
    code = 1
    try:
        training.worker.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()

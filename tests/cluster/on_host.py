"""A module on a host of a test, as nsenter(1) and a fresh Python would run it, but for the imports.

python -m tests.cluster.on_host INIT_PID MODULE WORDS...

By `Program` it is a fork that has imported what the module imports; the host's own processes are fresh as ever.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from tests.program_ends import run_module

NAMESPACES = ("net", "uts", "pid", "mnt")
"""The mounts last: the others are found by this machine's `/proc`."""


def enter(init_pid: int) -> None:
    """This process's children are of the host from now on; so is all of this process but its number."""
    libc, folder = ctypes.CDLL(None, use_errno=True), Path.cwd()
    for name in NAMESPACES:
        descriptor = os.open(f"/proc/{init_pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        if libc.setns(descriptor, 0):
            raise OSError(ctypes.get_errno(), f"the host's {name} namespace cannot be entered")
        os.close(descriptor)
    os.chdir(folder)


def main(init_pid: str, module: str, *words: str) -> None:
    enter(int(init_pid))
    if pid := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os._exit(code if code >= 0 else 128 - code)
    sys.argv[:] = [module, *words]
    run_module(module)


if __name__ == "__main__":
    main(*sys.argv[1:])

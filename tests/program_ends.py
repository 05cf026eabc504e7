"""How a program ends that a fork runs in a new process's place: as it would have ended there, and nothing after it."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn


def end_with(program: Callable[[], object]) -> NoReturn:
    """Run it to its end, which is this process's: with its exit status, or 1 and a traceback."""
    code = 1
    try:
        program()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_module(name: str) -> None:
    """As `python -m` does."""
    sys.modules.pop(name, None)  # which runs it under another name
    runpy.run_module(name, run_name="__main__", alter_sys=True)

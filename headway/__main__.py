"""The `headway` command's first step."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys

NO_MEMORY, INTERRUPTED = 8, 130
"""`EnvironmentProblem.exit_code` and `errors.EXIT_INTERRUPTED`: what is imported here is all that can be relied on."""


def main() -> None:
    open_what_is_closed()
    # What is imported here stays: to look for garbage in it every 700 objects takes a fifth of a command's start.
    gc.set_threshold(50_000, 20, 20)
    ends_with: list[int] = []
    atexit.register(leave, ends_with)  # registered before all others, so it comes after them
    try:
        ends_with.append(_run())
    except KeyboardInterrupt:
        # The command line answers for itself; this is while it is being imported, which takes a second.
        print("headway: interrupted.", file=sys.stderr)
        ends_with.append(INTERRUPTED)
    sys.exit(ends_with[0])


def _run() -> int:
    try:
        from headway.flows.cli.command_line import run
    except MemoryError:
        print("headway: this process may have too little memory to start. Raise its limit.", file=sys.stderr)
        return NO_MEMORY
    except Exception as error:
        return _damaged(error)
    return run()


def open_what_is_closed() -> None:
    """Let standard streams that are closed (`>&-`) lead nowhere.

    Python has none then, and the first file that is opened gets the stream's number: what a child prints would be
    written into it.
    """
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free is this one
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 # to the end


def _damaged(error: Exception) -> int:
    """Say which installed files are altered or gone, where that is why nothing can be imported; else raise the error.

    Returns:
        The exit code.
    """
    try:
        from headway.data_contracts.store.errors import EnvironmentProblem
        from headway.flows.show.installed_files import check_files
    except Exception:
        raise error from None  # so little is left that nobody can look
    try:
        check_files()
    except EnvironmentProblem as problem:
        print(f"headway: {problem}", file=sys.stderr)
        return problem.exit_code
    raise error


def leave(ends_with: list[int]) -> None:
    """End now. All is said and closed; to unload every module takes a second, in which DuckDB complains of leaks."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    if ends_with:
        os._exit(ends_with[0])


if __name__ == "__main__":
    main()

"""Which line of a user's own code an error comes from, as the user's package names it: code lies in a run's archive."""

from __future__ import annotations

import inspect
import linecache
from types import FrameType, TracebackType
from typing import Any


def line_at_fault(error: BaseException, package: str) -> str | None:
    """`my_package/my_module.py:12 (the line itself)` of the last frame in the user's package; None: no frame is."""
    frame = _innermost(error.__traceback__, package)
    return None if frame is None else _place(frame, _line(error.__traceback__, frame))


def definition(function: Any) -> str | None:
    """File and line where a function or a class is defined; None where nobody knows."""
    inner = inspect.unwrap(function)
    if inspect.isclass(inner):
        try:
            line = inspect.getsourcelines(inner)[1]
        except (OSError, TypeError):
            return None
        stem = inner.__module__.replace(".", "/")
        return f"{stem}.py:{line}"
    code = getattr(inner, "__code__", None)
    return None if code is None else f"{_file(inner.__module__, code.co_filename)}:{code.co_firstlineno}"


def _innermost(traceback: TracebackType | None, package: str) -> FrameType | None:
    """The last frame that lies in the user's package."""
    found = None
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] == package:
            found = traceback.tb_frame
        traceback = traceback.tb_next
    return found


def _line(traceback: TracebackType | None, frame: FrameType) -> int:
    number = frame.f_lineno
    while traceback is not None:
        if traceback.tb_frame is frame:
            number = traceback.tb_lineno
        traceback = traceback.tb_next
    return number


def _place(frame: FrameType, line: int) -> str:
    """File and line, and the line itself."""
    text = linecache.getline(frame.f_code.co_filename, line, frame.f_globals).strip()
    where = f"{_file(str(frame.f_globals['__name__']), frame.f_code.co_filename)}:{line}"
    return f"{where} ({text})" if text else where


def _file(module: str, path: str) -> str:
    """`my_package/my_module.py`, wherever it was imported from."""
    parts = path.rsplit("/", module.count(".") + (2 if path.endswith("/__init__.py") else 1))
    return "/".join(parts[1:])

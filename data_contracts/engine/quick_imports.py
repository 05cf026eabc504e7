"""Importing a large library at half the price: without the parts nobody asks for, and without collecting garbage."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType


@contextlib.contextmanager
def quick_imports(*put_off: str) -> Iterator[None]:
    """In the body, a module of `put_off` is found at once and run at its first use.

    A use may come as early as the import itself, which then costs what it always did: nothing rests on what a library
    leaves unused. Until Python 3.11.8 two threads must not make that first use together, so put off only what one does.

    Nothing that is imported becomes garbage soon; looking for some among the modules so far costs a fifth of the time.
    """
    finder = _PuttingOff(put_off)
    # Restored as found: a caller may have switched it off for reasons of its own.
    did_collect = gc.isenabled()
    # In front, so that no other finder loads the module before.
    sys.meta_path.insert(0, finder)
    gc.disable()
    try:
        yield
    finally:
        if did_collect:
            gc.enable()
        sys.meta_path.remove(finder)


class _PuttingOff(MetaPathFinder):
    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname in self._names else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec

"""Prefect's settings, from the environment and the user's profile alone.

Prefect reads `.env`, `prefect.toml` and `pyproject.toml` of the current folder as well, whoever wrote them: they can
name a logging configuration, which runs code, and a server, which gets the password. It does so whenever a thread asks
anew, so what was there at the start says nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType, SimpleNamespace

MODULE = "prefect.settings.sources"


class _Sources(SourceFileLoader):
    """Prefect's module of that name, for which no file of the current folder is there."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for source, reader in (
            (module.FilteredDotEnvSettingsSource, "_read_env_files"),
            (module.TomlConfigSettingsSourceBase, "_read_files"),
        ):
            getattr(source, reader)  # another Prefect, that reads by another name, is none we know
            setattr(source, reader, _nothing)
        # Where the profiles are is looked for in the same three.
        module.dotenv = SimpleNamespace(dotenv_values=_nothing)  # type: ignore[attr-defined]
        module._get_profiles_path_from_toml = _nothing  # type: ignore[attr-defined]


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != MODULE or (spec := PathFinder.find_spec(fullname, path, target)) is None or not spec.origin:
            return None
        spec.loader = _Sources(fullname, spec.origin)
        return spec


def _nothing(*_: object, **__: object) -> dict[str, str]:
    return {}


def leave_out_the_current_folder() -> None:
    """Before Prefect is imported; once it is, it has read them."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())

"""Prefect's settings, from the environment and the user's profile alone.

Prefect reads `.env`, `prefect.toml` and `pyproject.toml` of the current folder as well, whoever wrote them: they can
name a logging configuration, which runs code, and a server, which gets the password. It does so whenever a thread asks
anew, so what was there at the start says nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import tomllib
import traceback
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace

from headway.data_contracts.store.errors import EnvironmentProblem

PACKAGE, SETTINGS = "prefect", "prefect.settings"
MODULE = "prefect.settings.sources"
SERVER = "PREFECT_API_URL"
RECORDS = "HEADWAY_PREFECT_RECORDS"
PROFILES_PATH, PROFILE, HOME = "PREFECT_PROFILES_PATH", "PREFECT_PROFILE", "PREFECT_HOME"


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


class _Package(SourceFileLoader):
    """Prefect itself, which reads its settings while it is imported."""

    def exec_module(self, module: ModuleType) -> None:
        # Of settings that it cannot read it tells there first, with their values, and fails later.
        told = io.StringIO()
        try:
            with contextlib.redirect_stderr(told):
                super().exec_module(module)
                importlib.import_module(f"{PACKAGE}.context")
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            if _is_of_settings(error):
                raise _unreadable(error) from None
            sys.stderr.write(told.getvalue())
            raise
        sys.stderr.write(told.getvalue())


def _is_of_settings(error: Exception) -> bool:
    """Whether it was raised while settings were read: a broken installation raises such errors, too."""
    is_validation = callable(getattr(error, "errors", None))  # pydantic's, whose frames are its own
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return is_validation or any(str(frame.f_globals.get("__name__")).startswith(SETTINGS) for frame in frames)


def _unreadable(error: Exception) -> EnvironmentProblem:
    """Without a value: it may be a password in the wrong place."""
    if isinstance(error, OSError):
        what = f"{error.strerror or type(error).__name__} at {error.filename}"
    elif isinstance(error, tomllib.TOMLDecodeError):
        what = f"the profiles are no TOML: {error}"
    elif isinstance(error, UnicodeDecodeError):
        what = "the profiles are not UTF-8"
    elif callable(errors := getattr(error, "errors", None)):  # pydantic's
        names = (".".join(map(str, (getattr(error, "title", ""), *each["loc"]))) for each in errors())
        what = f"not what they have to be: {', '.join(names)}"
    elif type(error).__name__ == "SettingsError":
        what = str(error)
    else:
        what = "profiles.toml has another form"
    return EnvironmentProblem(
        f"Prefect cannot read them ({what}).",
        where="Prefect's settings",
        advice="They are the variables PREFECT_* and the active profile in PREFECT_HOME/profiles.toml.",
    )


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in (PACKAGE, MODULE):
            return None
        if (spec := PathFinder.find_spec(fullname, path, target)) is None or not spec.origin:
            return None
        spec.loader = (_Package if fullname == PACKAGE else _Sources)(fullname, spec.origin)
        return spec


def _nothing(*_: object, **__: object) -> dict[str, str]:
    return {}


def leave_out_the_current_folder() -> None:
    """Before Prefect is imported; once it is, it has read them."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def keeps_records() -> bool:
    """Whether a command has a server of its own started, for Prefect's records alone, where none is configured."""
    return os.environ.get(RECORDS, "").lower() in ("1", "true", "yes", "on")


def names_no_server() -> bool:
    """Whether no Prefect server is configured, for sure, told without importing Prefect, which takes two CPU seconds.

    Where a file of profiles so much as mentions one, Prefect itself has to say which profile is active.
    """
    # Prefect reads its variables whatever their case.
    given = {name.upper(): value for name, value in os.environ.items()}
    if given.get(SERVER) or given.get(PROFILE):
        return False
    home = Path(given.get(HOME) or "~/.prefect").expanduser()
    try:
        profiles = Path(given.get(PROFILES_PATH) or home / "profiles.toml").read_text(errors="replace")
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return SERVER not in profiles.upper()

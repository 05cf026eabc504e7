"""Where the files of a source lie now: an absolute local folder, or an fsspec URI."""

from __future__ import annotations

import importlib.util
import pkgutil
import sysconfig
from difflib import get_close_matches
from pathlib import Path

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.file_systems import refuse_credentials
from headway.data_contracts.store.places import at_home, confined, real
from headway.data_contracts.tables.source_spec import SourceSpec

PYTHON_SCHEME = "python:"
LOCAL_SCHEMES = ("file://", "local://")
"""What fsspec calls this machine's own folders."""
STDLIB_URI = f"{PYTHON_SCHEME}stdlib"


def resolve_base_uri(spec: SourceSpec, *, base: Path) -> str:
    """Where the files lie now: an absolute local path, or an fsspec URI.

    Args:
        base: the folder relative paths start from, the pipeline file's own.

    Raises:
        ConfigError: `python:` names no installed package, or the URI holds credentials.
    """
    refuse_credentials(spec.uri)
    if spec.uri == STDLIB_URI:
        return sysconfig.get_path("stdlib")
    if spec.uri.startswith(PYTHON_SCHEME):
        return str(_package_folder(spec.uri))
    for scheme in LOCAL_SCHEMES:
        if spec.uri.startswith(scheme):
            return str(real(Path(spec.uri.removeprefix(scheme))))
    return spec.uri if "://" in spec.uri else str(real(base / at_home(spec.uri)))


def follows_links(spec: SourceSpec) -> bool:
    """Whether links out of the source's folder are followed: as it says, and always within the interpreter's own files,
    which a distribution may lay out in several places and which run as code in any case."""
    return spec.follow_links or spec.uri.startswith(PYTHON_SCHEME)


def file_place(root: str, path: str) -> str:
    """Where one file of the source lies."""
    # The path may come from a stored snapshot, and must not lead out of the source if that was altered.
    return f"{root.rstrip('/')}/{confined(path)}"


def is_remote(place: str) -> bool:
    return "://" in place


def _package_folder(uri: str) -> Path:
    """A folder inside an installed package, found without importing the package."""
    name, _, inside = uri.removeprefix(PYTHON_SCHEME).partition("/")
    # A dotted name would import the packages above it.
    found = importlib.util.find_spec(name) if name.isidentifier() else None
    if found is None or not found.submodule_search_locations:
        packages = [module.name for module in pkgutil.iter_modules() if module.ispkg]
        known = get_close_matches(name, ["stdlib", *packages], n=1)
        hint = f"Did you mean 'python:{known[0]}'?" if known else "Is it installed?"
        raise ConfigError(
            "no such installed package.",
            where=f"source.uri {uri!r}",
            advice=f"{hint} There are python:stdlib and python:PACKAGE/FOLDER.",
        )
    folder = Path(next(iter(found.submodule_search_locations)))
    return folder / confined(inside.rstrip("/")) if inside.rstrip("/") else folder

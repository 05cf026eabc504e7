"""The frozen code of a run: one zip of what a rank imports, named by its digest and imported as it is.

A queued or resumed run never sees later edits, and an edit to flows or docs re-trains nothing. Python
imports modules straight out of the zip, so nothing is unpacked and nothing can drift.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import sys
import zipfile
from pathlib import Path

from data_contracts.digests import canonical_json, sha256_bytes
from data_contracts.documents import StoredFile
from data_contracts.errors import ConfigError
from data_contracts.publication import Workspace

GROUND_FLOOR = ("__init__", "errors", "digests", "documents", "publication", "refs", "stages")
OWN_PACKAGES = ("data_contracts", "training", "tasks", "flows")
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The oldest time a zip can say; one time for all files keeps the bytes a function of the code."""


def rank_sources() -> dict[str, Path]:
    """Archive name to file of Headway's own part: `training/` and the ground floor of `data_contracts/`."""
    home = Path(__file__).resolve().parent.parent
    sources = {path.relative_to(home).as_posix(): path for path in (home / "training").rglob("*.py")}
    sources |= {f"data_contracts/{name}.py": home / "data_contracts" / f"{name}.py" for name in GROUND_FLOOR}
    return sources


def recipe_sources(recipe: str, search_path: tuple[str, ...]) -> dict[str, Path]:
    """Archive name to file of a user's recipe `package.module:Class`; nothing for a shipped one.

    Raises:
        ConfigError: the package cannot be found, or carries one of Headway's own names.
    """
    if ":" not in recipe:
        return {}
    package = recipe.partition(":")[0].partition(".")[0]
    if package in OWN_PACKAGES:
        raise ConfigError(
            f"the recipe's package {package!r} has the name of one of Headway's own.",
            where=recipe,
            advice="Rename the package that holds the recipe.",
        )
    sys.path[:0] = list(search_path)
    try:
        spec = importlib.util.find_spec(package)
    finally:
        del sys.path[: len(search_path)]
    if spec is None or spec.origin is None:
        raise ConfigError(
            f"no package {package!r} on {', '.join(search_path) or 'the path'}.",
            where=recipe,
            advice="Put it beside the pipeline file, or install it.",
        )
    origin = Path(spec.origin)
    if origin.name != "__init__.py":
        return {origin.name: origin}
    return {path.relative_to(origin.parent.parent).as_posix(): path for path in origin.parent.rglob("*.py")}


def pack(sources: dict[str, Path]) -> bytes:
    """A zip whose bytes depend on names and contents alone."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, path in sorted(sources.items()):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), path.read_bytes())
    return buffer.getvalue()


def freeze_code(workspace: Workspace, recipe: str, search_path: tuple[str, ...] = ()) -> StoredFile:
    """Publish the archive for a recipe under its digest."""
    data = pack(rank_sources() | recipe_sources(recipe, search_path))
    return workspace.publish_addressed(f"code/{sha256_bytes(data)}.zip", data)


RANK_DISTRIBUTIONS = ("fsspec", "numpy", "pydantic", "pydantic_core", "safetensors", "torch", "xxhash")


def freeze_environment(workspace: Workspace) -> StoredFile:
    """Publish the versions that a rank's arithmetic and reading stand on."""
    lock = {
        "python": ".".join(map(str, sys.version_info[:3])),
        **{name: importlib.metadata.version(name) for name in RANK_DISTRIBUTIONS},
    }
    data = canonical_json(lock)
    return workspace.publish_addressed(f"environments/{sha256_bytes(data)}.json", data)

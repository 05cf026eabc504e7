"""The frozen code of a run: one zip of what its ranks import, named by its digest and imported as it is.

A queued or resumed run never sees later edits, and an edit to what no rank imports re-trains nothing. Python
imports modules straight out of the zip, so nothing is unpacked and nothing can drift.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from headway.data_contracts.store.digests import canonical_json, sha256_bytes
from headway.data_contracts.store.documents import StoredFile
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.installation import HOME, version
from headway.data_contracts.store.publication import Workspace
from headway.public import PLACES
from headway.training.config.encoder_specs import CustomEncoderSpec, EncoderSpec
from headway.training.observe.import_closure import imports, lies_in, modules_below, source_file
from headway.training.recipes.built_in import BUILT_IN, nearest

RANK_MODULES = (
    "headway.training.programs.worker",
    "headway.training.programs.evaluation",
    "headway.training.programs.export",
    "headway.training.programs.verify_worker",
)
"""What is started as a rank, by `python -m`."""
PUBLIC = {f"headway.{name}": module for name, (module, _) in PLACES.items()}
"""The module of each public name."""
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The oldest time a zip can say; one time for all files keeps the bytes a function of the code."""


def rank_sources(recipe_files: Iterable[Path] = (), also: Sequence[str] = ()) -> dict[str, Path]:
    """Archive name to file of Headway's own part: all that a rank, a shipped recipe or the user's own may import.

    Args:
        also: further modules that are started as ranks, of no run's.

    Raises:
        ConfigError: a file of the user's recipe is not Python.
    """
    shipped = [recipe.place.partition(":")[0] for recipe in BUILT_IN.values()]
    # What the user's recipe imports of Headway has to be in the archive too.
    named = (name for file in recipe_files for name in _imports_of(file, "recipe"))
    wanted = (PUBLIC.get(name, name) for name in named)
    own = {name for name in wanted if _is_ranks(name) and source_file(name, HOME)}
    # The public names are always there: recipes import them as `headway.X`.
    roots = {*RANK_MODULES, *also, *shipped, *own, "headway.public"}
    modules = modules_below(*sorted(roots), follow=_is_ranks)
    folders = {parent for path in modules.values() for parent in path.parents if parent.is_relative_to(HOME)}
    # Packages need their `__init__`, which nobody imports by name.
    files = {*modules.values(), *(folder / "__init__.py" for folder in folders - {HOME})}
    return {path.relative_to(HOME).as_posix(): path for path in files}


def _is_ranks(module: str) -> bool:
    return lies_in(module, ("headway.data_contracts", "headway.training"))


def _imports_of(file: Path, what: str, package: str = "") -> list[str]:
    try:
        return list(imports(file, package)) if file.suffix == ".py" else []
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"the {what}'s module cannot be read ({error}).", where=str(file)) from error


def recipe_sources(recipe: str, search_path: tuple[str, ...]) -> dict[str, Path]:
    """Archive name to file of a user's recipe `package.module:Class`, data files too; nothing for a shipped one.

    Raises:
        ConfigError: the package cannot be found, or carries one of Headway's own names.
    """
    return _package_sources(recipe, search_path, "recipe") if ":" in recipe else {}


def encoder_code(spec: EncoderSpec, search_path: tuple[str, ...]) -> bytes | None:
    """The archive of a user's own encoder; None for a shipped one.

    It holds the encoder's module, what that imports of its package, and the package's data files: an edit to a recipe
    that lies in the same package encodes nothing again.

    Raises:
        ConfigError: the package or module cannot be found or read, or carries one of Headway's own names.
    """
    if not isinstance(spec, CustomEncoderSpec):
        return None
    sources = _package_sources(spec.name, search_path, "encoder")
    module = spec.name.partition(":")[0]
    found: set[str] = set()
    unseen = [module]
    while unseen:
        name = unseen.pop()
        stem = name.replace(".", "/")
        file = next((each for each in (f"{stem}.py", f"{stem}/__init__.py") if each in sources), None)
        if file is None and name == module:
            modules = [each.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for each in sources]
            advice = nearest(module, modules)
            raise ConfigError(f"there is no module {module!r}.", where="shards.encoder.name", advice=advice)
        if file is None or file in found:
            continue
        found.add(file)
        package = name if file.endswith("/__init__.py") else name.rpartition(".")[0]
        unseen += [*_imports_of(sources[file], "encoder", package), *filter(None, [name.rpartition(".")[0]])]
    # Data files always: what a module opens at run time cannot be read from its imports.
    return pack({name: path for name, path in sources.items() if name in found or path.suffix != ".py"})


def _package_sources(name: str, search_path: tuple[str, ...], what: str) -> dict[str, Path]:
    package = name.partition(":")[0].partition(".")[0]
    if package == "headway":
        raise ConfigError(
            f"the {what}'s package has Headway's own name.",
            where=name,
            advice=f"Rename the package that holds the {what}.",
        )
    # In front, as it will be for ranks, and taken away again: this process keeps its own path.
    sys.path[:0] = list(search_path)
    try:
        spec = importlib.util.find_spec(package)
    finally:
        del sys.path[: len(search_path)]
    # A folder without `__init__.py` is a namespace package, which may be spread over several places.
    if spec is not None and spec.origin is None and spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations)))
        raise ConfigError(
            f"package {package!r} in {folder.parent} has no __init__.py.",
            where=name,
            advice=f"Make {folder / '__init__.py'}; it may be empty.",
        )
    if spec is None or spec.origin is None:
        raise ConfigError(
            f"no package {package!r} in {', '.join(search_path) or 'the path'}.",
            where=name,
            advice="Put it beside the pipeline file, or install it.",
        )
    origin = Path(spec.origin)
    if origin.name != "__init__.py":
        return {origin.name: origin}
    # Compiled files differ by machine, and would change the digest.
    files = (path for path in origin.parent.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(origin.parent.parent).as_posix(): path for path in files}


def pack(sources: dict[str, Path]) -> bytes:
    """A zip whose bytes depend on names and contents alone."""
    buffer = io.BytesIO()
    # Stored, not deflated: zlib's output may differ between versions, and the digest with it.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        # Sorted, with one time for all: the bytes are a function of the code alone.
        for name, path in sorted(sources.items()):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), path.read_bytes())
    return buffer.getvalue()


def code_archive(recipe: str, search_path: tuple[str, ...] = (), also: Sequence[str] = ()) -> bytes:
    """All that the ranks of a recipe's run may import.

    Raises:
        ConfigError: the recipe's package cannot be found, or is not Python.
    """
    own = recipe_sources(recipe, search_path)
    return pack(rank_sources(own.values(), also) | own)


def freeze_code(
    workspace: Workspace, recipe: str, search_path: tuple[str, ...] = (), also: Sequence[str] = ()
) -> StoredFile:
    """Publish the archive for a recipe under its digest."""
    data = code_archive(recipe, search_path, also)
    return workspace.publish_addressed(f"code/{sha256_bytes(data)}.zip", data)


RANK_DISTRIBUTIONS = ("blake3", "fsspec", "numpy", "pydantic", "pydantic_core", "safetensors", "torch", "xxhash")


def environment_here() -> dict[str, str]:
    """The versions that a rank's arithmetic and reading stand on, by name."""
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        # Only what decides arithmetic and reading; other packages may differ without a word.
        **{name: version(name) for name in RANK_DISTRIBUTIONS},
    }


def freeze_environment(workspace: Workspace) -> StoredFile:
    """Publish `environment_here`."""
    data = canonical_json(environment_here())
    return workspace.publish_addressed(f"environments/{sha256_bytes(data)}.json", data)

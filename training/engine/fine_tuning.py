"""Starting from another run's weights: verified, taken over by name, and whatever does not fit is reported at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headway.data_contracts.store.documents import CheckpointManifest, Link, RunSpec
from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.training.checkpoint.layout import checkpoint_path, run_folder
from headway.training.config.name_patterns import matches, require_matches
from headway.training.config.start_spec import StartSpec

if TYPE_CHECKING:
    from torch import nn

    from headway.training.checkpoint.pieces import State

T = TypeVar("T")
MODEL = "model."
WHERE = "training.start_from"
NAMES_SHOWN = 3
Shapes = Mapping[str, tuple[int, ...]]
NO_TIES: Mapping[str, tuple[str, ...]] = {}


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """The checkpoint that a run begins with, by digest, and where it lies on this machine."""

    checkpoint: Link
    directory: Path
    spec: StartSpec

    def take_over(
        self,
        state: State,
        rebuild: Callable[[], nn.Module],
        *,
        names: Mapping[str, tuple[str, ...]] = NO_TIES,
        rest: Collection[str] | None = None,
        on_part: Callable[[], None] = lambda: None,
    ) -> None:
        """Fill what this rank holds of a model with what the checkpoint has of it, however it was sharded.

        Args:
            state: tensors `model.<name>`; all others stay as they are.
            rebuild: builds the whole model; called only if this may be a part of it.
            names: by the first name of a weight, all of its names.
            rest: as of `read_checkpoint`: what is verified beside what is taken over.
            on_part: called after each part that is read.

        Raises:
            IntegrityError: the checkpoint is altered, or is another one.
            ConfigError: a tensor has another shape, or the policy does not allow what is missing or extra.
        """
        # Imported here, so that who only loads the documents of a run does not import torch.
        from headway.training.checkpoint.pieces import pieces_of
        from headway.training.checkpoint.read import read_checkpoint
        from headway.training.checkpoint.verified_files import read_manifest
        from headway.training.engine.learner import model_tensors

        manifest = read_manifest(self.directory)
        # A folder of that name may hold another run's checkpoint since the run was specified.
        if manifest.sha256 != self.checkpoint.sha256:
            raise IntegrityError(f"it is not {self.checkpoint.short}.", where=str(self.directory))
        given = _of_model({piece.tensor: piece.global_shape for piece in manifest.layout})
        own = _of_model(pieces_of(state))
        whole = {name: piece.global_shape for name, piece in own.items()}
        # A rank with a part of the model cannot say what the whole lacks; only then is it built once more.
        if not given.keys() <= whole.keys():
            whole = {name: tuple(value.shape) for name, value in model_tensors(rebuild()).items()}
        # Matching is of whole names and shapes, reading of this rank's slices.
        chosen = [name for name in matching(whole, given, self.spec, names) if name in own]
        wanted = [own[name].slice(f"{MODEL}{name}") for name in chosen]
        read = read_checkpoint(self.directory, manifest, wanted=wanted, rest=rest, on_part=on_part).tensors
        for name in chosen:
            own[name].local.copy_(read[f"{MODEL}{name}"])


def matching(own: Shapes, given: Shapes, spec: StartSpec, names: Mapping[str, tuple[str, ...]] = NO_TIES) -> list[str]:
    """Names of the tensors that a model takes over from another.

    Args:
        names: by the first name of a weight, all of its names; a tied weight answers to each.

    Raises:
        ConfigError: one has another shape, or the policy does not allow what is missing or extra; names them.
    """
    # A tied weight may be meant by any of its names.
    called = {name: names.get(name, (name,)) for name in own}
    require_matches(spec.fresh, [name for each in called.values() for name in each], where=f"{WHERE}.fresh")
    wanted = [name for name in own if not any(matches(each, spec.fresh) for each in called[name])]
    missing = [name for name in wanted if name not in given]
    if missing and spec.missing == "refuse":
        raise ConfigError(
            f"{spec.model} lacks {_some(missing)}, which the recipe's model has.",
            where=WHERE,
            advice="List them under start_from.fresh, or set start_from.missing: fresh.",
        )
    extra = [name for name in given if name not in own]
    if extra and spec.extra == "refuse":
        raise ConfigError(
            f"{spec.model} has {_some(extra)}, which the recipe's model lacks.",
            where=WHERE,
            advice="Choose the recipe and the model fields it was trained with, or set start_from.extra: ignore.",
        )
    chosen = [name for name in wanted if name in given]
    # Shapes are compared before anything is read, so that all differences are named at once.
    others = [name for name in chosen if own[name] != given[name]]
    if others:
        name = others[0]
        raise ConfigError(
            f"{_some(others)} differ in shape: {name} is {list(given[name])} in {spec.model} "
            f"and {list(own[name])} in the recipe's model.",
            where=WHERE,
            advice="A new head goes under start_from.fresh, such as `head.*`.",
        )
    if not chosen:
        raise ConfigError(f"nothing would be taken over from {spec.model}.", where=WHERE)
    return chosen


def _of_model(values: Mapping[str, T]) -> dict[str, T]:
    return {name.removeprefix(MODEL): value for name, value in values.items() if name.startswith(MODEL)}


def _some(names: list[str]) -> str:
    rest = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def starting_point(workspace: Workspace, run: RunSpec, spec: StartSpec | None) -> StartingPoint | None:
    """Raises:
    ConfigError: run and configuration do not agree on whether there is one.
    IntegrityError: the checkpoint's manifest is gone or altered.
    """
    if run.start is None or spec is None:
        if (run.start is None) != (spec is None):
            raise ConfigError("the run does not say which checkpoint it starts from.", where=WHERE)
        return None
    manifest = workspace.load(run.start, CheckpointManifest)
    folder = checkpoint_path(run_folder(manifest.run), manifest.step)
    return StartingPoint(run.start, workspace.local_path(folder), spec)

"""Which launchers a project's pipelines take, and a small gang on each: what probes and drills are made with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headway.data_contracts.store.errors import ConfigError
from headway.flows.config.pipeline_spec import PipelineSpec, load_pipeline
from headway.flows.config.profiles import DeploymentProfile
from headway.flows.console.pipeline_names import pipeline_files, pipeline_name
from headway.training.launch.base.gang import LaunchSpec

NUM_RANKS = 2


def launchers_in_use(pipelines: Mapping[str, PipelineSpec]) -> dict[str, LaunchSpec]:
    """By the launcher's name: the launch of the first pipeline by name that takes it, with two ranks at most."""
    found: dict[str, LaunchSpec] = {}
    for _, spec in sorted(pipelines.items()):
        found.setdefault(spec.launch.launcher, _with_two_ranks(spec.launch))
    return dict(sorted(found.items()))


def _with_two_ranks(launch: LaunchSpec) -> LaunchSpec:
    """On two nodes where it has them: what is between them is looked at, too."""
    nodes = min(launch.nodes, NUM_RANKS)
    small = {"nodes": nodes, "ranks_per_node": min(launch.ranks_per_node, NUM_RANKS // nodes)}
    # Neither is of use to so few. What was not said stays unsaid.
    said = launch.model_dump(exclude_unset=True, exclude={"min_nodes", "nodes_per_rack"})
    return LaunchSpec.model_validate(said | small)


def launch_of_drills(folder: Path, profile: DeploymentProfile | None, launcher: str) -> LaunchSpec:
    """With which launch a drill's ranks are started.

    Args:
        folder: the project's, whose pipelines are looked at.
        profile: the one in use; None: none is.
        launcher: its name; empty: the profile's game day says it, or else its only launcher in use.

    Raises:
        ConfigError: nothing says where, or how; or a pipeline file is wrong.
    """
    game_day = None if profile is None else profile.game_day
    if game_day is not None and game_day.launch is not None and launcher in ("", game_day.launch.launcher):
        return game_day.launch
    if launcher == "local" or (not launcher and profile is None):
        return LaunchSpec()
    used = launchers_in_use({pipeline_name(path): load_pipeline(path) for path in pipeline_files(folder)})
    if launcher in used or (not launcher and len(used) == 1):
        return used[launcher or next(iter(used))]
    names = ", ".join(used) or "none"
    raise ConfigError(
        f"no pipeline of the project takes launcher {launcher}; those in use: {names}."
        if launcher
        else f"the profile's game day names no launch, and launchers in use are: {names}.",
        where=str(folder / "deployments"),
        advice="Give the profile `game_day: {launch: {launcher: ...}}`"
        + (", or name a launcher of a pipeline." if launcher else ", or name one with `--launcher`."),
    )

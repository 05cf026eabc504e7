"""What a person decides: who is champion, and which pipelines are held. Windows are in `windows.py`.

Heavy imports happen inside the commands that need them.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from headway.flows.console.options import AsJson, Model, Why, WorkspaceUri
from headway.flows.console.output import emit, only_shown, print_line, print_lines

Version = Annotated[str, typer.Argument(help="The version's number.")]
HeldPipeline = Annotated[str, typer.Argument(help="A pipeline file, or the name of one in deployments/.")]
Name = Annotated[str, typer.Option(help="Instead: the name in a file that is gone, or cannot be read any more.")]


def promote(
    model: Model,
    version: Version,
    why: Why,
    override: Annotated[
        str, typer.Option(help="Besides --why: promote it against the policy, for this reason; recorded.")
    ] = "",
    pipeline: Annotated[
        str, typer.Option(help="The pipeline whose policy counts; by default the one of its last evaluation.")
    ] = "",
    workspace: WorkspaceUri = "",
    as_json: AsJson = False,
) -> None:
    """Verify a version and make it champion. Exit code 7: the policy says no."""
    from headway.flows.act.champion_moves import print_move
    from headway.flows.act.champion_moves import promote as run_promote

    made = run_promote(workspace, model, version, why=why, override=override, pipeline=pipeline)
    with only_shown("the result"):
        emit(made, print_move, as_json=as_json)


def refuse(
    model: Model,
    version: Version,
    why: Why,
    workspace: WorkspaceUri = "",
    as_json: AsJson = False,
) -> None:
    """Refuse a version that waits or would win. No retrain makes it champion; `promote` undoes it."""
    from headway.flows.act.champion_moves import print_refusal
    from headway.flows.act.champion_moves import refuse as run_refuse

    made = run_refuse(workspace, model, version, why=why)
    with only_shown("the result"):
        emit(made, print_refusal, as_json=as_json)


def retire(
    model: Model,
    version: Version,
    why: Why,
    workspace: WorkspaceUri = "",
    as_json: AsJson = False,
) -> None:
    """Give a version up for ever. `clean` may remove what it stands on. Never the champion or the one before."""
    from headway.flows.act.champion_moves import print_refusal
    from headway.flows.act.champion_moves import retire as run_retire

    made = run_retire(workspace, model, version, why=why)
    with only_shown("the result"):
        emit(made, partial(print_refusal, done="retired"), as_json=as_json)


def rollback(
    model: Model,
    why: Why,
    to: Annotated[str, typer.Option(help="An earlier champion's version; by default the one before today's.")] = "",
    workspace: WorkspaceUri = "",
    as_json: AsJson = False,
) -> None:
    """Verify an earlier champion and bring it back. Exit code 5: it is damaged, and the champion stays."""
    from headway.flows.act.champion_moves import print_move
    from headway.flows.act.champion_moves import rollback as run_rollback

    made = run_rollback(workspace, model, why=why, to=to)
    with only_shown("the result"):
        emit(made, print_move, as_json=as_json)


def hold(why: Why, pipeline: HeldPipeline = "", name: Name = "", workspace: WorkspaceUri = "") -> None:
    """Hold a pipeline until `release`. No schedule, trigger, form or person retrains it; on record."""
    from headway.flows.windows import holds

    print_lines(holds.hold(workspace, pipeline, name=name, why=why))


def release(why: Why, pipeline: HeldPipeline = "", name: Name = "", workspace: WorkspaceUri = "") -> None:
    """Release a pipeline that somebody holds; on record."""
    from headway.flows.windows import holds

    print_line(holds.release(workspace, pipeline, name=name, why=why))

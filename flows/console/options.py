"""Options and arguments that several commands have, in one wording."""

from __future__ import annotations

from typing import Annotated

import typer

from headway.flows.console.environment import default_workspace
from headway.flows.console.pipeline_names import completed


def _or_default(workspace: str) -> str:
    return workspace or default_workspace()


Pipeline = Annotated[
    str, typer.Argument(help="A pipeline file, or the name of one in deployments/.", autocompletion=completed)
]
WorkspaceUri = Annotated[
    str, typer.Option("--workspace", "-w", callback=_or_default, help="Where data, checkpoints and models are kept.")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for machines instead of text for people.")]
Why = Annotated[str, typer.Option("--why", help="The reason; kept with your name and the time.")]
Run = Annotated[
    str, typer.Argument(help="A run's id, as `headway status` shows it, or its beginning, or a flow run's.")
]
RunOrNewest = Annotated[
    str,
    typer.Argument(
        help="A run's id or its beginning, or a flow run's; by default the running one, or else the newest."
    ),
]
Model = Annotated[str, typer.Argument(help="Name of a registered model.")]
ModelUri = Annotated[str, typer.Argument(help="models:/NAME@champion or models:/NAME/VERSION")]
Promote = Annotated[bool, typer.Option(help="May the new model become champion?")]
Register = Annotated[bool, typer.Option(help="Register the model, and make it challenger?")]
StopAt = Annotated[
    str, typer.Option(metavar="TIME", help="Keep a checkpoint by then and end, such as 2030-01-31T06:00+01:00.")
]
StopAfter = Annotated[str, typer.Option(metavar="LENGTH", help="The same, from now: 90s, 30m, 1h30m.")]
StopAtStep = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Train to this step, keep a checkpoint and end.")
]
Label = Annotated[
    str, typer.Option("--label", "-l", help="The column to predict; guessed by its name if left out, and said.")
]
_FOUND = "found in the first lines if left out, and said."
Delimiter = Annotated[
    str,
    typer.Option(metavar="CHAR", help=f"What parts the values of delimited text, such as `;` or `tab`; {_FOUND}"),
]
Encoding = Annotated[str, typer.Option(metavar="NAME", help=f"How delimited text is written, such as cp1252; {_FOUND}")]
TimestampFormat = Annotated[
    str,
    typer.Option(
        metavar="FORMAT", help=f"How dates of delimited text are written besides ISO 8601, such as `%d.%m.%Y`; {_FOUND}"
    ),
]
SkipRows = Annotated[
    int | None,
    typer.Option(
        metavar="LINES",
        min=0,
        help=f"Lines of delimited text above the header, such as a title; {_FOUND}",
    ),
]
Null = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SPELLING",
        help="How delimited text writes a missing value, besides nothing at all, such as `?`; may be given again. "
        "Usual spellings among numbers are found, and said.",
    ),
]
Decimal = Annotated[
    str, typer.Option(metavar="MARK", help=f"What stands before a number's fraction: `.` or `,`; {_FOUND}")
]

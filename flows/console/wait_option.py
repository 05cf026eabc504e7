"""`--wait`, whose value may be left out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer
import typer.core

from headway.flows.console.stop_options import duration

if TYPE_CHECKING:
    from typer._click import Context

NAME = "--wait"
LONGEST = "3650d"
"""What `--wait` alone means: until the other has ended."""
LENGTH = re.compile(r"(\d+[dhms])+")
MEANT = re.compile(r"\d\S*")
"""What was meant for a length where the pipeline is named elsewhere: a pipeline's name may begin with a digit."""

Wait = Annotated[
    str,
    typer.Option(
        NAME,
        metavar="[=LENGTH]",
        help="Where another process works on the run: wait until it has ended, for so long at most (90s, 2h).",
    ),
]


def wait_s(wait: str) -> float | None:
    """What was asked for, in seconds; None: not to wait."""
    return duration(wait, NAME).total_seconds() if wait else None


class WaitCommand(typer.core.TyperCommand):
    """A command with that option."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_a_length(args))


def with_a_length(arguments: list[str]) -> list[str]:
    """The same arguments, with the longest wait where none is given."""
    if NAME not in arguments:
        return arguments
    at = arguments.index(NAME)
    following = arguments[at + 1 : at + 2]
    if following and (LENGTH.fullmatch(following[0]) or _is_meant(arguments, at + 1)):
        return arguments
    return [*arguments[:at], f"{NAME}={LONGEST}", *arguments[at + 1 :]]


def _is_meant(arguments: list[str], at: int) -> bool:
    """Whether what stands there cannot be the pipeline; an option's value is not taken for one either."""
    before = ["", *arguments]
    stands_alone = (
        not each.startswith("-") and not before[place].startswith("-")
        for place, each in enumerate(arguments)
        if place != at
    )
    return MEANT.fullmatch(arguments[at]) is not None and any(stands_alone)

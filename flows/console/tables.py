"""Tables for people: wrapped in a terminal alone, since whatever reads a pipe wants a line a row."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.text import Text

ANY_WIDTH = 100_000


def print_table(console: Console, table: RenderableType, *, wrapped: bool | None = None) -> None:
    """Lines end where their text ends.

    Args:
        wrapped: to the console's width; where it is a terminal, by default.
    """
    options = console.options
    if not (console.is_terminal if wrapped is None else wrapped):
        options = options.update(width=Measurement.get(console, options.update(max_width=ANY_WIDTH), table).maximum)
    for segments in console.render_lines(table, options, pad=False):
        line = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        line.rstrip()
        console.print(line, soft_wrap=True)

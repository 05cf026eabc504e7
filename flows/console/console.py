"""Rich's console, for tables and colours, to which text is text: no markup, no emoji codes, no control characters.

The only module that makes one, so that nobody has to remember to escape: a test keeps it so. What is to be bold is a
`Text` with a style.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

from headway.data_contracts.store import plain_text


class PlainConsole(Console):
    """A string is one line: line feeds are for its ends, and for a `Text`."""

    def on_broken_pipe(self) -> None:
        raise  # called within its handler; Rich would end the process with 1, which is no exit code of ours

    def render_str(self, text: str, **options: Any) -> Text:
        justify, overflow = options.get("justify"), options.get("overflow")
        return Text(plain_text.line(text), style=options.get("style", ""), justify=justify, overflow=overflow)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            # Whatever made it, such as a `Text` of somebody's: the last place before styles become escapes.
            shown = segment if segment.control else segment._replace(text=plain_text.lines(segment.text))
            # Rich carries links in styles.
            yield shown if shown.style is None or not shown.style.link else shown._replace(style=None)


ANY_WIDTH = 100_000
"""No terminal is as wide."""


def plain_console(stream: TextIO | None = None, *, stderr: bool = False, width: int | None = None) -> Console:
    """A console that wraps no line but a table's: what reads a pipe wants a line a row.

    Args:
        stream: stdout by default.
        stderr: in place of stdout, where there is no stream.
    """
    console = PlainConsole(
        file=stream, stderr=stderr, width=width, soft_wrap=True, markup=False, emoji=False, highlight=False
    )
    if console.width > ANY_WIDTH:
        console.width = ANY_WIDTH  # as COLUMNS may say: a frame of so many characters takes all memory
    return console


def headed(title: str, rest: str = "") -> Text:
    """A line that begins in bold."""
    return Text.assemble((plain_text.one_line(title), "bold"), plain_text.one_line(rest))


def print_table(console: Console, table: RenderableType, *, wrapped: bool | None = None) -> None:
    """Lines end where their text ends.

    Args:
        wrapped: to the console's width; where it is a terminal, by default.
    """
    options = console.options
    if not (console.is_terminal if wrapped is None else wrapped):
        # Rich takes a pipe for 80 columns wide, and would cut or fold what programs read.
        options = options.update(width=Measurement.get(console, options.update(max_width=ANY_WIDTH), table).maximum)
    for segments in console.render_lines(table, options, pad=False):
        line = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        line.rstrip()
        console.print(line, soft_wrap=True)

"""What a benchmark says: figures with their targets, as a table for people or one JSON object for machines."""

from __future__ import annotations

import json
import operator
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version

from rich.console import Console
from rich.table import Table

RELATIONS: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One measured value.

    Args:
        unit: such as `s`, `bytes`, or `ratio`.
        ratio_to: for a ratio, what was measured in the same run to divide by.
        target: `<= 1.7` or `>= 0.9`; empty for a figure that is only told.
    """

    name: str
    value: float
    unit: str = "ratio"
    ratio_to: str = ""
    target: str = ""

    @property
    def is_met(self) -> bool | None:
        """None without a target."""
        if not self.target:
            return None
        relation, bound = self.target.split()
        return RELATIONS[relation](self.value, float(bound))


def machine(libraries: Iterable[str]) -> dict[str, str | int]:
    """What the figures were measured on, without the machine's name."""
    found: dict[str, str | int] = {"cpus": os.cpu_count() or 1, "isa": platform.machine()}
    found["python"] = platform.python_version()
    return found | {name: version(name) for name in libraries}


def to_json(figures: Sequence[Figure], libraries: Iterable[str] = ()) -> str:
    """One object; its `figures` have name, value, unit, ratio_to and target."""
    return json.dumps({"figures": [asdict(figure) for figure in figures], "machine": machine(libraries)}, indent=1)


def show(figures: Sequence[Figure], *, title: str, as_json: bool, libraries: Iterable[str] = ()) -> None:
    """Print the table, or the JSON object alone."""
    console = Console(highlight=False, emoji=False)
    if as_json:
        console.print(to_json(figures, libraries), soft_wrap=True, markup=False)
        return
    table = Table(title=title)
    for heading in ("figure", "value", "unit", "ratio to", "target", ""):
        table.add_column(heading, justify="right" if heading == "value" else "left")
    for figure in figures:
        mark = {None: "", True: "met", False: "MISSED"}[figure.is_met]
        table.add_row(figure.name, f"{figure.value:,.4g}", figure.unit, figure.ratio_to, figure.target, mark)
    console.print(table)

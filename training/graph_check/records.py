"""What the records of an exported program may hold: one graph over tensors, and the tensors' bare bytes."""

from __future__ import annotations

import json
import re
from typing import Any

from . import values as v
from .program import check_program
from .refusal import UnsafeGraph, refuse
from .tensors import payload, reach_bytes

MAX_RECORD_JSON_BYTES = 1 << 26
PROGRAM, INPUTS = "models/model.json", "data/sample_inputs/model.pt"
TENSORS = {
    "data/weights/": ("model_weights_config.json", re.compile(r"weight_\d{1,9}")),
    "data/constants/": ("model_constants_config.json", re.compile(r"tensor_\d{1,9}")),
}
"""By folder: what describes its tensors, and the names of the records that hold their bytes."""
FIXED = {
    "archive_format": re.compile(rb"pt2"),
    "archive_version": re.compile(rb"0"),
    "byteorder": re.compile(rb"little"),
    ".data/version": re.compile(rb"\d{1,3}\n?"),
    ".data/serialization_id": re.compile(rb"\d{1,64}"),
}


def check_records(records: dict[str, memoryview]) -> None:
    """Raises `UnsafeGraph`, or any of `check.MALFORMED`."""
    needed = {PROGRAM, INPUTS, *FIXED}
    for folder, (config, names) in TENSORS.items():
        needed |= {folder + config, *_tensor_records(_json(records[folder + config]), folder, names, records)}
    if unknown := records.keys() - needed:
        raise refuse("it has a record that no graph needs", min(unknown))
    for name, pattern in FIXED.items():
        if not pattern.fullmatch(records[name]):
            raise refuse("it has a record that torch does not write", name)
    if len(records[INPUTS]):
        raise UnsafeGraph("it has example inputs, which torch unpickles")
    check_program(_json(records[PROGRAM]))


def _json(data: memoryview) -> Any:
    if len(data) > MAX_RECORD_JSON_BYTES:
        raise UnsafeGraph(f"its description has {len(data):,} bytes")
    return json.loads(bytes(data).decode())


def _tensor_records(
    config: dict[str, Any], folder: str, names: re.Pattern[str], records: dict[str, memoryview]
) -> set[str]:
    v.object_of(config=v.map_of(v.attribute_path, payload))(config)
    found = set()
    for tensor, stored in config["config"].items():
        if stored["use_pickle"] or not names.fullmatch(stored["path_name"]):
            raise refuse("a tensor is one that torch unpickles", tensor)
        name = folder + stored["path_name"]
        if reach_bytes(stored["tensor_meta"]) > len(records[name]):
            raise refuse("a tensor reaches beyond its bytes", tensor)
        found.add(name)
    return found

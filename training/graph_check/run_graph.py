"""Runs the graph of a checked archive operator by operator, as `torch.export` would, without loading it by torch.

`torch.export.load` imports torch's compiler and sympy, for two seconds of a core, to make source of the same calls of
the same operators. Here the calls are made as the archive names them. What is not plain (graphs within the graph, sizes
of inputs that are calculated, inputs in dicts) is not run here: `Unsupported`, and torch may load it.

A copy goes with every registered model. It needs torch, and what stands beside it.
"""

from __future__ import annotations

import importlib
import json
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .archive import records_of
from .check import MALFORMED
from .records import PROGRAM, TENSORS

DTYPES = {
    **{1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64, 6: torch.float16},
    **{7: torch.float32, 8: torch.float64, 10: torch.complex64, 11: torch.complex128, 12: torch.bool},
    13: torch.bfloat16,
}
"""By the number of a scalar type."""
MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
BY_PLACE, BY_NAME = 1, 2
AS_IT_IS = frozenset({"as_int", "as_bool", "as_string", "as_ints", "as_bools", "as_strings", "as_int_lists"})


class Unsupported(Exception):
    """This graph is for torch to load."""


class _Value(str):
    """The name of what an earlier node made."""

    __slots__ = ()


class _Node:
    """A call of an operator.

    Args:
        positional, named: what it is given, or the names in it of what nodes make.
        makes: names of its results; a list of names for a list of tensors, None for nothing.
    """

    def __init__(
        self, call: Callable[..., Any], positional: list[Any], named: dict[str, Any], makes: list[Any]
    ) -> None:
        self.call, self.positional, self.named, self.makes = call, positional, named, makes
        # Apart, since looking through all arguments of all calls takes as long as a small model does.
        self._plain = [(place, each) for place, each in enumerate(positional) if isinstance(each, _Value)]
        self._nested = [(place, each) for place, each in enumerate(positional) if isinstance(each, list) and _has(each)]
        self._has_named = _has(list(named.values()))
        self._only = makes[0] if len(makes) == 1 and isinstance(makes[0], str) else None

    def run(self, values: dict[str, Any]) -> None:
        arguments = self.positional.copy()
        for place, name in self._plain:
            arguments[place] = values[name]
        for place, given in self._nested:
            arguments[place] = _found(given, values)
        made = self.call(*arguments, **(_found(self.named, values) if self._has_named else self.named))
        if self._only is not None:
            values[self._only] = made
        else:
            values.update(_results(self.makes, made))


class GraphModel(nn.Module):
    """The model of an exported program whose bytes `check_graph` has let through; in evaluation mode, on the CPU.

    Raises:
        Unsupported: it has something that is not plain, or does not fit together, which torch says better.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__()
        try:
            self._read(data)
        except (*MALFORMED, RuntimeError) as error:
            raise Unsupported(f"{type(error).__name__}: {error}") from error
        self.eval()

    def _read(self, data: bytes) -> None:
        records = records_of(memoryview(data))
        described = json.loads(bytes(records[PROGRAM]))
        program, self._ranges = described["graph_module"], described["range_constraints"]
        graph, signature = program["graph"], program["signature"]
        # Of tensors that were made in inference mode operators take other kernels, with other bits.
        with torch.inference_mode(False):
            self._inputs, self._state = _inputs(signature["input_specs"], _tensors(records))
        # Who asks a model for its device looks at its parameters.
        self.weights = nn.ParameterList(value for value in self._state.values() if isinstance(value, nn.Parameter))
        self._expected = {name: graph["tensor_values"][name]["sizes"] for name in self._inputs}
        for size in (each for sizes in self._expected.values() for each in sizes if "as_int" not in each):
            _symbol(size["as_expr"]["expr_str"])
        (call,) = [each["signature"] for each in program["module_call_graph"] if not each["fqn"]]
        _require_positional(call["in_spec"], len(self._inputs))
        self._outputs = [_argument(_user_output(spec)) for spec in signature["output_specs"]]
        self._answer = _answer(call["out_spec"], len(self._outputs))
        self._nodes = [_node(node) for node in graph["nodes"]]
        # Freed when nothing reads them any more, or all activations would be kept to the end.
        self._last_reads = _last_reads(self._nodes, self._outputs)
        _require_known([*self._inputs, *self._state], self._nodes, self._outputs)

    def forward(self, *given: Tensor) -> Any:
        """Raises `ValueError`: other inputs than it was exported for."""
        self._require_inputs(given)
        values: dict[str, Any] = {**self._state, **dict(zip(self._inputs, given, strict=True))}
        for node, over in zip(self._nodes, self._last_reads, strict=True):
            node.run(values)
            for name in over:
                del values[name]
        return self._answer([_found(each, values) for each in self._outputs])

    def _require_inputs(self, given: Sequence[Tensor]) -> None:
        if len(given) != len(self._inputs):
            raise ValueError(f"it takes {len(self._inputs)} tensors, and is given {len(given)}")
        symbols: dict[str, int] = {}
        for name, tensor in zip(self._inputs, given, strict=True):
            sizes = self._expected[name]
            if len(sizes) != tensor.dim():
                raise ValueError(f"input {name} has {len(sizes)} dimensions, and is given {tensor.dim()}")
            for dim, (expected, size) in enumerate(zip(sizes, tensor.shape, strict=True)):
                self._require_size(f"dimension {dim} of input {name}", expected, size, symbols)

    def _require_size(self, what: str, expected: Mapping[str, Any], size: int, symbols: dict[str, int]) -> None:
        if "as_int" in expected:
            least = most = expected["as_int"]
        else:
            symbol = expected["as_expr"]["expr_str"]
            bounds = self._ranges.get(_symbol(symbol), {})
            # torch calls a size that may be anything 2 at the least, and takes 0 and 1 all the same.
            least, most = bounds.get("min_val") or 0, bounds.get("max_val") or math.inf
            least = least if least > 2 else 0
            if symbols.setdefault(symbol, size) != size:
                least = most = symbols[symbol]
        if not least <= size <= most:
            message = f"{least}" if least == most else f"at least {least}" if most == math.inf else f"{least} to {most}"
            raise ValueError(f"{what} is {message}, and is given {size}")


def _symbol(expression: str) -> str:
    """Of the expression of one symbol alone."""
    begin, _, rest = expression.partition("'")
    if begin != "Symbol(" or not rest:
        raise Unsupported("a size that is calculated")
    return rest.partition("'")[0]


def _inputs(specs: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> tuple[list[str], dict[str, Tensor]]:
    """The names of what is given, and what the graph brings along, by name."""
    given, state = [], {}
    for spec in specs:
        ((kind, content),) = spec.items()
        if kind == "user_input" and "as_tensor" in content["arg"]:
            given.append(content["arg"]["as_tensor"]["name"])
        elif kind in ("parameter", "buffer", "tensor_constant"):
            state[content["arg"]["name"]] = tensors[content[f"{kind}_name"]]
        else:
            raise Unsupported(f"an input of kind {kind}")
    return given, state


def _tensors(records: Mapping[str, memoryview]) -> dict[str, Tensor]:
    """By the paths of their attributes. Those that share bytes share memory."""
    found: dict[str, Tensor] = {}
    for folder, (config, _) in TENSORS.items():
        memory: dict[str, Tensor] = {}
        for name, stored in json.loads(bytes(records[folder + config]))["config"].items():
            described, path = stored["tensor_meta"], stored["path_name"]
            if described["dtype"] not in DTYPES:
                raise Unsupported(f"scalar type {described['dtype']}")
            if path not in memory:
                # Copied to where torch would allocate it: by how memory is aligned kernels choose the order of sums.
                raw = bytearray(records[folder + path])
                memory[path] = torch.frombuffer(raw, dtype=torch.uint8).clone() if raw else torch.empty(0)
            dtype = DTYPES[described["dtype"]]
            sizes, strides = ([each["as_int"] for each in described[what]] for what in ("sizes", "strides"))
            value = (
                torch.empty(sizes, dtype=dtype)
                if 0 in sizes
                else memory[path].view(dtype).as_strided(sizes, strides, described["storage_offset"]["as_int"])
            )
            # Which kernel an operator takes depends on it, also where no gradient is wanted.
            found[name] = nn.Parameter(value, requires_grad=described["requires_grad"]) if stored["is_param"] else value
    return found


def _node(node: Mapping[str, Any]) -> _Node:
    call = _operator(node["target"])
    makes = [_made(each) for each in node["outputs"]]
    positional, named = [], {}
    for each in node["inputs"]:
        if each["kind"] == BY_PLACE:
            positional.append(_argument(each["arg"]))
        elif each["kind"] == BY_NAME:
            named[each["name"]] = _argument(each["arg"])
        else:
            raise Unsupported("an argument that says not how it is given")
    return _Node(call, positional, named, makes)


def _operator(target: str) -> Callable[..., Any]:
    """One that `check_graph` has let through."""
    if target.startswith("torch.ops.aten."):
        packet, _, overload = target.removeprefix("torch.ops.aten.").partition(".")
        found: Callable[..., Any] = getattr(getattr(torch.ops.aten, packet), overload)
        return found
    if target.startswith("_operator."):
        return getattr(operator, target.removeprefix("_operator."))  # type: ignore[no-any-return]
    if target.startswith("math."):
        return getattr(importlib.import_module("math"), target.removeprefix("math."))  # type: ignore[no-any-return]
    raise Unsupported(target)


def _argument(given: Mapping[str, Any]) -> Any:
    """A value, or the names in it of what nodes make."""
    ((kind, content),) = given.items()
    if kind in AS_IT_IS:
        return content
    if kind not in _READ:
        raise Unsupported(kind)
    return _READ[kind](content)


def _size(given: Mapping[str, Any]) -> Any:
    return _Value(given["as_name"]) if "as_name" in given else next(iter(given.values()))


_READ: dict[str, Callable[[Any], Any]] = {
    "as_none": lambda _: None,
    "as_tensor": lambda content: _Value(content["name"]),
    "as_tensors": lambda content: [_Value(each["name"]) for each in content],
    "as_float": float,
    "as_floats": lambda content: [float(each) for each in content],
    "as_sym_int": _size,
    "as_sym_ints": lambda content: [_size(each) for each in content],
    "as_sym_bool": _size,
    "as_scalar_type": lambda content: _known(DTYPES, content),
    "as_memory_format": lambda content: _known(MEMORY_FORMATS, content),
    "as_layout": lambda _: torch.strided,
    "as_device": lambda content: torch.device(content["type"]),
    "as_optional_tensor": _argument,
    "as_optional_tensors": lambda content: [_argument(each) for each in content],
}


def _known(values: Mapping[int, Any], number: int) -> Any:
    if number not in values:
        raise Unsupported(f"scalar type {number}")
    return values[number]


def _made(output: Mapping[str, Any]) -> Any:
    """The name of what a node makes, or names of a list; None where it makes nothing."""
    ((kind, content),) = output.items()
    if kind == "as_tensor":
        return content["name"]
    if kind == "as_tensors":
        return [each["name"] for each in content]
    if kind in ("as_sym_int", "as_sym_bool") and "as_name" in content:
        return content["as_name"]
    if kind == "as_none":
        return None
    raise Unsupported(f"an output of kind {kind}")


def _results(makes: Sequence[Any], made: Any) -> Iterator[tuple[str, Any]]:
    values = (made,) if len(makes) == 1 else made
    for name, value in zip(makes, values, strict=True) if makes else ():
        if isinstance(name, list):
            yield from zip(name, value, strict=True)
        elif name is not None:
            yield name, value


def _found(given: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(given, _Value):
        return values[given]
    if isinstance(given, list):
        return [_found(each, values) for each in given]
    return {name: _found(each, values) for name, each in given.items()} if isinstance(given, dict) else given


def _has(given: Any) -> bool:
    """Whether anything in it is what a node makes."""
    return next(_names_in(given), None) is not None


def _names_in(given: Any) -> Iterator[str]:
    if isinstance(given, _Value):
        yield given
    elif isinstance(given, list):
        for each in given:
            yield from _names_in(each)
    elif isinstance(given, dict):
        yield from _names_in(list(given.values()))


def _require_known(given: Iterable[str], nodes: Sequence[_Node], outputs: Sequence[Any]) -> None:
    """Raises `Unsupported`: something is read that nobody has made by then."""
    known = set(given)
    for node in nodes:
        if unknown := {*_names_in(node.positional), *_names_in(node.named)} - known:
            raise Unsupported(f"{min(unknown)} is read before it is made")
        known.update(_made_by(node))
    if unknown := set(_names_in(list(outputs))) - known:
        raise Unsupported(f"{min(unknown)} is handed out and never made")


def _last_reads(nodes: Sequence[_Node], outputs: Sequence[Any]) -> list[list[str]]:
    """After each node, what nodes have made and nobody reads any more."""
    made = {name for node in nodes for name in _made_by(node)}
    needed = set(_names_in(list(outputs)))
    over: list[list[str]] = []
    for node in reversed(nodes):
        read = {*_names_in(node.positional), *_names_in(node.named), *_made_by(node)} & made
        over.append(sorted(read - needed))
        needed |= read
    return over[::-1]


def _made_by(node: _Node) -> Iterator[str]:
    for each in node.makes:
        yield from each if isinstance(each, list) else [] if each is None else [each]


def _user_output(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    ((kind, content),) = spec.items()
    if kind != "user_output":
        raise Unsupported(f"an output of kind {kind}")
    found: Mapping[str, Any] = content["arg"]
    return found


def _require_positional(text: str, num_inputs: int) -> None:
    """Tensors one after another, and none by name."""
    _, spec = json.loads(text)
    arguments, named = spec["children_spec"]
    kinds = [child["type"] for child in arguments["children_spec"]]
    if kinds != [None] * num_inputs or named["children_spec"]:
        raise Unsupported("inputs in lists, or by name")


def _answer(text: str, num_outputs: int) -> Callable[[list[Any]], Any]:
    _, spec = json.loads(text)
    if spec["type"] is None and num_outputs == 1:
        return lambda made: made[0]
    if spec["type"] == "builtins.tuple" and [each["type"] for each in spec["children_spec"]] == [None] * num_outputs:
        return tuple
    raise Unsupported("outputs in lists or dicts")

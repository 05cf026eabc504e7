"""What the records of an exported program may hold: one graph over tensors, and the tensors' bare bytes.

The schema is that of `torch/_export/serde/schema.py`, each object with exactly its fields. Names become variables,
attributes and arguments in source that torch compiles: they are identifiers. Operators are looked up by path: they are
tensor operators of torch's own, or arithmetic on sizes.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable
from typing import Any

from .expressions import SYMBOL, check_expression
from .refusal import UnsafeGraph, refuse

Check = Callable[[Any], None]
"""Raises `UnsafeGraph`, or what parsing something else runs into (`check.MALFORMED`)."""

# Records.

MOST_JSON_BYTES = 1 << 26
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
    _program(_json(records[PROGRAM]))


def _json(data: memoryview) -> Any:
    if len(data) > MOST_JSON_BYTES:
        raise UnsafeGraph(f"its description has {len(data):,} bytes")
    return json.loads(bytes(data).decode())


def _tensor_records(
    config: dict[str, Any], folder: str, names: re.Pattern[str], records: dict[str, memoryview]
) -> set[str]:
    _object(config=_map(_attribute, _payload))(config)
    found = set()
    for tensor, payload in config["config"].items():
        if payload["use_pickle"] or not names.fullmatch(payload["path_name"]):
            raise refuse("a tensor is one that torch unpickles", tensor)
        name = folder + payload["path_name"]
        if _reach_bytes(payload["tensor_meta"]) > len(records[name]):
            raise refuse("a tensor reaches beyond its bytes", tensor)
        found.add(name)
    return found


def _reach_bytes(meta: dict[str, Any]) -> int:
    """How many bytes the tensor needs; one of no elements none."""
    sizes, strides, (first,) = (
        [each["as_int"] for each in dims] for dims in (meta["sizes"], meta["strides"], [meta["storage_offset"]])
    )
    if min([first, *sizes, *strides]) < 0:
        raise refuse("a tensor has a negative size", sizes)
    last = first + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return 0 if 0 in sizes else (last + 1) * ITEM_BYTES[meta["dtype"]]


# Values.

ITEM_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 4, 10: 8, 11: 16, 12: 1, 13: 2, 28: 2}
ITEM_BYTES |= {29: 1, 30: 1, 31: 1, 32: 1, 33: 1, 34: 4, 35: 8}
"""By the number of a scalar type."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,500}")
PART = re.compile(r"[A-Za-z0-9_]{1,500}")
CALL_NUMBER = re.compile(r"@\d{1,6}$")
DEVICE = re.compile(r"[a-z]{1,16}")
SPECIAL_FLOATS = ("Infinity", "-Infinity", "NaN")
MOST_CHARACTERS = 100_000


def _name(value: str) -> None:
    """A variable or an argument in source that torch compiles."""
    if not NAME.fullmatch(value) or keyword.iskeyword(value):
        raise refuse("a name is no identifier", value)


def _attribute(value: str) -> None:
    """A path of attributes in source that torch compiles."""
    if not all(PART.fullmatch(part) and not part.startswith("__") for part in value.split(".")):
        raise refuse("a name is no path of attributes", value)


def _module(value: str) -> None:
    if value:
        _attribute(CALL_NUMBER.sub("", value))


def _text(value: str) -> None:
    """Remains a string whatever torch does with it."""
    if not isinstance(value, str) or len(value) > MOST_CHARACTERS:
        raise refuse("it has no text where one belongs", value)


def _bool(value: bool) -> None:
    if not isinstance(value, bool):
        raise refuse("it has no truth value where one belongs", value)


def _int(value: int) -> None:
    if type(value) is not int or abs(value) >= 1 << 64:
        raise refuse("it has no whole number where one belongs", value)


def _float(value: float | str) -> None:
    if type(value) not in (int, float) and value not in SPECIAL_FLOATS:
        raise refuse("it has no number where one belongs", value)


def _symbol(value: str) -> None:
    if not SYMBOL.fullmatch(value):
        raise refuse("a symbol is none that torch makes", value)


def _empty(value: object) -> None:
    if value not in ([], {}):
        raise refuse("it has what torch would run, import or unpickle", value)


def _in(*values: object) -> Check:
    def check(value: object) -> None:
        if value not in values or isinstance(value, bool):
            raise refuse("it has a value that torch does not write", value)

    return check


def _list(check_item: Check) -> Check:
    def check(value: list[Any]) -> None:
        if not isinstance(value, list):
            raise refuse("it has no list where one belongs", value)
        for item in value:
            check_item(item)

    return check


def _map(check_key: Check, check_value: Check) -> Check:
    def check(value: dict[str, Any]) -> None:
        for key, each in value.items():
            check_key(key)
            check_value(each)

    return check


def _optional(check_value: Check) -> Check:
    def check(value: Any) -> None:
        if value is not None:
            check_value(value)

    return check


def _object(**fields: Check) -> Check:
    """Of exactly these fields."""

    def check(value: dict[str, Any]) -> None:
        if value.keys() != fields.keys():
            raise refuse("an object has other fields than in torch 2.13", sorted(value))
        for name, check_field in fields.items():
            check_field(value[name])

    return check


def _one_of(**kinds: Check) -> Check:
    """An object of one of these fields."""

    def check(value: dict[str, Any]) -> None:
        ((kind, content),) = value.items()
        if kind not in kinds:
            raise refuse("it has a kind of value that no graph of tensors needs", kind)
        kinds[kind](content)

    return check


# Operators.

ARITHMETIC = {
    *(f"_operator.{name}" for name in ("eq", "ne", "le", "ge", "lt", "gt", "neg", "pos", "mul", "add", "sub", "mod")),
    *(f"_operator.{name}" for name in ("floordiv", "truediv", "pow", "and_", "or_", "lshift", "rshift", "getitem")),
    *(f"torch.sym_{name}" for name in ("not", "int", "float", "ite", "max", "min")),
    *("torch._sym_sqrt", "torch.sym_sqrt", "math.trunc", "math.floor", "math.ceil", "math.sqrt"),
}
OPERATOR = re.compile(r"torch\.ops\.(aten|prims)\.([A-Za-z_][A-Za-z0-9_]*)\.([A-Za-z][A-Za-z0-9_]*)")
BY_SIGN = re.compile(r"__i?(and|or|xor|lshift|rshift)__")
"""The only operators of torch whose names look like Python's own attributes."""
REFUSED = re.compile(
    # Files, and what ends or talks to the process.
    r"from_file|save|warn|_?print|_?wait\w*|record_stream"
    # Sparse and nested tensors: their operators trust indices that stand in the graph, and reach outside of memory.
    r"|.*(sparse|nested|jagged|ragged|coo|csr|csc|bsr|bsc|unsafe|indices_copy|crow|ccol|resize|unchecked).*(?<!_unsafe_view)"
    # Views of storage, given by numbers.
    r"|set_|set|data|_set\w*"
    # Of a namespace of torch's, and no operators.
    r"|name|_dir|op|default|overloads|format|percentFormat|list|append"
)
"""Names of operators that no graph of a model needs, and that do more than arithmetic within their tensors."""
HIGHER_ORDER = {
    f"torch.ops.higher_order.{name}"
    for name in ("cond", "while_loop", "scan", "map_impl", "associative_scan", "wrap_with_set_grad_enabled")
} | {"torch.ops.higher_order.wrap_with_autocast"}


def _operator(target: str) -> None:
    found = OPERATOR.fullmatch(target)
    if found is None:
        is_known = target in ARITHMETIC | HIGHER_ORDER
    else:
        is_known = not REFUSED.fullmatch(found[2]) and (
            not found[2].startswith("__") or bool(BY_SIGN.fullmatch(found[2]))
        )
    if not is_known:
        raise refuse("it calls what is no operator on tensors", target)


# Tensors and sizes.

_hint = _one_of(as_int=_int, as_bool=_bool, as_float=_float)
_expression = _object(expr_str=check_expression, hint=_optional(_hint))
_sym_int = _one_of(as_expr=_expression, as_int=_int)
_device = _object(type=lambda value: None if DEVICE.fullmatch(value) else _empty(value), index=_optional(_int))


def _meta(check_size: Check) -> Check:
    return _object(
        dtype=_in(*ITEM_BYTES),
        sizes=_list(check_size),
        requires_grad=_bool,
        device=_device,
        strides=_list(check_size),
        storage_offset=check_size,
        layout=_in(7),
    )


_payload = _object(path_name=_text, is_param=_bool, use_pickle=_bool, tensor_meta=_meta(_one_of(as_int=_int)))
_tensor = _object(name=_name)
_int_argument = _one_of(as_name=_name, as_int=_int)
_float_argument = _one_of(as_name=_name, as_float=_float)
_bool_argument = _one_of(as_name=_name, as_bool=_bool)
_optional_tensor = _one_of(as_tensor=_tensor, as_none=_bool)
SCALARS: dict[str, Check] = {
    "as_none": _bool,
    "as_tensor": _tensor,
    "as_int": _int,
    "as_float": _float,
    "as_bool": _bool,
    "as_string": _text,
    "as_sym_int": _int_argument,
    "as_sym_float": _float_argument,
    "as_sym_bool": _bool_argument,
}
_argument = _one_of(
    **SCALARS,
    as_tensors=_list(_tensor),
    as_ints=_list(_int),
    as_floats=_list(_float),
    as_strings=_list(_text),
    as_bools=_list(_bool),
    as_sym_ints=_list(_int_argument),
    as_sym_floats=_list(_float_argument),
    as_sym_bools=_list(_bool_argument),
    as_scalar_type=_in(*ITEM_BYTES),
    as_memory_format=_in(1, 2, 3, 4),
    as_layout=_in(7),
    as_device=_device,
    as_graph=lambda value: _check_subgraph(value),
    as_optional_tensors=_list(_optional_tensor),
    as_optional_tensor=_optional_tensor,
    as_complex=_object(real=_float, imag=_float),
    as_nested_tensors=_list(_list(_tensor)),
    as_int_lists=_list(_list(_int)),
    as_float_lists=_list(_list(_float)),
    as_operator=_operator,
)

# The graph.

_node = _object(
    target=_operator,
    inputs=_list(
        _object(name=lambda value: _name(value) if value else None, arg=_argument, kind=_optional(_in(0, 1, 2)))
    ),
    outputs=_list(_argument),
    # torch looks nothing up that these two say.
    metadata=_map(_in("nn_module_stack", "torch_fn"), _text),
    is_hop_single_tensor_return=_optional(_bool),
    name=_optional(_name),
)
_graph = _object(
    inputs=_list(_one_of(**SCALARS)),
    outputs=_list(_one_of(**SCALARS)),
    nodes=_list(_node),
    tensor_values=_map(_name, _meta(_sym_int)),
    sym_int_values=_map(_name, _sym_int),
    sym_bool_values=_map(_name, _one_of(as_expr=_expression, as_bool=_bool)),
    is_single_tensor_return=_bool,
    custom_obj_values=_empty,
    sym_float_values=_map(_name, _one_of(as_expr=_expression, as_float=_float)),
)
_subgraph = _object(name=_name, graph=_graph)


def _check_subgraph(value: dict[str, Any]) -> None:
    _subgraph(value)


# What goes in and out.

MOST_NESTED = 16


def _tree(text: str) -> None:
    """A shape of tuples, lists and dicts; torch would import what another one names."""
    version, spec = json.loads(text)
    if version != 1:
        raise refuse("a tree spec is of another version", version)
    _subtree(spec, MOST_NESTED)


def _subtree(spec: dict[str, Any], depth: int) -> None:
    _object(type=_optional(_text), context=_optional(_text), children_spec=_list(lambda value: None))(spec)
    kind, context, children = spec["type"], spec["context"], spec["children_spec"]
    if depth < 0 or kind not in (None, "builtins.tuple", "builtins.list", "builtins.dict"):
        raise refuse("a tree spec is of something else than tuples, lists and dicts", kind)
    if kind == "builtins.dict":
        _list(_name)(json.loads(context))
    elif context != (None if kind is None else "null"):
        raise refuse("a tree spec has a context that torch does not write", context)
    for child in children:
        _subtree(child, depth - 1)


_signature = _object(
    input_specs=_list(
        _one_of(
            user_input=_object(arg=_one_of(**SCALARS)),
            parameter=_object(arg=_tensor, parameter_name=_attribute),
            buffer=_object(arg=_tensor, buffer_name=_attribute, persistent=_bool),
            tensor_constant=_object(arg=_tensor, tensor_constant_name=_attribute),
            constant_input=_object(
                name=_name,
                value=_one_of(as_none=_bool, as_int=_int, as_float=_float, as_string=_text, as_bool=_bool),
            ),
        )
    ),
    output_specs=_list(
        _one_of(
            user_output=_object(arg=_one_of(**SCALARS)),
            loss_output=_object(arg=_tensor),
            buffer_mutation=_object(arg=_tensor, buffer_name=_attribute),
            parameter_mutation=_object(arg=_tensor, parameter_name=_attribute),
            user_input_mutation=_object(arg=_tensor, user_input_name=_name),
        )
    ),
)
_call = _object(
    inputs=_list(_one_of(**SCALARS)),
    outputs=_list(_one_of(**SCALARS)),
    in_spec=_tree,
    out_spec=_tree,
    forward_arg_names=_optional(_list(_name)),
)
_program = _object(
    graph_module=_object(
        graph=_graph,
        signature=_signature,
        module_call_graph=_list(_object(fqn=_module, signature=_optional(_call))),
        metadata=_empty,
        treespec_namedtuple_fields=_empty,
    ),
    opset_version=_map(_name, _int),
    range_constraints=_map(_symbol, _object(min_val=_optional(_int), max_val=_optional(_int))),
    schema_version=_object(major=_in(8), minor=_int),
    verifiers=_list(_in("TRAINING", "ATEN")),
    torch_version=_text,
    # torch executes them where there are example inputs.
    guards_code=_empty,
)

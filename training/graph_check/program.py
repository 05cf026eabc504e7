"""The schema of a graph, as of `torch/_export/serde/schema.py`: each object with exactly its fields."""

from __future__ import annotations

import json
from typing import Any

from . import values as v
from .operators import require_operator
from .refusal import refuse
from .tensors import ITEM_BYTES, device, meta, size_expression, sym_int

# Arguments.

_tensor = v.object_of(name=v.name)
_int_argument = v.one_of(as_name=v.name, as_int=v.whole_number)
_float_argument = v.one_of(as_name=v.name, as_float=v.number)
_bool_argument = v.one_of(as_name=v.name, as_bool=v.boolean)
_optional_tensor = v.one_of(as_tensor=_tensor, as_none=v.boolean)
SCALARS: dict[str, v.Check] = {
    "as_none": v.boolean,
    "as_tensor": _tensor,
    "as_int": v.whole_number,
    "as_float": v.number,
    "as_bool": v.boolean,
    "as_string": v.text,
    "as_sym_int": _int_argument,
    "as_sym_float": _float_argument,
    "as_sym_bool": _bool_argument,
}
_argument = v.one_of(
    **SCALARS,
    as_tensors=v.list_of(_tensor),
    as_ints=v.list_of(v.whole_number),
    as_floats=v.list_of(v.number),
    as_strings=v.list_of(v.text),
    as_bools=v.list_of(v.boolean),
    as_sym_ints=v.list_of(_int_argument),
    as_sym_floats=v.list_of(_float_argument),
    as_sym_bools=v.list_of(_bool_argument),
    as_scalar_type=v.one_value_of(*ITEM_BYTES),
    as_memory_format=v.one_value_of(1, 2, 3, 4),
    as_layout=v.one_value_of(7),
    as_device=device,
    as_graph=lambda value: _check_subgraph(value),
    as_optional_tensors=v.list_of(_optional_tensor),
    as_optional_tensor=_optional_tensor,
    as_complex=v.object_of(real=v.number, imag=v.number),
    as_nested_tensors=v.list_of(v.list_of(_tensor)),
    as_int_lists=v.list_of(v.list_of(v.whole_number)),
    as_float_lists=v.list_of(v.list_of(v.number)),
    as_operator=require_operator,
)


# The graph.

_node = v.object_of(
    target=require_operator,
    inputs=v.list_of(
        v.object_of(
            name=lambda value: v.name(value) if value else None, arg=_argument, kind=v.optional(v.one_value_of(0, 1, 2))
        )
    ),
    outputs=v.list_of(_argument),
    # torch looks nothing up that these two say.
    metadata=v.map_of(v.one_value_of("nn_module_stack", "torch_fn"), v.text),
    is_hop_single_tensor_return=v.optional(v.boolean),
    name=v.optional(v.name),
)
_graph = v.object_of(
    inputs=v.list_of(v.one_of(**SCALARS)),
    outputs=v.list_of(v.one_of(**SCALARS)),
    nodes=v.list_of(_node),
    tensor_values=v.map_of(v.name, meta(sym_int)),
    sym_int_values=v.map_of(v.name, sym_int),
    sym_bool_values=v.map_of(v.name, v.one_of(as_expr=size_expression, as_bool=v.boolean)),
    is_single_tensor_return=v.boolean,
    custom_obj_values=v.empty,
    sym_float_values=v.map_of(v.name, v.one_of(as_expr=size_expression, as_float=v.number)),
)
_subgraph = v.object_of(name=v.name, graph=_graph)


def _check_subgraph(value: dict[str, Any]) -> None:
    _subgraph(value)


# What goes in and out.

MAX_NESTED = 16


def _tree(text: str) -> None:
    """A shape of tuples, lists and dicts; torch would import what another one names."""
    version, spec = json.loads(text)
    if version != 1:
        raise refuse("a tree spec is of another version", version)
    _subtree(spec, MAX_NESTED)


def _subtree(spec: dict[str, Any], depth: int) -> None:
    v.object_of(type=v.optional(v.text), context=v.optional(v.text), children_spec=v.list_of(lambda value: None))(spec)
    kind, context, children = spec["type"], spec["context"], spec["children_spec"]
    if depth < 0 or kind not in (None, "builtins.tuple", "builtins.list", "builtins.dict"):
        raise refuse("a tree spec is of something else than tuples, lists and dicts", kind)
    if kind == "builtins.dict":
        v.list_of(v.name)(json.loads(context))
    elif context != (None if kind is None else "null"):
        raise refuse("a tree spec has a context that torch does not write", context)
    for child in children:
        _subtree(child, depth - 1)


_signature = v.object_of(
    input_specs=v.list_of(
        v.one_of(
            user_input=v.object_of(arg=v.one_of(**SCALARS)),
            parameter=v.object_of(arg=_tensor, parameter_name=v.attribute_path),
            buffer=v.object_of(arg=_tensor, buffer_name=v.attribute_path, persistent=v.boolean),
            tensor_constant=v.object_of(arg=_tensor, tensor_constant_name=v.attribute_path),
            constant_input=v.object_of(
                name=v.name,
                value=v.one_of(
                    as_none=v.boolean, as_int=v.whole_number, as_float=v.number, as_string=v.text, as_bool=v.boolean
                ),
            ),
        )
    ),
    output_specs=v.list_of(
        v.one_of(
            user_output=v.object_of(arg=v.one_of(**SCALARS)),
            loss_output=v.object_of(arg=_tensor),
            buffer_mutation=v.object_of(arg=_tensor, buffer_name=v.attribute_path),
            parameter_mutation=v.object_of(arg=_tensor, parameter_name=v.attribute_path),
            user_input_mutation=v.object_of(arg=_tensor, user_input_name=v.name),
        )
    ),
)
_call = v.object_of(
    inputs=v.list_of(v.one_of(**SCALARS)),
    outputs=v.list_of(v.one_of(**SCALARS)),
    in_spec=_tree,
    out_spec=_tree,
    forward_arg_names=v.optional(v.list_of(v.name)),
)
check_program = v.object_of(
    graph_module=v.object_of(
        graph=_graph,
        signature=_signature,
        module_call_graph=v.list_of(v.object_of(fqn=v.module_path, signature=v.optional(_call))),
        metadata=v.empty,
        treespec_namedtuple_fields=v.empty,
    ),
    opset_version=v.map_of(v.name, v.whole_number),
    range_constraints=v.map_of(
        v.symbol, v.object_of(min_val=v.optional(v.whole_number), max_val=v.optional(v.whole_number))
    ),
    schema_version=v.object_of(major=v.one_value_of(8), minor=v.whole_number),
    verifiers=v.list_of(v.one_value_of("TRAINING", "ATEN")),
    torch_version=v.text,
    # torch executes them where there are example inputs.
    guards_code=v.empty,
)

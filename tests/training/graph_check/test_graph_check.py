"""An exported program that could run code is refused before torch sees it; every graph that Headway writes passes."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
import torch.utils._sympy.functions
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.training.graph_check.check import check_graph, check_graph_file
from headway.training.graph_check.expressions import check_expression
from headway.training.graph_check.refusal import UnsafeGraph
from headway.training.programs.export import GRAPH, write_graph
from tests.training.graph_check.altered_graphs import (
    ON_LOADING,
    PROGRAM,
    WEIGHTS,
    Records,
    altered,
    edit,
    records_of,
    write,
)


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns, _ = x.shape
        masked = (self.mask[:columns, :columns] @ x).masked_fill(x < 0, float("-inf")).relu()
        return self.linear(masked.reshape(rows * columns, 4)).reshape(rows, columns, 3)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    write_graph(Small().eval(), torch.zeros(2, 5, 4), folder)
    return folder / GRAPH


def test_a_graph_that_headway_writes_passes_and_is_the_model(graph: Path) -> None:
    check_graph_file(graph)
    check_graph(graph.read_bytes())
    assert torch.export.load(graph).module()(torch.zeros(3, 2, 4)).shape == (3, 2, 3)


@pytest.mark.parametrize("attack", ON_LOADING)
def test_what_runs_code_in_torch_is_refused_before(
    graph: Path, tmp_path: Path, attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    marker = tmp_path / "marker"
    bad = altered(graph, ON_LOADING[attack], marker, tmp_path / "bad.pt2")
    with pytest.raises(UnsafeGraph) as refused:
        check_graph_file(bad)
    assert len(str(refused.value)) < 300
    assert not marker.exists()
    # The attack is one: torch, which is shown what was refused, runs it.
    with contextlib.suppress(Exception):
        torch.export.load(bad).module()(torch.zeros(2, 5, 4))
    assert marker.read_text() == "ran"
    sys.modules.pop("imported_by_tree_spec", None)


def change(name: str, **into: Any) -> Callable[[Records], None]:
    """Put values at paths (`a__b__0`) of a record's JSON."""

    def put(value: Any) -> None:
        for path, new in into.items():
            *parents, last = (int(part) if part.isdigit() else part for part in path.split("__"))
            at = value
            for part in parents:
                at = at[part]
            at[last] = new

    return lambda records: edit(records, name, put)


def add(**files: bytes) -> Callable[[Records], None]:
    return lambda records: records.update({name.replace("__", "/"): data for name, data in files.items()})


FIRST_NODE = "graph_module__graph__nodes__0"
TARGETS = (
    *("torch.serialization.os.system", "torch.ops.load_library", "torch.ops.load_library.__self__.load_library"),
    *("torch.ops.import_module.x.y", "torch.ops.aten.from_file.default", "torch.ops.aten.save.default"),
    *("torch.ops.image.write_file.default", "torch.ops.higher_order.call_torchbind", "_operator.methodcaller"),
    *("_operator.attrgetter", "math.__loader__", "#other:op", "torch.hub.load", "torch.ops.aten.add.__class__"),
    *("torch.ops.aten.__class__.mro", "torch.ops.aten.add.Tensor.__init__", "torch.ops.aten._dir.__class__"),
    *("torch.ops.aten._sparse_csr_tensor_unsafe.default", "torch.ops.aten._sparse_coo_tensor_unsafe.default"),
    *("torch.ops.aten._nested_view_from_buffer.default", "torch.ops.aten.set_.source_Storage_storage_offset"),
    *("torch.ops.aten.resize_.default", "torch.ops.aten._print.default", "torch.ops.aten.warn.default"),
    *("torch.ops.aten.name.format", "torch.ops.aten._dir.append", "torch.ops.aten.segment_reduce.default"),
    *("torch.ops.aten.empty.memory_format", "torch.ops.aten.linalg_lu_solve.default", "torch.ops.aten.rand.default"),
    *("torch.ops.aten.fbgemm_pack_gemm_matrix_fp16.default", "torch.ops.prims.as_strided.default"),
    *("torch.ops.aten.add.out", "torch.ops.aten.lift_from_tomorrow.default"),
)
CHANGES = {
    "library": add(data__aotinductor__model__model=b"\x7fELF"),
    "another program": add(**{"models__other.json": b"{}"}),
    "extra file": add(**{"extra__a": b""}),
    "record beyond need": add(data__weights__weight_9=b"1234"),
    "guards": change(PROGRAM, guards_code=["print('hi')"]),
    "metadata": change(PROGRAM, graph_module__metadata={"custom": "{}"}),
    "node metadata": change(PROGRAM, **{f"{FIRST_NODE}__metadata": {"source_fn_stack": "a,torch.hub.load"}}),
    "custom object": change(PROGRAM, graph_module__graph__custom_obj_values={"a": {"name": "a", "class_fqn": "b"}}),
    "custom argument": change(
        PROGRAM, **{f"{FIRST_NODE}__inputs__0__arg": {"as_custom_obj": {"name": "a", "class_fqn": "b"}}}
    ),
    "unknown field": change(PROGRAM, later=1),
    "keyword as name": change(PROGRAM, **{f"{FIRST_NODE}__name": "lambda"}),
    "argument name": change(PROGRAM, graph_module__module_call_graph__0__signature__forward_arg_names=["x=print()"]),
    "dunder parameter": change(PROGRAM, graph_module__signature__input_specs__0__parameter__parameter_name="__class__"),
    "endless counter": change(PROGRAM, range_constraints={"u99999999999": {"min_val": 0, "max_val": None}}),
    "number without end": change(PROGRAM, range_constraints={"s1": {"min_val": 0, "max_val": 1 << 70}}),
    "dialect": change(PROGRAM, verifiers=["EDGE"]),
    "tensor beyond its bytes": change(WEIGHTS, **{"config__linear.weight__tensor_meta__sizes__0": {"as_int": 1 << 40}}),
    "a few bytes for 10^24 elements": change(
        WEIGHTS,
        **{
            "config__linear.weight__tensor_meta__sizes": [{"as_int": 10**12}] * 2,
            "config__linear.weight__tensor_meta__strides": [{"as_int": 0}] * 2,
        },
    ),
    "negative stride": change(WEIGHTS, **{"config__linear.weight__tensor_meta__strides__0": {"as_int": -4}}),
    "path of a weight": change(WEIGHTS, **{"config__linear.weight__path_name": "../../models/model.json"}),
    "deep JSON": lambda records: records.update({PROGRAM: b"[" * 100_000}),
    "no JSON": lambda records: records.update({PROGRAM: b"\xff"}),
    "no program": lambda records: records.pop(PROGRAM) and None,
    "format": lambda records: records.update({"archive_format": b"pt3"}),
    **{f"operator {target}": change(PROGRAM, **{f"{FIRST_NODE}__target": target}) for target in TARGETS},
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_no_graph_of_tensors_needs_is_refused(graph: Path, tmp_path: Path, name: str) -> None:
    records = records_of(graph)
    CHANGES[name](records)
    with pytest.raises(UnsafeGraph):
        check_graph_file(write(records, tmp_path / "bad.pt2"))


def zipped(graph: Path, out: Path, compression: int) -> None:
    with zipfile.ZipFile(graph) as old, zipfile.ZipFile(out, "w", compression) as new:
        for entry in old.namelist():
            new.writestr(entry, old.read(entry))


def appended(graph: Path, out: Path) -> None:
    shutil.copy(graph, out)
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr("version", "8.20")


ARCHIVES: dict[str, Callable[[Path, Path], object]] = {
    "another writer": lambda graph, out: zipped(graph, out, zipfile.ZIP_STORED),
    "compressed": lambda graph, out: zipped(graph, out, zipfile.ZIP_DEFLATED),
    "a second directory": appended,
    "bytes before": lambda graph, out: out.write_bytes(b"#!/bin/sh\n" + graph.read_bytes()),
    "bytes behind": lambda graph, out: out.write_bytes(graph.read_bytes() + b"\0"),
    "two archives": lambda graph, out: out.write_bytes(graph.read_bytes() * 2),
    "cut off": lambda graph, out: out.write_bytes(graph.read_bytes()[:-30]),
    "empty": lambda graph, out: out.write_bytes(b""),
    "a pickle": lambda graph, out: torch.save(torch.zeros(2), out),
    "no archive": lambda graph, out: out.write_bytes(b"hello" * 100),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_that_two_readers_could_read_differently_is_refused(graph: Path, tmp_path: Path, name: str) -> None:
    ARCHIVES[name](graph, tmp_path / "bad.pt2")
    with pytest.raises(UnsafeGraph):
        check_graph_file(tmp_path / "bad.pt2")


@settings(max_examples=200, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), value=st.integers(1, 255))
def test_a_changed_byte_is_refused_or_leaves_a_graph_of_the_schema(graph: Path, place: float, value: int) -> None:
    """Whatever is changed, parsing ends in a judgement."""
    data = bytearray(graph.read_bytes())
    data[int(place * len(data))] ^= value
    with contextlib.suppress(UnsafeGraph):
        check_graph(bytes(data))


SYMBOL = "Symbol('s77', positive=True, integer=True)"


@pytest.mark.parametrize(
    "text",
    [
        SYMBOL,
        f"Add(Integer(-1), Mul(Integer(2), {SYMBOL}))",
        f"Pow({SYMBOL}, Integer(2))",
        f"Equality(Mod({SYMBOL}, Integer(8)), Integer(0))",
        "Float('0.5', precision=53)",
        "Max(Rational(1, 2), Symbol('u0', integer=True, nonnegative=True))",
        "True",
    ],
)
def test_expressions_as_torch_writes_them_pass(text: str) -> None:
    check_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "open('x')",
        "Symbol('s0').__class__",
        "Symbol(Symbol('s0'))",
        "Symbol('s0', commutative=True)",
        "Symbol('__import__')",
        "Symbol(s0)",
        "s0",
        "Integer(9**9**9)",
        "Pow(Integer(9), Integer(999999999))",
        "Pow(Integer(9), Mul(Integer(60), Integer(9999999)))",
        "Pow(Integer(9), Mul(Integer(64), Integer(64), Integer(64), Integer(64)))",
        f"Mod(Mul({', '.join([f'Add({SYMBOL}, Integer(1))'] * 40)}), Integer(7))",
        "Float('0.1', precision=1000000000)",
        "LShift(Integer(1), Mul(Integer(64), Integer(64)))",
        "RoundDecimal(Integer(7), Integer(-100000000))",
        "Pow(Pow(Integer(9), Integer(60)), Integer(60))",
        "LShift(Integer(1), Integer(99999999999))",
        "Integer('9' * 9)",
        f"Integer({'9' * 5000})",
        "lambda: 0",
        "Lambda(Symbol('s0'), Integer(1))",
        "Add(*Symbol('s0'))",
        "Add(**Symbol('s0'))",
        "Add(evaluate=False)",
        "Function('f')",
        "factorial(Integer(99999999))",
        "'text'",
        "",
        "Integer(1) # comment",
        "Integer(1)\nInteger(2)",
        "Add(" * 500 + ")" * 500,
        "Not(" * 5000,
    ],
)
def test_any_other_expression_is_refused(text: str) -> None:
    with pytest.raises(UnsafeGraph):
        check_expression(text)


def _sum_of(count: int, first: int = 0) -> str:
    return f"Add({', '.join(_symbol(first + each) for each in range(count))})"


def _symbol(number: int) -> str:
    return f"Symbol('s{number}', integer=True)"


@pytest.mark.parametrize("function", ["FloorDiv", "PythonMod", "Mod", "CleanDiv", "Max", "Min", "Eq", "Abs"])
def test_sums_that_multiply_out_beyond_measure_are_refused_wherever_they_stand(function: str) -> None:
    grown = [
        f"Pow({_sum_of(20)}, Integer(64))",
        f"Pow({_sum_of(20)}, Integer(-64))",
        f"Pow({_sum_of(20)}, Rational(127, 2))",
        f"Pow(Mul({_sum_of(4)}, {_sum_of(4, 4)}), Integer(4))",
        f"Mul({', '.join(_sum_of(5, 5 * each) for each in range(8))})",
        f"Add({', '.join(f'Pow({_sum_of(2, each)}, Integer(60))' for each in range(3))})",
    ]
    for each in grown:
        for arguments in (f"{each}, {_sum_of(2)}", f"{_sum_of(2)}, {each}"):
            with pytest.raises(UnsafeGraph):
                check_expression(f"{function}({arguments})")
    with pytest.raises(UnsafeGraph):
        check_expression(f"{function}({', '.join([_sum_of(2)] * 25)})")


@pytest.mark.parametrize(
    "exponent", ["Rational(1, 1e-9)", "Rational(64, '1e-300')", "Rational(1, 0)", "Rational(1, 1e-999)", "Float(1e-9)"]
)
def test_an_exponent_is_as_large_as_its_fraction(exponent: str) -> None:
    with pytest.raises(UnsafeGraph):
        check_expression(f"Pow({_sum_of(130)}, {exponent})")
    if exponent.startswith("Rational"):
        with pytest.raises(UnsafeGraph):
            check_expression(f"Pow(Integer(9), {exponent})")


@pytest.mark.parametrize(
    "text",
    [
        f"FloorDiv(Pow({_sum_of(11)}, Integer(2)), {_sum_of(1)})",
        f"PythonMod(Pow({_sum_of(2)}, Integer(10)), {_sum_of(10)})",
        f"PythonMod(Mul({', '.join(_sum_of(2, 2 * each) for each in range(5))}), {_sum_of(4, 1)})",
        f"FloorDiv(Mul({_sum_of(5)}, {_sum_of(2)}), Mul({_sum_of(5, 1)}, {_sum_of(2, 1)}))",
        f"Max({', '.join(f'Mul({_symbol(each)}, {_symbol(each + 9)})' for each in range(11))})",
    ],
)
def test_the_largest_expressions_that_are_taken_cost_a_moment(text: str) -> None:
    check_expression(text)
    known = {name: getattr(torch.utils._sympy.functions, name) for name in ("FloorDiv", "PythonMod", "Max")}
    started = time.process_time()
    sympy.sympify(text, locals=known)
    assert time.process_time() - started < 5


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="SymbolInteger(){}[]'\",=.s0123456789 -+*_", max_size=60))
def test_any_text_gets_a_judgement(text: str) -> None:
    with contextlib.suppress(UnsafeGraph):
        check_expression(text)


def test_the_check_costs_a_tenth_of_a_load_at_most(graph: Path) -> None:
    def least_s(what: Callable[[], object]) -> float:
        took = []
        for _ in range(3):
            check_expression.cache_clear()
            started = time.process_time()
            what()
            took.append(time.process_time() - started)
        return min(took)

    assert least_s(lambda: check_graph_file(graph)) <= 0.1 * least_s(lambda: torch.export.load(graph).module())

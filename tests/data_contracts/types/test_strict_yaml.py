"""A mistake in a YAML file is named by line and key, with the nearest right name; all mistakes at once."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import Field

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.types.strict_yaml import (
    _composed,
    _Loader,
    _QuickLoader,
    parse_yaml,
    parse_yaml_model,
    read_text,
)


class Cat(Frozen):
    kind: Literal["cat"]
    num_whiskers: int = 12


class Dog(Frozen):
    kind: Literal["dog"]
    tail_length_cm: float = 30


class Owner(Frozen):
    name: str
    phone: str | None = None


class House(Frozen):
    address: str
    pets: tuple[Annotated[Cat | Dog, Field(discriminator="kind")], ...] = ()
    owner: Owner | None = None
    rooms: dict[str, Owner] = Field(default_factory=dict)
    allowed: tuple[str, ...] = Field(default=(), alias="in")


def message(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_yaml_model(House, text, "house.yaml")
    assert str(caught.value).startswith("house.yaml")
    return str(caught.value)


def test_a_good_file_becomes_a_model() -> None:
    text = "address: x\npets: [{kind: cat}, {kind: dog, tail_length_cm: 3e1}]\nin: [a]\n"
    house = parse_yaml_model(House, text, "house.yaml")
    assert house == House(address="x", pets=(Cat(kind="cat"), Dog(kind="dog")), **{"in": ("a",)})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("adress: x", "adress (line 1): unknown key `adress`. Did you mean `address`?"),
        ("address: x\nowner:\n  name: y\n  fone: z", "owner.fone (line 4): unknown key `fone`. Did you mean `phone`?"),
        (
            "address: x\npets:\n- kind: cat\n  num_wiskers: 1",
            "pets[0].num_wiskers (line 4): unknown key `num_wiskers`. Did you mean `num_whiskers`?",
        ),
        ("address: x\nrooms:\n  hall: {nam: y}", "Did you mean `name`?"),
        ("address: x\nin_: [a]", "Did you mean `in`?"),
        ("address: x\nzzzzzz: 1", "Known here: address, in, owner, pets, rooms."),
        ("address: x\npets: [{kind: catt}]", "pets[0] (line 2): must be one of cat, dog."),
        ("address: x\npets: [{kind: catt}]", "Did you mean `cat`?"),
        ("pets: []", "line 1: `address` is missing."),
        ("address: x\nowner:\n  phone: y", "owner (line 2): `name` is missing."),
        ("address: 1.0", "address (line 1): must be text, given 1.0. Write it in quotes."),
        ("address: 2026-11-24", "address (line 1): must be text, given 2026-11-24. Write it in quotes."),
        ("address: [x]", "house.yaml: address (line 1): must be text, given ['x']."),
        ("address: x\npets: cat", "pets (line 2): must be a list, given 'cat'."),
        ("address: x\npets: [{}]", "pets[0] (line 2): `kind` is missing."),
        ("address: x\nowner: 7", "owner (line 2): must be a mapping of keys to values, given 7."),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, expected: str) -> None:
    assert expected in message(text)


class Week(Frozen):
    days: tuple[Literal["mon", "tue"], ...] = Field(min_length=1)
    pair: tuple[float, float] = (0, 1)
    rate: tuple[bool | int | str, ...] | Owner = ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("days: [wed]", "days[0] (line 1): must be one of mon, tue, given 'wed'."),
        ("days: []", "days (line 1): must have at least 1 item, given []."),
        ("days: [mon]\npair: [1]", "pair (line 2): value 2 is missing."),
        ("days: [mon]\nrate: 7", "rate (line 2): must be a list or a mapping of keys to values, given 7."),
        ("days: [mon]\nrate: [[1]]", "rate[0] (line 2): must be true or false or a whole number or text, given [1]."),
        ("days: [mon]\nrate: {name: [x]}", "rate.name (line 2): must be text, given ['x']."),
    ],
)
def test_a_mistake_is_one_problem_in_the_words_of_yaml(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml_model(Week, text, "week.yaml")
    assert str(caught.value).removeprefix("week.yaml: ") == expected


def test_no_mistake_is_told_in_words_of_python() -> None:
    """Whatever stands in place of whatever: names of Python's types and classes are no help in a YAML file."""
    good = {
        "address": "x",
        "pets": [{"kind": "cat"}],
        "owner": {"name": "y"},
        "rooms": {"a": {"name": "z"}},
        "in": ["b"],
    }
    for key, wrong in itertools.product(good, (7, 7.5, True, None, "w", [[1]], {"q": 1}, [])):
        with contextlib.suppress(ConfigError):
            parse_yaml_model(House, json.dumps(good | {key: wrong}), "house.yaml")
            continue
        text = message(json.dumps(good | {key: wrong}))
        assert not re.search(r"tuple|dictionary|instance|discriminator|Owner|Input|string|integer", text), text


def test_all_mistakes_come_at_once() -> None:
    found = message("adress: x\npets: 3\nowner: {name: [1]}\n")
    assert found.startswith("house.yaml: 4 problems:\n")
    assert all(
        key in found for key in ("adress (line 1)", "`address` is missing", "pets (line 2)", "owner.name (line 3)")
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("address: x\naddress: y", "house.yaml:2: key `address` is given twice (first in line 1)"),
        ("address: x\nowner: {name: a, name: b}", "house.yaml:2: key `name` is given twice"),
        ("a: [1", "house.yaml:"),
        ("a: b: c", "house.yaml:1: mapping values are not allowed here"),
        ("\tx: 1", "house.yaml:1:"),
        ("", "must be a mapping of keys to values, not empty. Its keys are: address, in, owner, pets, rooms."),
        ("- 1", "must be a mapping of keys to values, not list"),
        ("just text", "must be a mapping of keys to values, not str"),
        ("a: 1\n---\nb: 1", "house.yaml:"),
        ("? {a: 1}\n: 2", "unhashable"),
        ("a: *nobody", "undefined alias"),
        ("a: 2020-13-45", "not readable as YAML"),
        ("a: \0", "not allowed"),
        ("!!python/object/apply:os.system [true]", "could not determine a constructor"),
        ("a: &a {b: *a}", "house.yaml"),
        ("[" * 5000, "nested more than 64 levels deep"),
    ],
)
def test_what_is_no_yaml_is_refused_with_its_line(text: str, expected: str) -> None:
    assert expected in message(text)


def test_a_merge_key_may_be_overridden() -> None:
    text = "address: x\nrooms:\n  a: &a {name: n, phone: p}\n  b: {<<: *a, phone: q}\n"
    assert parse_yaml_model(House, text, "house.yaml").rooms["b"] == Owner(name="n", phone="q")


def test_a_long_value_is_cut() -> None:
    assert len(message(f"address: x\npets: {'y' * 5000}\n")) < 300


@pytest.mark.parametrize(
    "given",
    ["s3://AKIA:HUNTER2@bucket/x", "[https://u:HUNTER2@host/x]", "ghp_abcdefghijklmnopHUNTER2", "'pwd=HUNTER2'"],
)
def test_a_value_that_may_be_a_secret_is_refused_without_repeating_it(given: str) -> None:
    """Logs and pages of CI have other readers than the file."""
    said = message(f"address: x\npets: {given}\n")
    assert "pets" in said and "HUNTER2" not in said
    for key in (f"pets:{given}", f"'{given}'"):  # the blank behind a colon was forgotten
        said = message(f"{{address: x, {key}: y}}\n")
        assert "HUNTER2" not in said and said.startswith("house.yaml")
    assert "given 'seven cats'" in message("address: x\npets: seven cats\n")


@given(st.text("ab:-[]{}&*!|>'\"%@`,?#\n\t 019.~<", max_size=40) | st.text(max_size=20))
def test_any_text_is_read_or_refused_and_never_crashes(text: str) -> None:
    try:
        parse_yaml_model(House, text, "house.yaml")
    except ConfigError as error:
        assert error.where.startswith("house.yaml")


PIECES = (
    *"ab01:,-[]{}#&*|>'\"%@ .~\n\\",
    ": ",
    "- ",
    "\n  ",
    "\n\n",
    "\n# c\n",
    "<<: ",
    "|\n ",
    "&a ",
    "*a",
    "---\n",
    "?",
    "!",
    "\t",
    "\r",
)
GOOD = 'a: &a {x: 1, y: [2, 3.5, null]}\nb:\n  - <<: *a\n    z: "q\\u00e9"\n  - |\n    text\n\n# end\nc: 2026-11-24\n'


def _nodes(node: yaml.Node | None) -> Any:
    """What there is of it: kinds, values and lines."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return node and (node.tag, node.value, node.start_mark.line)
    inner = node.value if isinstance(node, yaml.SequenceNode) else [each for pair in node.value for each in pair]
    return (node.tag, node.start_mark.line, *map(_nodes, inner))


@settings(max_examples=50)
@example("#\r---")
@given(
    st.lists(st.sampled_from(PIECES), max_size=20).map("".join)
    | st.tuples(st.integers(0, len(GOOD)), st.integers(0, 3), st.sampled_from(PIECES)).map(
        lambda cut: GOOD[: cut[0]] + cut[2] + GOOD[cut[0] + cut[1] :]
    )
)
def test_what_is_read_quickly_is_what_is_read_otherwise(text: str) -> None:
    try:
        quick = _composed(text)[1]
    except (yaml.YAMLError, ValueError) as error:
        with pytest.raises(type(error), match=re.escape(str(error))):
            _Loader(text).get_single_node()
    else:
        assert _nodes(quick) == _nodes(_Loader(text).get_single_node())


def test_a_good_file_is_read_quickly() -> None:
    assert isinstance(_composed(GOOD)[0], _QuickLoader)


ALIASES = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = ALIASES.replace("[x,x,x,x,x,x,x,x,x]", "{k: 1}").replace(" [*", " {<<: [*").replace("]\n", "]}\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ALIASES, "house.yaml:6: more than 100,000 values, with what aliases stand for."),
        (MERGES, "house.yaml:6: more than 100,000 values, with what aliases stand for."),
        pytest.param(
            *("- 1\n" * 100_001, "house.yaml:100000: more than 100,000 values, with what aliases stand for."),
            marks=pytest.mark.process,  # it takes seconds of a busy processor; so would ten times as many
        ),
        ("address: " + "x" * (1 << 20), "house.yaml: larger than 1 MiB."),
        ("a: " + "9" * 20_000, "house.yaml:1: a number of 20,000 digits."),
        ("a: 0x" + "f" * 20_000, "house.yaml:1: a number of 20,002 digits."),
        ("a: .inf", "house.yaml:1: .inf is no finite number."),
        ("a: .nan", "house.yaml:1: .nan is no finite number."),
        ("a: !!bool 7", "house.yaml:1: not readable as YAML (bool: '7')."),
        ("a: !!float ''", "house.yaml:1: not readable as YAML (float: string index out of range)."),
        ("a: !!timestamp x", "house.yaml:1: not readable as YAML (timestamp: "),
        ('a: "\\ud83d"', "house.yaml:1: half a character (a surrogate without its other half)."),
        ('"\\ude00": a', "house.yaml:1: half a character (a surrogate without its other half)."),
    ],
)
def test_what_costs_more_than_it_says_and_numbers_that_are_none_are_refused_at_once(text: str, expected: str) -> None:
    assert message(text).startswith(expected)


@pytest.mark.parametrize("given", ["1e400", "'inf'", "nan", "'-Infinity'"])
def test_a_number_that_is_written_as_a_text_is_finite_too(given: str) -> None:
    text = message(f"address: x\npets: [{{kind: dog, tail_length_cm: {given}}}]")
    assert "pets[0].tail_length_cm (line 2): must be a finite number" in text


def test_true_is_no_number_and_a_count_is_one_that_a_float_can_tell_apart() -> None:
    text = message("address: x\npets:\n- {kind: cat, num_whiskers: yes}\n- {kind: dog, tail_length_cm: off}\n")
    assert "pets[0].num_whiskers (line 3): a number is wanted, given true." in text
    assert "pets[1].tail_length_cm (line 4): a number is wanted, given false." in text
    text = message(f"address: x\npets: [{{kind: cat, num_whiskers: {2**53 + 1}}}]")
    assert "pets[0].num_whiskers (line 2): a number beyond 9,007,199,254,740,992." in text


def test_a_character_that_is_written_as_two_halves_as_json_does_is_one() -> None:
    assert parse_yaml_model(House, r'address: "\ud83d\ude00"', "house.yaml").address == "\U0001f600"


def test_aliases_within_reason_are_what_they_always_were() -> None:
    text = "address: x\nrooms: {a: &a {name: y, phone: z}, b: *a, c: {<<: *a, name: w}}"
    rooms = parse_yaml_model(House, text, "house.yaml").rooms
    assert rooms["b"] == rooms["a"] and rooms["c"] == Owner(name="w", phone="z")


@pytest.mark.parametrize("text", ['a: "\\UFFFFFFFF"', 'a: "\\U00110000"'])
def test_a_character_beyond_unicode_is_a_mistake_with_its_file(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_yaml(text, where="x.yaml")
    assert "x.yaml" in str(refused.value)


def test_a_pipe_or_a_device_in_the_place_of_a_file_keeps_nobody(tmp_path: Path) -> None:
    """Pipeline files are looked for by name: `deploy` and `verify` would wait for whoever writes into a pipe there."""
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(FileNotFoundError, match="not a file"):
            read_text(place)

"""Folders' names as columns: whatever a writer put there comes back."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data_contracts.sources.partitions import NULL_PARTITION, partition_columns, partition_values
from headway.data_contracts.store.errors import DataError

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1)


@given(values=st.dictionaries(TEXTS, TEXTS | st.none(), max_size=4))
def test_every_text_comes_back_from_a_path(values: dict[str, str | None]) -> None:
    folders = [f"{quote(k, safe='')}={NULL_PARTITION if v is None else quote(v, safe='')}" for k, v in values.items()]
    found = partition_values("/".join([*folders, "name=of the file.parquet"]))
    assert found == {k: None if v == NULL_PARTITION else v for k, v in values.items()}
    assert list(found) == list(values)


@given(path=st.text())
def test_any_path_is_understood_or_refused(path: str) -> None:
    try:
        found = partition_values(path)
    except DataError:
        return
    assert all(found)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a/b.parquet", {}),
        ("day=1/b.parquet", {"day": "1"}),
        ("raw/day=1/b.parquet", {"day": "1"}),
        ("=1/b.parquet", {}),
        ("a=b=c/d", {"a": "b=c"}),
        ("day=/d", {"day": ""}),
        ("day=1", {}),
    ],
)
def test_a_column_is_a_folder_with_an_equals_sign(path: str, expected: dict[str, str]) -> None:
    assert partition_values(path) == expected


def test_one_column_twice_is_refused() -> None:
    with pytest.raises(DataError, match=r"a=1/a=2/f: column `a`: two folders"):
        partition_values("a=1/a=2/f")


def test_types_are_strings_unless_declared() -> None:
    assert partition_columns({"p": {"a": "1", "b": "1"}}, {"b": "int16"}) == {"a": "string", "b": "int16"}
    with pytest.raises(DataError, match="holds no int16"):
        partition_columns({"p": {"a": "1"}, "q": {"a": "70000"}}, {"a": "int16"})

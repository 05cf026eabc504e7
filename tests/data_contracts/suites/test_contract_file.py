"""A contract and its suite are read once in a command, and stay as they were read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.suites import contract_file
from headway.data_contracts.suites.contract_file import read_contract_file, using_contract_files

CONTRACT = """name: events
version: 1.0.0
columns:
  id: {type: int64}
suite: suite.json
"""
EXPECTATION = {"expectation_type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "suite.json").write_text(json.dumps({"expectations": [EXPECTATION]}))
    (tmp_path / "events.yaml").write_text(CONTRACT)
    return tmp_path / "events.yaml"


def test_what_is_digested_is_what_was_parsed(path: Path) -> None:
    asked = read_contract_file(path)
    assert (asked.contract.name, len(asked.suite)) == ("events", 1)
    assert (asked.text, asked.suite_text) == (path.read_bytes(), (path.parent / "suite.json").read_bytes())


def test_in_use_it_stays_as_it_was_first_read_and_behind_that_it_is_read_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with using_contract_files():
        first = read_contract_file(path)
        path.write_text(CONTRACT.replace("1.0.0", "2.0.0"))
        monkeypatch.chdir(path.parent)
        with using_contract_files():
            assert read_contract_file(Path(path.name)) is first
        assert read_contract_file(path) is first
    assert read_contract_file(path).contract.version == "2.0.0"


def test_one_that_is_refused_is_refused_each_time(path: Path) -> None:
    (path.parent / "suite.json").write_text("{}")
    with using_contract_files():
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"not a Great Expectations suite"):
                read_contract_file(path)
        path.unlink()
        with pytest.raises(ConfigError, match=r"cannot be read \(No such file.*Check `contract:`"):
            read_contract_file(path)
    assert contract_file._in_use.get() is None

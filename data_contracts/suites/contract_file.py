"""A contract's file and the suite that it names: read, parsed and checked once, however many parts of a command ask."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from headway.data_contracts.rules.checks import Check
from headway.data_contracts.rules.contract import Contract, parse_contract, read_contract_text
from headway.data_contracts.scans.split_sql import check_split_sql
from headway.data_contracts.suites.parsing import read_suite


class ContractFile(NamedTuple):
    """What was read is what was parsed: its digests are of these texts."""

    contract: Contract
    text: bytes
    suite: tuple[Check, ...]
    """Empty where the contract names none."""
    suite_text: bytes


# A dict that all of a command share: tasks run in copies of its context.
_in_use: ContextVar[dict[Path, ContractFile] | None] = ContextVar("_in_use", default=None)


def read_contract_file(path: Path) -> ContractFile:
    """The one in use, else read now.

    Raises:
        ConfigError: contract or suite is missing, is none, or has SQL or expectations that cannot be understood.
    """
    in_use = _in_use.get()
    if in_use is None:
        return _read(path)
    key = path.absolute()
    if key not in in_use:
        in_use[key] = _read(path)
    return in_use[key]


def _read(path: Path) -> ContractFile:
    text = read_contract_text(path)
    contract = parse_contract(text, where=str(path))
    check_split_sql(contract, where=str(path))
    suite, suite_text = read_suite(path, contract)
    return ContractFile(contract, text.encode(), suite, suite_text)


@contextlib.contextmanager
def using_contract_files() -> Iterator[None]:
    """In the body each stays as it was first read: what was checked before anything was spent is what stages run.

    One body in another goes on with what that has read.
    """
    token = _in_use.set({} if (outer := _in_use.get()) is None else outer)
    try:
        yield
    finally:
        _in_use.reset(token)

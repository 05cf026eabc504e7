"""`headway contract diff`: what changed between two versions of a contract, and the version number it takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway.data_contracts.changes.compatibility import Suites, compare, next_version
from headway.data_contracts.changes.suite_changes import ContractChange
from headway.data_contracts.rules.contract import Contract
from headway.data_contracts.store.errors import ContractViolation
from headway.data_contracts.store.plain_text import one_line
from headway.data_contracts.suites.contract_file import read_contract_file
from headway.flows.console.console import headed, plain_console, print_table

ORDER = ("breaking", "widening", "neutral")
MARKS = {
    "breaking": Text("✖ breaking", style="red"),
    "widening": Text("+ widening", style="yellow"),
    "neutral": Text("· neutral", style="dim"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ContractDiff:
    old: Contract
    new: Contract
    changes: tuple[ContractChange, ...]
    """Breaking ones first."""
    least_version: str
    """The least version that announces the changes."""

    @property
    def is_announced(self) -> bool:
        """Whether the new version number is at least that."""
        return _numbers(self.new.version) >= _numbers(self.least_version)

    @property
    def exit_code(self) -> int:
        return 0 if self.is_announced else ContractViolation.exit_code

    def to_json(self) -> dict[str, Any]:
        return {
            "old": {"name": self.old.name, "version": self.old.version},
            "new": {"name": self.new.name, "version": self.new.version},
            "least_version": self.least_version,
            "announced": self.is_announced,
            "changes": [
                {"effect": change.effect, "where": change.where, "sentence": change.sentence} for change in self.changes
            ],
        }


def compare_files(old: Path, new: Path) -> ContractDiff:
    """Raises `ConfigError`: a file, or the suite that it names, cannot be read, or is none."""
    (before, _, old_suite, _), (after, _, new_suite, _) = read_contract_file(old), read_contract_file(new)
    suites = Suites(old_suite, new_suite)
    changes = sorted(compare(before, after, suites), key=lambda change: ORDER.index(change.effect))
    return ContractDiff(old=before, new=after, changes=tuple(changes), least_version=next_version(before, changes))


def print_compared(compared: ContractDiff, console: Console | None = None) -> None:
    """The verdict on the version, then every change, breaking ones first."""
    console = console or plain_console()
    old, new = compared.old, compared.new
    console.print(headed(f"{old.name} {old.version} to {new.name} {new.version}"))
    console.print(verdict(compared), end="\n\n" if compared.changes else "\n")
    table = Table("effect", "key", "change", box=None, padding=(0, 2, 0, 0))
    for change in compared.changes:
        table.add_row(MARKS[change.effect], Text(one_line(change.where), overflow="fold"), change.sentence)
    if compared.changes:
        print_table(console, table)


def verdict(compared: ContractDiff) -> Text:
    """Whether the version number says what changed, in one line."""
    new, least = compared.new.version, compared.least_version
    if not compared.is_announced:
        return Text(f"✖ {new} does not announce these changes: call it {least}, or take them back.", style="bold red")
    if not compared.changes:
        return Text("✔ nothing changed that data could notice", style="bold green")
    return Text(f"✔ {new} announces these changes; {least} would be enough", style="bold green")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))

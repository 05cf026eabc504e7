"""What chose models of a pipeline under another split than today's: nothing keeps those rows from judging now.

Within one rule of splitting no row that ranked trials or validated runs ever judges. Another rule draws rows anew. That
may be what is wanted, such as another `split_salt`, so it is said and not refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headway.data_contracts.store.documents import Json
from headway.data_contracts.store.publication import Workspace
from headway.tasks.rows.heldout_parts import ranking_splits, splitting_rule
from headway.tasks.rows.validation_split import validation_splits
from headway.training.config.shards import ShardSpec

ADVICE = "Put it back, unless it was meant and what is held out now is new data."
Rule = Mapping[str, Json]


def earlier_splits(workspace: Workspace, pipeline: str, shards: ShardSpec) -> str:
    """Which rows may judge now though they chose models before, and why; empty where none may."""
    rule = splitting_rule(shards)
    rules = {
        "ranked trials": [each.splitting for each in ranking_splits(workspace, pipeline)],
        "validated runs": [each.splitting for each in validation_splits(workspace, pipeline)],
    }
    found = [f"rows that {did} while {others}" for did, each in rules.items() if (others := _others(rule, each))]
    return f"{', and '.join(found)}, may judge now, and what they chose looks too good on them" if found else ""


def _others(rule: Rule, recorded: Iterable[Json]) -> str:
    """How rules other than this one differ from it, each once."""
    differences = (_difference(rule, each) for each in recorded if isinstance(each, dict) and each != rule)
    return ", and while ".join(dict.fromkeys(differences))


def _difference(now: Rule, before: Rule) -> str:
    names = [name for name, value in before.items() if value is not None and value != now.get(name)]
    # What names nothing before, such as a key that there was none of, is told by how rows were split.
    names = names or [name for name in now if now[name] != before.get(name)]
    return ", ".join(f"{_setting(name)} was {_shown(before.get(name))}" for name in names)


def _setting(name: str) -> str:
    return "shards.split.column" if name == "column" else f"shards.{name}"


def _shown(value: Json) -> str:
    return "not given" if value is None else repr(value)

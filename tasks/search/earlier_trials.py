"""Trials of an earlier search, which propose the first round of the next: a warm start.

Their figures may be of other data, and are no figures of this search: from the second round on it learns from its own.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.leftovers import scratch_folder
from headway.data_contracts.store.plain_text import one_line
from headway.data_contracts.store.regular_files import read_regular
from headway.data_contracts.store.strict_json import parse_json
from headway.data_contracts.tables.sqlite_files import plain_database
from headway.tasks.search.optuna_files import SQLITE_MAGIC, study_storage
from headway.tasks.search.space import Space, Varied
from headway.tasks.search.values import Settings, Value, shown

WHERE = "trials.warm_start"
MAX_BYTES = 2**26
"""Of a file: a thousand trials take one."""
MAX_TRIALS = 10_000
MAX_REASON_CHARS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What settings came to."""

    settings: Settings
    values: Mapping[int, float] = field(default_factory=dict)
    """By step; lower is better. Empty: they failed before their first rung."""
    has_failed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierTrials:
    """Of a file, those that lie in a space."""

    file: Path
    outcomes: tuple[Outcome, ...]
    """The best that came to its end first; at least one did."""
    num_all: int

    def __str__(self) -> str:
        return f"{len(self.outcomes)} of {self.num_all} trials of {self.file.name}"


def read_earlier(file: Path, space: Space, max_steps: int) -> EarlierTrials:
    """
    Args:
        file: a search's `trials.json`, or a study of Optuna's in a journal file or SQLite.
        max_steps: of a whole run of today, as which a whole run of then counts.

    Raises:
        ConfigError: it cannot be read, is neither, or no trial of it that came to its end lies in the space.
    """
    try:
        data = read_regular(file, MAX_BYTES)
    except OSError as error:
        raise _unusable(file, f"cannot be read ({error.strerror})") from error
    try:
        search = _search_in(data)
        if search is not None and not isinstance(search.get("trials"), list):
            raise ValueError("it has no list of trials")
        found = list(_of_study(data, max_steps) if search is None else _of_search(search, max_steps))
    # Whatever Optuna makes of a file that is none of its own: an assertion, a missing key, no JSON.
    except Exception as error:
        reason = one_line(str(error), MAX_REASON_CHARS) or type(error).__name__
        raise _unusable(file, f"is neither a search's trials.json nor a study of Optuna's ({reason})") from error
    if len(found) > MAX_TRIALS:
        raise _unusable(file, f"has {len(found):,} trials, more than {MAX_TRIALS:,}")
    fitting = [
        Outcome(settings=settings, values=each.values, has_failed=each.has_failed)
        for each in found
        if (settings := fitted(space, each.settings)) is not None
    ]
    # Each of equal ones says the same; sorting is stable.
    fitting.sort(key=lambda each: (max_steps not in each.values, each.values.get(max_steps, 0.0)))
    if not fitting or max_steps not in fitting[0].values:
        raise _unusable(file, "holds no trial that came to its end and lies in the space of trials.vary")
    return EarlierTrials(file=file, outcomes=tuple(fitting), num_all=len(found))


def _unusable(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"it {why}.",
        where=f"{WHERE}: {file}",
        advice="Name the trials.json beside a search's ledger, or what `headway trials --study FILE` wrote.",
    )


def _search_in(data: bytes) -> dict[str, Any] | None:
    try:
        found = parse_json(data)
    except ValueError:
        return None  # a journal has a document in each line
    return found if isinstance(found, dict) else None


def _of_search(found: Mapping[str, Any], max_steps: int) -> Iterator[Outcome]:
    sign = -1.0 if found["greater_is_better"] else 1.0
    for row in found["trials"]:
        values = {int(step): sign * float(value) for step, value in row["rungs"].items()}
        if row["value"] is not None:
            values = {**values, max_steps: sign * float(row["value"])}
        yield _outcome(dict(row["settings"]), values, has_failed=row["cause"] is not None)


def _of_study(data: bytes, max_steps: int) -> Iterator[Outcome]:
    import optuna
    from optuna.study import StudyDirection
    from optuna.trial import TrialState

    # A copy: to read a journal Optuna writes a lock beside it, and to a database tables that it lacks.
    with scratch_folder("headway-study-") as scratch, contextlib.ExitStack() as stack:
        (scratch / "study").write_bytes(data)
        is_sqlite = data.startswith(SQLITE_MAGIC)
        if is_sqlite:
            with plain_database(scratch / "study"):
                pass
        storage = stack.enter_context(study_storage(scratch / "study", is_sqlite=is_sqlite))
        names = optuna.get_all_study_names(storage)
        if len(names) != 1:
            raise ValueError(f"it holds {len(names)} studies, and is to hold one")
        (name,) = names
        study = optuna.load_study(study_name=name, storage=storage)
        trials, direction = study.get_trials(), study.direction
    sign = -1.0 if direction is StudyDirection.MAXIMIZE else 1.0
    for trial in trials:
        if trial.state not in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL):
            continue
        values = {step: sign * value for step, value in trial.intermediate_values.items()}
        if trial.state is TrialState.COMPLETE and trial.value is not None:
            values = {**values, max_steps: sign * trial.value}
        yield _outcome(dict(trial.params), values, has_failed=trial.state is TrialState.FAIL)


def _outcome(settings: Settings, values: Mapping[int, float], *, has_failed: bool) -> Outcome:
    finite = {step: value for step, value in values.items() if math.isfinite(value)}
    return Outcome(settings=settings, values={} if has_failed else finite, has_failed=has_failed)


def fitted(space: Space, settings: Mapping[str, Any]) -> Settings | None:
    """Those that vary in a space, of settings that were tried; None where they do not lie in it."""
    chosen: Settings = {}
    for name, varied in space.varied.items():
        if not space.is_active(name, chosen):
            continue
        if name not in settings or (value := _within(varied, settings[name])) is None:
            return None
        (chosen[name],) = value
    return chosen


def _within(varied: Varied, value: Any) -> tuple[Value] | None:
    if varied.values is not None:
        # A study has a choice by its words.
        same = [
            each for each in varied.values if shown(each) == (value if isinstance(value, str) else json.dumps(value))
        ]
        return (same[0],) if same else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    low, high = varied.integer or varied.uniform or varied.log_uniform or (0, 0)
    if not low <= value <= high or (varied.integer is not None and value != int(value)):
        return None
    return (varied.rounded(value),)

"""Trials of an earlier search, which propose the first round of the next: a warm start.

Their figures may be of other data, and are no figures of this search: from the second round on it learns from its own.
A run of then may have been longer than today's, or shorter: what counts is how far on its way a figure was.
"""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, ValidationError

from headway.data_contracts.store.documents import Frozen, Sha256
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.leftovers import scratch_folder
from headway.data_contracts.store.plain_text import one_line
from headway.data_contracts.store.regular_files import read_regular
from headway.data_contracts.store.strict_json import parse_json
from headway.data_contracts.tables.sqlite_files import plain_database
from headway.tasks.search.optuna_files import SQLITE_MAGIC, study_storage
from headway.tasks.search.space import Space, Varied
from headway.tasks.search.values import Settings, Value, as_word, written
from headway.training.observe.ledger_lines import LATEST_UNIX_S

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


class SearchedData(Frozen):
    """What tells the data of a search from those of another day."""

    snapshot: Sha256
    """Of the rows."""
    unix_s: float = Field(ge=0, lt=LATEST_UNIX_S)
    """When they were taken, in seconds since 1970."""

    @property
    def day(self) -> str:
        return f"{datetime.datetime.fromtimestamp(self.unix_s, datetime.UTC):%Y-%m-%d}"


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierTrials:
    """Of a file, those that lie in a space."""

    file: Path
    outcomes: tuple[Outcome, ...]
    """The best that came to its end first; at least one did. Steps are those of today's run."""
    num_all: int
    pipeline: str
    """Empty: the file does not say."""
    data: SearchedData | None
    """None: the file does not say."""

    def __str__(self) -> str:
        return f"{len(self.outcomes)} of {self.num_all} trials of {self.file.name}"

    def on(self, pipeline: str, snapshot: str = "") -> str:
        """Which they are, and of what data.

        Args:
            pipeline: today's.
            snapshot: of today's data; empty: not taken yet.
        """
        if self.data is None:
            return f"{self}, which does not say of what data"
        if not snapshot:
            age = f"of data of {self.data.day}"
        else:
            age = "of today's data" if snapshot == self.data.snapshot else f"of other data ({self.data.day})"
        by = f", by the pipeline {self.pipeline}" if self.pipeline and self.pipeline != pipeline else ""
        return f"{self}, {age}{by}"


class _EarlierTrial(NamedTuple):
    """A trial as a file has it."""

    settings: Settings
    figures: Mapping[int, float]
    """By step; lower is better."""
    end: float | None
    """What it came to at its end; None: it paused, or failed."""
    has_failed: bool


class _Search(NamedTuple):
    trials: list[_EarlierTrial]
    end_step: int
    """Of a whole run."""
    pipeline: Any
    data: Any


def read_earlier(file: Path, space: Space, max_steps: int) -> EarlierTrials:
    """
    Args:
        file: a search's `trials.json`, or a study of Optuna's in a journal file or SQLite.
        max_steps: of a whole run of today, as which a whole run of then counts, and a third of it as a third.

    Raises:
        ConfigError: it cannot be read, is neither, or no trial of it that came to its end lies in the space.
    """
    try:
        data = read_regular(file, MAX_BYTES)
    except OSError as error:
        raise _unusable(file, f"cannot be read ({error.strerror})") from error
    try:
        found = _search_of(data)
        values = [_values_today(each, found.end_step, max_steps) for each in found.trials]
    # Whatever Optuna makes of a file that is none of its own: an assertion, a missing key, no JSON.
    except Exception as error:
        reason = one_line(str(error), MAX_REASON_CHARS) or type(error).__name__
        raise _unusable(file, f"is neither a search's trials.json nor a study of Optuna's ({reason})") from error
    if len(found.trials) > MAX_TRIALS:
        raise _unusable(file, f"has {len(found.trials):,} trials, more than {MAX_TRIALS:,}")
    fitting = [
        (math.inf if each.end is None else each.end, Outcome(settings=settings, values=its, has_failed=each.has_failed))
        for each, its in zip(found.trials, values, strict=True)
        # One without a figure that did not fail either says nothing.
        if (its or each.has_failed) and (settings := fitted(space, each.settings)) is not None
    ]
    # Each of equal ones says the same; sorting is stable.
    fitting.sort(key=lambda pair: pair[0])
    if not fitting or fitting[0][0] == math.inf:
        raise _unusable(file, "holds no trial that came to its end and lies in the space of trials.vary")
    known = None
    with contextlib.suppress(ValidationError):
        known = SearchedData.model_validate(found.data)
    return EarlierTrials(
        file=file,
        outcomes=tuple(outcome for _, outcome in fitting),
        num_all=len(found.trials),
        pipeline=one_line(found.pipeline, MAX_REASON_CHARS) if isinstance(found.pipeline, str) else "",
        data=known,
    )


def _values_today(trial: _EarlierTrial, end_step: int, max_steps: int) -> dict[int, float]:
    """By the step of today's run that is as far on its way; only what came to its end has a figure there."""
    if trial.has_failed:
        return {}
    values = {
        max(1, min(round(step * max_steps / end_step), max_steps - 1)): value
        for step, value in sorted(trial.figures.items())
        if trial.end is None or step < end_step
    }
    return values if trial.end is None else {**values, max_steps: trial.end}


def _unusable(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"it {why}.",
        where=f"{WHERE}: {file}",
        advice="Name the trials.json beside a search's ledger, or what `headway trials --study FILE` wrote.",
    )


def _search_of(data: bytes) -> _Search:
    try:
        found = parse_json(data)
    except ValueError:
        found = None  # a journal has a document in each line
    if not isinstance(found, dict):
        return _of_study(data)
    if not isinstance(found.get("trials"), list):
        raise ValueError("it has no list of trials")
    sign = -1.0 if found["greater_is_better"] else 1.0
    trials = [
        _earlier_trial(row["settings"], row["rungs"], row["value"], sign, has_failed=row["cause"] is not None)
        for row in found["trials"]
    ]
    return _Search(trials, max(1, int(found["levels"][-1])), found.get("pipeline"), found.get("data"))


def _of_study(data: bytes) -> _Search:
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
        trials, direction, attributes = study.get_trials(), study.direction, study.user_attrs
    sign = -1.0 if direction is StudyDirection.MAXIMIZE else 1.0
    found = [
        _earlier_trial(
            each.params,
            each.intermediate_values,
            each.value if each.state is TrialState.COMPLETE else None,
            sign,
            has_failed=each.state is TrialState.FAIL,
        )
        for each in trials
        if each.state in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
    ]
    # A study does not say how long a whole run is.
    end_step = max((step for each in trials for step in each.intermediate_values), default=1)
    return _Search(found, max(1, end_step), attributes.get("pipeline"), attributes.get("data"))


def _earlier_trial(
    settings: Mapping[str, Any], figures: Mapping[Any, Any], end: Any, sign: float, *, has_failed: bool
) -> _EarlierTrial:
    """What came to no number alone failed."""
    known = {int(step): sign * float(value) for step, value in figures.items()}
    finite = {step: value for step, value in known.items() if math.isfinite(value)}
    last = None if end is None or has_failed or not math.isfinite(end) else sign * float(end)
    return _EarlierTrial(dict(settings), finite, last, has_failed or (bool(known) and not finite))


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
        # A study has a choice by its words; where it may be either, what is of the same kind is meant.
        words = as_word(value)
        same = [each for each in varied.values if written(each) == written(value)]
        same += [each for each in varied.values if as_word(each) == words]
        return (same[0],) if same else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    low, high = varied.integer or varied.uniform or varied.log_uniform or (0, 0)
    if not low <= value <= high or (varied.integer is not None and value != int(value)):
        return None
    return (varied.rounded(value),)

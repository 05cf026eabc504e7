"""A search as a study of Optuna's, in a journal file or SQLite: for `optuna-dashboard FILE` and Optuna's own plots."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.leftovers import scratch_folder
from headway.data_contracts.store.regular_files import read_regular
from headway.flows.console.output import write_whole
from headway.flows.trials.summary import SearchSoFar, TrialRow
from headway.tasks.search.earlier_trials import MAX_BYTES, fitted
from headway.tasks.search.optuna_files import SQLITE_ENDINGS, study_storage
from headway.tasks.search.proposals import distribution_of
from headway.tasks.search.space import Space, Varied
from headway.tasks.search.trials_spec import TrialsSpec
from headway.tasks.search.values import Value, as_word, shown

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


class FromFile(NamedTuple):
    """What became of a search's file."""

    num_written: int
    num_all: int


def write_study_of(search: Path, spec: TrialsSpec, file: Path) -> FromFile:
    """The same of a search's `trials.json`; trials that do not lie in the space are left out.

    Raises:
        ConfigError: it cannot be read, is none, or no trial of it lies in the space.
        EnvironmentProblem: the study cannot be written.
    """
    try:
        found = SearchSoFar.model_validate_json(read_regular(search, MAX_BYTES))
    except OSError as error:
        raise _unusable(search, f"cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise _unusable(search, "is no search's trials.json") from error
    rows = [lying for row in found.trials if (lying := _lying_in(spec.space, row)) is not None]
    if not rows:
        raise _unusable(search, "holds no trial that lies in the space of trials.vary")
    write_study(found.model_copy(update={"trials": rows}), spec, file)
    return FromFile(len(rows), len(found.trials))


def _lying_in(space: Space, row: TrialRow) -> TrialRow | None:
    """A trial with the settings that vary beside its others today; None where they do not lie in the space."""
    varied = fitted(space, row.settings)
    if varied is None or not all(map(math.isfinite, (*row.rungs.values(), 0.0 if row.value is None else row.value))):
        return None
    others = {name: value for name, value in row.settings.items() if name not in space.varied}
    return row.model_copy(update={"settings": {**varied, **others}})


def _unusable(search: Path, why: str) -> ConfigError:
    return ConfigError(
        f"it {why}.",
        where=f"--from {search}",
        advice="Name the trials.json beside the ledger of its search.",
    )


def write_study(summary: SearchSoFar, spec: TrialsSpec, file: Path) -> None:
    """
    Args:
        file: replaced where it is there, whole or not at all; a database of SQLite by its ending.

    Raises:
        EnvironmentProblem: it cannot be written.
    """
    import optuna
    from optuna.trial import TrialState, create_trial

    is_sqlite = file.suffix.lower() in SQLITE_ENDINGS
    with scratch_folder("headway-study-") as scratch:
        with study_storage(scratch / "study", is_sqlite=is_sqlite) as storage:
            study = optuna.create_study(
                storage=storage,
                study_name=summary.pipeline,
                direction="maximize" if summary.greater_is_better else "minimize",
            )
            study.set_user_attr("metric", summary.metric)
            study.set_user_attr("pipeline", summary.pipeline)
            if summary.data is not None:
                study.set_user_attr("data", summary.data.model_dump())
            for row in sorted(summary.trials, key=lambda row: row.trial):
                varied = {name: each for name, each in spec.space.varied.items() if name in row.settings}
                ended = TrialState.COMPLETE if row.value is not None else TrialState.PRUNED
                failed = {} if row.cause is None else {"failed": f"{row.cause}: {row.what}"}
                derived = {name: shown(value) for name, value in row.settings.items() if name not in varied}
                study.add_trial(
                    create_trial(
                        params={name: _param(each, row.settings[name]) for name, each in varied.items()},
                        distributions={name: _distribution(each) for name, each in varied.items()},
                        state=TrialState.FAIL if failed else ended,
                        value=None if failed else row.value,
                        intermediate_values=row.rungs,
                        user_attrs={"run": row.run, "round": row.round, "steps": row.steps, **derived, **failed},
                    )
                )
        write_whole(file, (scratch / "study").read_bytes())


def _distribution(varied: Varied) -> BaseDistribution:
    """Of a list by its words, which a person reads: what proposes has them by their places."""
    from optuna.distributions import CategoricalDistribution

    if varied.values is None:
        return distribution_of(varied)
    return CategoricalDistribution(tuple(dict.fromkeys(map(as_word, varied.values))))


def _param(varied: Varied, value: Value) -> Value:
    return value if varied.values is None else as_word(value)

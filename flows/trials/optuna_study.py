"""A search as a study of Optuna's, in a journal file or SQLite: for `optuna-dashboard FILE` and Optuna's own plots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headway.data_contracts.store.leftovers import scratch_folder
from headway.flows.console.output import write_whole
from headway.flows.trials.summary import TrialsSummary
from headway.tasks.search.optuna_files import SQLITE_ENDINGS, study_storage
from headway.tasks.search.proposals import distribution_of
from headway.tasks.search.space import Varied
from headway.tasks.search.trials_spec import TrialsSpec
from headway.tasks.search.values import Value, shown

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def write_study(summary: TrialsSummary, spec: TrialsSpec, file: Path) -> None:
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
    return CategoricalDistribution(tuple(dict.fromkeys(map(shown, varied.values))))


def _param(varied: Varied, value: Value) -> Value:
    return value if varied.values is None else shown(value)

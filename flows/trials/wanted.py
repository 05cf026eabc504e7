"""Which trials a pipeline file asks for."""

from __future__ import annotations

from headway.data_contracts.store.errors import ConfigError
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.tasks.core.trials_spec import Trial

EXAMPLE = "trials: {vary: {optimizer.lr: {log_uniform: [0.001, 0.1]}}, draws: 8}"


def wanted_trials(pipeline: PipelineSpec) -> tuple[tuple[Trial, ...], int]:
    """All of them, and how many may train at a time.

    Raises:
        ConfigError: the file asks for none.
    """
    if pipeline.trials is None:
        raise ConfigError(
            "the pipeline file has no trials.", where=pipeline.pipeline, advice=f"Say what varies: `{EXAMPLE}`."
        )
    return pipeline.trials.trials(pipeline.training), pipeline.trials.max_parallel

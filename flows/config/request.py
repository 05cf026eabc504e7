"""What a retrain, or a round of trials, is asked with, so that the Prefect form, the CLI and a schedule ask alike."""

from __future__ import annotations

import os
import shlex
from typing import Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, field_validator, model_validator

from headway.data_contracts.store.errors import StopReason
from headway.flows.console.commands import resume_command, retrain_command, trials_command, tune_command
from headway.flows.console.environment import default_workspace
from headway.training.launch.base.stop_request import StopRequest


class TrainingRequest(BaseModel):
    """What is the same whatever is trained."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pipeline: str = Field(
        title="Pipeline",
        description="A pipeline file, or the name of one in the folder deployments.",
        examples=["stdlib-lm"],
    )
    workspace: str = Field(
        default_factory=default_workspace,
        title="Workspace",
        description="Folder or URI that holds data, checkpoints and models. Left empty: the worker's "
        "HEADWAY_WORKSPACE, or the folder workspace of the project.",
    )
    may_promote: bool = Field(
        default=True,
        title="May become champion",
        description="Off: train, evaluate and register, but leave the champion as it is.",
    )
    may_register: bool = Field(
        default=True,
        title="May be registered",
        description="Off: train and evaluate, and say what the policy makes of it; nothing is registered and no alias "
        "moves.",
    )
    note: str = Field(default="", title="Note", description="Why this retrain was asked for; kept in the ledger.")
    in_window: bool = Field(
        default=False,
        title="Only in its windows",
        description="On: outside the pipeline's windows nothing runs, and at a window's end training yields to the "
        "next. Schedules set it.",
    )
    stop_at: AwareDatetime | None = Field(
        default=None,
        title="Stop at",
        description="By then a checkpoint is kept and the run ends; the next retrain continues it. None: at no time.",
    )
    stop_because: StopReason = Field(
        default="requested",
        title="Stop because",
        description="What the time to stop at means, where one is set; kept in the ledger.",
    )
    wait_s: float | None = Field(
        default=None,
        ge=0,
        title="Wait for another retrain, in seconds",
        description="Where another process works on the same run: how long to wait until it has ended. None: not at "
        "all, and end with its name.",
    )

    @property
    def command(self) -> str:
        """What a person types to ask for the same, or to resume it, with no other bound than the windows."""
        raise NotImplementedError

    @property
    def stop(self) -> StopRequest:
        """Raises `RunStopped` when the time is over already."""
        return self._bound(at_step=None)

    def _bound(self, at_step: int | None) -> StopRequest:
        if self.stop_at is None:
            return StopRequest(at_step=at_step)
        bound = StopRequest(at_unix_s=self.stop_at.timestamp(), at_step=at_step, reason=self.stop_because)
        where = "" if self.in_window else " without a bound"
        bound.require_time("the retrain", advice=f"`{self.command}` runs{where}.")
        return bound

    @property
    def _options(self) -> list[str]:
        wanted = {
            "--no-promote": not self.may_promote,
            "--no-register": not self.may_register,
            "--in-window": self.in_window,
        }
        return [name for name, is_on in wanted.items() if is_on]

    @field_validator("workspace")
    @classmethod
    def _excluded(cls, value: str) -> str:
        # A form sends an emptied field as an empty text.
        return value or default_workspace()


class RetrainRequest(TrainingRequest):
    """Retrain one model from its pipeline file."""

    stop_at_step: int | None = Field(
        default=None,
        gt=0,
        title="Stop at step",
        description="Train to this step and end; the next retrain continues. None: to the last.",
    )

    run: str = Field(
        default="",
        title="Run to resume",
        description="An unfinished run of this pipeline, or the beginning of its id, to resume on its own code and "
        "data. Left empty: what the files say now.",
    )
    from_step: int | None = Field(
        default=None,
        ge=0,
        title="Resume from step",
        description="With a run: quarantine its checkpoints past this step, and resume from there. None: its newest.",
    )

    @property
    def stop(self) -> StopRequest:
        return self._bound(at_step=self.stop_at_step)

    @property
    def command(self) -> str:
        if self.run:
            return resume_command(self.run, self.pipeline, self.workspace, *self._options)
        return retrain_command(self.pipeline, self.workspace, *self._options)

    @model_validator(mode="after")
    def _goes_back_in_a_run(self) -> Self:
        if self.from_step is not None and not self.run:
            raise ValueError("from_step needs the run that goes back to it")
        if self.run and self.in_window:
            raise ValueError("a run is resumed by hand; its windows carry on by themselves what they cut")
        return self


class TrialsRequest(TrainingRequest):
    """Try out settings of one pipeline's training, as its file's `trials` says, and continue with the best."""

    @property
    def command(self) -> str:
        return trials_command(self.pipeline, self.workspace, *self._options)


CONTINUED_BY = "HEADWAY_CONTINUED_BY"
"""The command that asked for a comparison with a file which goes with it."""


class ComparisonRequest(TrainingRequest):
    """Hold a pipeline's settings of training and encoder against those of another pipeline file, over seeds."""

    against: str = Field(title="Against", description="The other pipeline file; `training` and the encoder are taken.")
    seeds: int = Field(default=3, ge=1, le=10, title="Seeds", description="With how many each is trained to its end.")

    @property
    def command(self) -> str:
        if asked_by := os.environ.get(CONTINUED_BY):
            return asked_by
        options = ("--against", shlex.quote(self.against), "--seeds", str(self.seeds))
        return trials_command(self.pipeline, self.workspace, *options, *self._options)


class TuneRequest(TrainingRequest):
    """Measure settings of one pipeline that move no bit."""

    rounds: int = Field(default=5, ge=3, le=50, title="Rounds", description="How often each value takes its turn.")

    advise: bool = Field(
        default=False,
        title="Advise",
        description="On: also try learning rates, larger micro-batches and `compile`; none is taken.",
    )

    @property
    def command(self) -> str:
        options = (f"--rounds {self.rounds}", *(["--advise"] if self.advise else []))
        return tune_command(self.pipeline, self.workspace, *options)

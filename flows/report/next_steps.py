"""What a failure card says comes next: what starts by itself, and what a person mends and runs."""

from __future__ import annotations

import datetime
from pathlib import Path

from headway.data_contracts.store.errors import HeadwayError
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.windows.gate import opens_next
from headway.flows.windows.openings import UTC, Timetable
from headway.flows.windows.overrides import read_overrides
from headway.tasks.ownership.current_run import is_permanent

TO_FIX = {
    "contract": "the data or the contract",
    "data": "the source or the pipeline file",
    "config": "the pipeline file",
}
"""What a person mends before the same retrain can do better, by the error's cause, where that names no file itself."""
FIRST_STEP = {
    "training": "Mend what the first rank that failed names above",
    "oom": "Free memory, or train with a smaller batch or model",
    "environment": "Put right what is named above",
    "integrity": "Bring back what is named above, if it is yours: what Headway made is made again",
    "registry": "Put MLflow right, as named above",
    "promotion": "Read the reasons above and decide: mend the model, or promote it by hand",
    "infrastructure": "Look after the machines that were lost",
    "defect": "Report it with its traceback",
}
"""What a person does before the next retrain where another may do better, by the card's cause."""


def what_to_fix(error: Exception) -> str | None:
    """What a person mends before the same retrain can do better; None where another retrain may do better by itself."""
    if not isinstance(error, HeadwayError):
        return None
    if error.cause == "config":
        # A place is a file, or begins with one: what is wrong may stand in the contract or in a recipe's code.
        file = Path(error.where.partition(":")[0])
        if file.is_file():
            return file.name
    return TO_FIX.get(error.cause)


def next_steps(workspace: Workspace, pipeline: PipelineSpec, error: Exception, step: int | None) -> str:
    """Some sentences for a person; the card has the command itself, where it can be copied.

    Args:
        step: of the newest checkpoint, if there is one.

    Raises:
        EnvironmentProblem: the workspace does not answer.
    """
    cause = error.cause if isinstance(error, HeadwayError) else "defect"
    mended = what_to_fix(error)
    goes_on = f"resumes from step {step}" if step else "begins anew"
    # A run that failed for good is given up, so that no checkpoint of it is resumed.
    begins = "takes data and code as they are then" if is_permanent(error) else goes_on
    if pipeline.windows is None:
        if mended is not None:
            again = "Until then every retrain fails the same way."
            return f"Mend {mended}, then run the same command, which is below. {again}"
        first = FIRST_STEP.get(cause, FIRST_STEP["environment"])
        return (
            f"{first}; then run the same command, which is below. The pipeline waits until somebody or a trigger asks "
            f"for a retrain, which {begins}."
        )
    timetable = Timetable(spec=pipeline.windows, overrides=read_overrides(workspace, pipeline.pipeline))
    opens = opens_next(pipeline.windows, timetable.next_opening(datetime.datetime.now(UTC)))
    if mended is not None:
        return f"{opens} Where it is deployed, a retrain starts then, and is refused again unless {mended} is mended."
    again = " What failed for good fails again there, unless somebody mends it." if is_permanent(error) else ""
    return f"{opens} Where it is deployed, a retrain starts then and {begins}.{again}"

"""A flow that is refused as the data of a retrain are; with an argument, because another error came before."""

from __future__ import annotations

import sys
from pathlib import Path

from prefect import flow, task

from headway.data_contracts.store.errors import DataError
from headway.flows.report.failure_card import FailureCard
from headway.flows.report.run_log import run_log
from headway.training.launch.base.failure import Failure


@task
def read(has_cause: bool) -> None:
    try:
        Path("/no/such/file").read_text()
    except OSError as error:
        if has_cause:
            raise DataError("cannot be read.", where="a.csv") from error
    raise DataError("lacks `spend`.", where="a.csv", advice="Mend the file.")


@flow
def retrain(has_cause: bool) -> None:
    (listener,) = run_log()
    try:
        read(has_cause)
    finally:
        card = FailureCard(
            pipeline="tiny",
            workspace="w",
            flow_run="f",
            unix_s=1.0,
            stage="snapshot",
            failure=Failure.of(DataError("lacks `spend`.", where="a.csv", advice="Mend the file.")),
            next="Nothing.",
            commands={"resume": "headway retrain tiny"},
        )
        listener({"event": "flow.card", **card.model_dump(mode="json")})


if __name__ == "__main__":
    retrain(len(sys.argv) > 1)

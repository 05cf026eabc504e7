"""What a pipeline file may say of the registry."""

from __future__ import annotations

from typing import Never

import pytest
from pydantic import ValidationError

from headway.data_contracts.store.documents import Link, Registration
from headway.flows.report.terminal import notice_line
from headway.tasks.core.context import RunContext
from headway.tasks.core.stage import StageOutput
from headway.tasks.registry.promotion_spec import PromotionSpec
from headway.tasks.stages import register as stage
from headway.tasks.stages.register import RegistrySpec, registration_inputs
from headway.training.launch.base.gang import LaunchSpec
from headway.training.observe.ledger import Event

MODEL = "tiny"
CHECKPOINT = Link(kind="checkpoint", sha256="c" * 64)


@pytest.mark.parametrize(
    "uri",
    [
        "http://user:secret@mlflow:5000",
        "https://secret@mlflow.example.org",
        "postgresql://u:secret@db/mlflow",
        "postgresql://db/mlflow?user=u&password=secret",
        "mysql://db/mlflow?user=u&passwd=secret",
        "https://mlflow.example.org?token=secret",
    ],
)
def test_a_password_or_token_in_the_tracking_uri_is_refused_without_repeating_it(uri: str) -> None:
    with pytest.raises(ValidationError, match="a password or token does not belong in a pipeline file") as caught:
        RegistrySpec(model="m", tracking_uri=uri)
    assert "secret" not in caught.value.errors(include_input=False)[0]["msg"]


@pytest.mark.parametrize(
    "uri", ["", "sqlite:////a/mlflow.db", "postgresql://user@db/mlflow", "https://mlflow.example.org"]
)
def test_a_tracking_uri_without_a_password_is_taken(uri: str) -> None:
    assert RegistrySpec(model="m", tracking_uri=uri).tracking_uri == uri


def test_a_checkpoint_is_one_registration_under_a_name_in_whichever_store() -> None:
    here = registration_inputs(RegistrySpec(model="m"), CHECKPOINT)
    assert here == registration_inputs(RegistrySpec(model="m", tracking_uri="http://mlflow:5000"), CHECKPOINT)
    assert here != registration_inputs(RegistrySpec(model="n"), CHECKPOINT)


def test_nobody_reads_that_it_is_registered_before_there_is_a_version(
    context: RunContext, register, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of the stage's time goes into MLflow, after its files are made: it may be interrupted there."""
    registration, evaluation = register(1)
    document = context.workspace.load(registration, Registration)
    heard: list[Event] = []
    context.ledger.listeners.append(heard.append)

    def interrupted(*_: object) -> Never:
        raise KeyboardInterrupt

    monkeypatch.setattr(stage, "_export", lambda *_: StageOutput(document=document))
    monkeypatch.setattr(stage, "settle", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stage.register(
            context, RegistrySpec(model=MODEL), PromotionSpec(), LaunchSpec(), document.checkpoint, evaluation
        )
    lines = [line for line in map(notice_line, heard) if line.startswith("register")]
    assert len(lines) == 1 and lines[0].split()[1] == "stopped"

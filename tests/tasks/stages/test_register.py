"""What a pipeline file may say of the registry."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from headway.data_contracts.store.documents import Link
from headway.tasks.stages.register import RegistrySpec, registration_inputs

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

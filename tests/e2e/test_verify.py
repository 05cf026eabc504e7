"""`headway verify`: passes offline, and one flipped bit in any artifact is found and named."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.tasks.prove.prove import OUTSIDE as UNPROVED

MODEL = "models:/tiny@champion"

ARTIFACTS = {
    "registered graph": "models/tiny/*/artifacts/model.pt2",
    "registered description": "models/tiny/*/MLmodel",
    "registered report": "models/tiny/*/reports/contract.html",
    "MLflow's copy": "mlartifacts/**/model.pt2",
    "registration document": "documents/registration/*.json",
    "evaluation document": "documents/evaluation/*.json",
    "checkpoint document": "documents/checkpoint/*.json",
    "checkpoint tensors": "runs/*/checkpoints/step-00000120/tensors-00001-of-00002.safetensors",
    "checkpoint manifest": "runs/*/checkpoints/step-00000120/manifest.json",
    "checkpoint proof batch": "runs/*/checkpoints/step-00000120/proof.safetensors",
    "run document": "documents/run/*.json",
    "code archive": "code/*.zip",
    "environment": "environments/*.json",
    "shard manifest": "documents/manifest/*.json",
    "shard": "shards/**/*.parquet",
    "fitted document": "documents/fitted/*.json",
    "fitted file": "fitted/**/tokenizer.json",
    "receipt": "documents/receipt/*.json",
    "contract": "contracts/*.yaml",
    "snapshot document": "documents/snapshot/*.json",
}


@pytest.fixture
def verify(project, capsys: pytest.CaptureFixture[str]) -> Callable[[], tuple[int, dict[str, object]]]:
    """Exit code and verdict of the command, in this process."""
    from headway.flows.show.verify import verify_model

    def run() -> tuple[int, dict[str, object]]:
        code = verify_model(MODEL, str(project.workspace), as_json=True)
        return code, json.loads(capsys.readouterr().out)

    return run


def broken(message: dict[str, object]) -> list[dict[str, str]]:
    return [link for link in message["links"] if link["status"] == "broken"]  # type: ignore[attr-defined]


def offline() -> tuple[str, ...]:
    """A wrapper that takes the network away, or nothing where the kernel does not let us."""
    wrapper = ("unshare", "--net", "--map-root-user")
    try:
        allowed = subprocess.run([*wrapper, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    return wrapper if allowed else ()


def test_it_proves_the_champion_without_a_network(project) -> None:
    wrapper = offline()
    done = project.headway("verify", MODEL, wrapper=wrapper)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"{MODEL}: proved"
    assert "BROKEN" not in done.stdout and "gone" not in done.stdout
    assert done.stdout.splitlines()[-2].startswith("Outside the proof: HTML reports")
    if not wrapper:
        pytest.skip("proved, but with the network at hand: no network namespace can be made here")


@pytest.fixture
def command(here, project, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    monkeypatch.chdir(project.root)
    return lambda model: here("verify", model)


def test_one_flipped_bit_makes_the_command_fail_and_name_the_file(project, command, flip_one_bit) -> None:
    tensors = project.file(ARTIFACTS["checkpoint tensors"])
    flip_one_bit(tensors)
    done = command(MODEL)
    assert done.returncode == 5
    assert f"BROKEN  {tensors.relative_to(project.workspace)}" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("artifact", ARTIFACTS)
def test_one_flipped_bit_is_found_and_named(project, verify, flip_one_bit, artifact: str) -> None:
    path: Path = project.files(ARTIFACTS[artifact])[0]
    flip_one_bit(path)
    code, message = verify()
    assert code == 5
    assert message["verdict"] == "broken"
    (link,) = broken(message)
    # The file itself, never a copy that was fetched somewhere else.
    relative = path.relative_to(project.workspace).as_posix()
    named = relative if "mlartifacts" in relative else path.name
    assert named in link["what"] + link["detail"], link


OUTSIDE = (
    *("reports/*.html", "stages/*/*.json", "shards/*/group.json", "ledger/*/flow.jsonl", "ledger/*/summary.json"),
    *("cards/*/*.md", "documents/decision/*.json", "refs/models/*/decisions/*.json"),
    *(
        "runs/*/attempts.jsonl",
        "runs/*/verify/result.json",
        "reports/outputs-*",
        "refs/pipelines/*/*.json",
        "refs/fitted/**/*.json",
        "refs/accepted/**/*.json",
    ),
)


def test_what_it_says_lies_outside_the_proof_is_not_needed_for_it(project, verify) -> None:
    inside = {path for pattern in ARTIFACTS.values() for path in project.files(pattern)}
    for pattern in OUTSIDE:
        for path in project.files(pattern):
            assert path not in inside
            path.write_bytes(b"")
    code, message = verify()
    assert (code, message["verdict"]) == (0, "proved")
    assert message["outside"] == list(UNPROVED)


@pytest.mark.parametrize("artifact", ARTIFACTS)
def test_a_lost_file_is_named(project, verify, artifact: str) -> None:
    path: Path = project.files(ARTIFACTS[artifact])[0]
    path.unlink()
    code, message = verify()
    assert (code, message["verdict"]) == (5, "broken")
    (link,) = broken(message)
    assert path.name in link["what"] + link["detail"], link


def test_a_tag_that_names_another_registration_is_found(project, verify) -> None:
    from headway.tasks.registry.mlflow_store import connect

    connect(f"sqlite:///{project.workspace / 'mlflow.db'}").set_model_version_tag(
        "tiny", "1", "headway.registration", "0" * 64
    )
    code, message = verify()
    assert code == 5
    assert "tag headway.registration" in broken(message)[0]["detail"]


def test_a_source_that_is_gone_leaves_the_shards_as_proof(project, verify) -> None:
    shutil.rmtree(project.root / "texts")
    code, message = verify()
    assert (code, message["verdict"]) == (0, "source gone, shards prove it")


def test_a_source_that_moved_on_is_told_and_the_shards_prove_the_model(project, verify) -> None:
    changed = project.root / "texts" / "part0" / "text00.txt"
    changed.write_text("other words\n")
    code, message = verify()
    assert (code, message["verdict"]) == (0, "source gone, shards prove it")
    (source,) = (link for link in message["links"] if link["what"] == "source")
    assert "1 file changed, such as part0/text00.txt" in source["detail"]


def test_a_model_nobody_registered_is_told_with_what_there_is(command) -> None:
    done = command("models:/tinny@champion")
    assert done.returncode == 2
    assert "tinny" in done.stderr and "tiny" in done.stderr
    assert len(done.stderr.splitlines()) == 1

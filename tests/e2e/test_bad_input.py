"""Bad input and a bad machine: one clear message, the right exit code, nothing half-published, nothing good lost."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.data_contracts.store.documents import ContractReceipt
from headway.data_contracts.store.errors import (
    ConfigError,
    ContractViolation,
    DataError,
    EnvironmentProblem,
    HeadwayError,
)


@pytest.fixture
def command(here, new_project) -> Callable[..., tuple[int, str]]:
    """Exit code and stderr of what is refused before Prefect is started."""

    def call(*arguments: str) -> tuple[int, str]:
        done = here(*arguments)
        return done.returncode, done.stderr

    return call


def retrain(command, project) -> tuple[int, str]:
    code, err = command("retrain", str(project.pipeline), "--workspace", str(project.workspace))
    return code, err


def assert_one_message(err: str, *words: str) -> None:
    assert "Traceback" not in err and "defect" not in err, err
    assert len(err.strip().splitlines()) == 1 and err.startswith("headway: "), err
    for word in words:
        assert word in err, err


def content(folder: Path) -> dict[str, bytes]:
    """What a workspace holds that is good for ever: documents, refs, models, shards; not that a retrain failed."""
    kept = ("documents", "refs", "stages", "models", "shards", "fitted", "contracts", "code")
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for name in kept
        for path in sorted((folder / name).rglob("*"))
        if path.is_file() and not {"pipelines", "pipeline-event"} & {*path.parts}
    }


def half_written(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name.endswith(".partial")]


def test_an_unknown_option_is_a_mistake_in_use(command) -> None:
    code, err = command("retrain", "--nope")
    assert code == 2
    assert "--nope" in err and "Traceback" not in err and "defect" not in err


def test_a_missing_pipeline_file(command, new_project) -> None:
    code, err = command("retrain", str(new_project.root / "absent.yaml"))
    assert code == 2
    assert_one_message(err, "absent.yaml", "no such pipeline file")


def test_malformed_yaml(command, new_project) -> None:
    new_project.edit("tiny.yaml", "training:\n", "training: [\n")
    code, err = retrain(command, new_project)
    assert code == 2
    assert_one_message(err, "tiny.yaml:")
    assert not new_project.workspace.exists()


@pytest.mark.parametrize(
    ("key", "typo", "nearest"),
    [
        ("  max_steps:", "  max_step:", "max_steps"),
        ("shards:", "shard:", "shards"),
        ("  encoder: {kind: byte-pair, vocab_size", "  encoder: {kind: byte-pair, vocab_sise", "vocab_size"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_name(
    command, new_project, key: str, typo: str, nearest: str
) -> None:
    new_project.edit("tiny.yaml", key, typo)
    code, err = retrain(command, new_project)
    assert code == 2
    assert_one_message(err, nearest)
    assert not new_project.workspace.exists()


def test_an_unknown_field_of_the_model_is_answered_in_the_words_of_the_rank_that_builds_it(project, train_here) -> None:
    project.edit("tiny.yaml", "width: 32", "wdith: 32")
    with pytest.raises(ConfigError) as refused:
        train_here(project)
    assert "wdith" in str(refused.value) and "width" in str(refused.value)
    assert len(project.files("stages/launch/*.json")) == 1


@pytest.mark.parametrize(
    "batch",
    ["global_batch_sequences: 12\n  micro_batch_sequences: 4", "global_batch_sequences: 8\n  micro_batch_sequences: 8"],
)
def test_impossible_batch_arithmetic(command, new_project, batch: str) -> None:
    new_project.edit("tiny.yaml", "  max_steps", f"  {batch}\n  max_steps")
    code, err = retrain(command, new_project)
    assert code == 2
    assert_one_message(err, "replicas")


@pytest.mark.parametrize("order", ["plan", "retrain"])
@pytest.mark.parametrize(
    ("edits", "problems"),
    [
        (
            {"sequence_tokens: 32": "sequence_tokens: 33", "vocab_size: 300": "vocab_size: 301"},
            ["1 heads do not divide by tensor 2", "33 % 2 = 1", "301 % 2 = 1"],
        ),
        ({"tensor: 2": "pipeline: 2"}, ["1 blocks are fewer than 2 pipeline stages"]),
        ({"recipe: {": "recipe: {name: digits:Own, "}, ["digits:Own brings no tensor_plan"]),
        ({"recipe: {": "recipe: {name: image-classifier, "}, ["does not read what the encoder byte-pair makes"]),
    ],
    ids=["sizes", "blocks", "own recipe", "other data"],
)
def test_what_ranks_would_refuse_is_refused_at_once_with_the_arithmetic(
    command, new_project, order: str, edits: dict[str, str], problems: list[str]
) -> None:
    (new_project.root / "digits.py").write_text("class Own:\n    def build(self): ...\n")
    new_project.edit("tiny.yaml", "training:\n", "training:\n  parallel: {mode: fast, tensor: 2}\n")
    for old, new in edits.items():
        new_project.edit("tiny.yaml", old, new)
    code, err = command(order, str(new_project.pipeline), "--workspace", str(new_project.workspace))
    assert code == 2
    assert_one_message(err, *problems)
    assert not new_project.workspace.exists(), "no rank was started, and no folder made for one"


def test_an_unknown_scalar_to_rank_checkpoints_by_is_answered_with_the_nearest(command, new_project) -> None:
    new_project.edit("tiny.yaml", "  checkpoints:\n", "  checkpoints:\n    best_by: los\n")
    code, err = retrain(command, new_project)
    assert code == 2
    assert_one_message(err, "no checkpoint has a scalar 'los'; did you mean loss?")
    assert not new_project.workspace.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--stop-at", "2030-13-01T00:00Z"), "no ISO 8601 time"),
        (("--stop-at", "0001-01-01"), "no ISO 8601 time"),
        (("--stop-at", "9999-12-31T23:59-05:00"), "no ISO 8601 time"),
        (("--stop-at", "2030-01-01T00:00"), "names no time zone. In this machine's zone it is 2030-01-01T00:00"),
        (("--stop-after", "soon"), "'soon' is no length of time. Write it such as 90s"),
        (("--stop-after", "0s"), "'0s' is no length of time"),
        (("--stop-after", "99999999999d"), "no length of time"),
    ],
)
def test_a_bound_that_is_none_is_refused(command, new_project, options: tuple[str, ...], message: str) -> None:
    code, err = command("retrain", str(new_project.pipeline), *options)
    assert code == 2
    assert_one_message(err, message)


def test_a_time_that_is_over_already_starts_nothing_and_says_so(command, new_project) -> None:
    folder = str(new_project.workspace)
    bound = ("--stop-at", "2020-01-31T06:00+01:00")
    code, err = command("retrain", str(new_project.pipeline), "--workspace", folder, *bound)
    assert code == 75
    assert_one_message(
        err, "window closed (the time was over at 2020-01-31T05:00:00+00:00): the retrain was not started"
    )
    assert not new_project.workspace.exists()


def test_a_missing_contract(command, new_project) -> None:
    (new_project.root / "contract.yaml").unlink()
    code, err = retrain(command, new_project)
    assert code == 2
    assert_one_message(err, "contract.yaml")


def test_an_unknown_key_in_the_contract_is_answered_with_the_nearest_name(command, new_project) -> None:
    new_project.edit("contract.yaml", "rules:", "ruels:")
    code, err = retrain(command, new_project)
    assert code == 2
    assert_one_message(err, "contract.yaml", "`rules`")


def test_a_workspace_that_is_a_file(command, new_project) -> None:
    new_project.workspace.write_text("in the way")
    code, err = retrain(command, new_project)
    assert code == 8
    assert_one_message(err, str(new_project.workspace))
    assert new_project.workspace.read_text() == "in the way"


@pytest.mark.parametrize("option", ["--prefect-port", "--mlflow-port"])
def test_a_taken_port_is_named_with_the_option_that_chooses_another(command, new_project, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, err = command("ui", "--workspace", str(new_project.workspace), option, port)
    assert code == 8
    assert_one_message(err, f"port {port}", option)


def test_status_where_there_is_no_workspace(command, new_project) -> None:
    code, err = command("status", "--workspace", str(new_project.workspace))
    assert code == 8
    assert_one_message(err, str(new_project.workspace))
    assert not new_project.workspace.exists()


def assert_refused(error: HeadwayError, exit_code: int, *words: str) -> None:
    """As the command would tell it."""
    assert error.exit_code == exit_code
    assert_one_message(f"headway: {error}\n", *words)


def test_an_empty_source(project, retrain_here) -> None:
    before = content(project.workspace)
    shutil.rmtree(project.root / "texts")
    (project.root / "texts").mkdir()
    with pytest.raises(DataError) as refused:
        retrain_here(project)
    assert_refused(refused.value, 3, "empty", "texts")
    assert content(project.workspace) == before


def test_an_unreadable_source_file(project, retrain_here) -> None:
    before = content(project.workspace)
    (project.root / "texts" / "part0" / "gone.txt").symlink_to(project.root / "nowhere")
    with pytest.raises(DataError) as refused:
        retrain_here(project)
    assert_refused(refused.value, 3, "gone.txt", "cannot be read")
    assert content(project.workspace) == before


def test_data_that_break_their_contract_train_nothing_and_leave_a_receipt_and_a_report(project, retrain_here) -> None:
    before = content(project.workspace)
    (project.root / "texts" / "part0" / "wide.txt").write_text("x" * 501 + "\n")
    done = project.retrain()
    assert done.returncode == 4
    assert_one_message(done.stderr, "line-length", "reports/contract-")
    assert len([page for page in project.files("reports/contract-*.html") if str(page) in done.stderr]) == 1
    (card,) = project.files("ledger/*/failure.md")
    assert "tiny failed in stage validate" in done.stdout and "line-length" in card.read_text()
    receipts = [
        ContractReceipt.from_bytes(path.read_bytes(), where="") for path in project.files("documents/receipt/*.json")
    ]
    assert sorted(receipt.passed for receipt in receipts) == [False, True]
    after = content(project.workspace)
    assert {name: after[name] for name in before} == before
    assert not [name for name in after.keys() - before.keys() if name.startswith(("shards", "models", "refs"))]
    assert len(project.attempts()) == 1, "nothing was trained"
    with pytest.raises(ContractViolation) as again:
        retrain_here(project)
    assert f"headway: {again.value}\n" == done.stderr, "found, and refused again"


def test_a_shard_that_went_bad_is_never_trained_on(project, train_here, flip_one_bit) -> None:
    """Between sharding and training: the next retrain makes it anew, then trains."""
    undisturbed = project.result()
    project.forget_training()
    shard = project.files("shards/**/*.parquet")[0]
    good = shard.read_bytes()
    flip_one_bit(shard)
    train_here(project)
    assert shard.read_bytes() == good
    assert project.result() == undisturbed


@pytest.fixture
def by_hand(project) -> Callable[[], subprocess.CompletedProcess[str]]:
    """A worker that a person starts with torchrun, around the flow and its gates."""

    def start(run: str) -> subprocess.CompletedProcess[str]:
        run_dir = project.workspace / "runs" / run[:16]
        return subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--standalone"),
                *("-m", "headway.training.programs.worker", "--workspace", str(project.workspace)),
                *("--run-spec", run, "--run-dir", str(run_dir)),
            ],
            env={**project.environment, "GLOO_SOCKET_IFNAME": "lo"},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return start


def alter_document(workspace: Path, kind: str, change: Callable[[dict[str, object]], None]) -> str:
    """A document like the one there is, changed, and named by its own digest as it must be."""
    from headway.data_contracts.store.digests import canonical_json, sha256_bytes

    (path,) = (workspace / "documents" / kind).glob("*.json")
    value = json.loads(path.read_bytes())
    change(value)
    data = canonical_json(value)
    path.with_name(f"{sha256_bytes(data)}.json").write_bytes(data)
    return sha256_bytes(data)


@pytest.mark.long
def test_a_worker_started_by_hand_is_refused_when_the_receipt_is_of_other_data(project, by_hand) -> None:
    other = alter_document(project.workspace, "receipt", lambda receipt: receipt.update(num_rows=1))
    run = alter_document(project.workspace, "run", lambda run: run["receipt"].update(sha256=other))  # type: ignore
    by_hand(run)
    marker = json.loads((project.workspace / "runs" / run[:16] / "attempts" / "000" / "rank-0.json").read_bytes())
    assert (marker["state"], marker["failure"]["exit_code"], marker["failure"]["cause"]) == ("failed", 4, "contract")
    assert not (project.workspace / "runs" / run[:16] / "checkpoints").exists()


@pytest.mark.long
def test_no_space_left_loses_nothing_and_the_next_retrain_goes_on(new_project, new_disk, train_here) -> None:
    small_disk = new_disk(8 << 20, new_project.workspace)
    filler = small_disk / "filler"
    filler.write_bytes(b"\0" * ((8 << 20) - (120 << 10)))  # leaves room for documents, not for the shards
    with pytest.raises(EnvironmentProblem) as refused:
        train_here(new_project)
    assert_refused(refused.value, 8, "no space left")
    assert half_written(small_disk) == []
    assert new_project.files("documents/receipt/*.json")
    assert not new_project.files("documents/manifest/*.json"), "a manifest comes last"
    filler.unlink()
    events = train_here(new_project)
    ended = {e["event"]: e["found"] for e in events if e["event"].startswith("stage.") and "duration_s" in e}
    assert (ended["stage.snapshot"], ended["stage.validate"], ended["stage.shard"]) == (True, True, False)
    assert new_project.result()["step"] == 120


def test_a_workspace_that_may_not_be_written(command, new_project, new_disk) -> None:
    new_disk(1 << 20, new_project.workspace, "ro")
    code, err = retrain(command, new_project)
    assert code == 8
    assert_one_message(err, str(new_project.workspace))


def test_no_space_left_for_temporary_files_is_said_and_loses_nothing(
    project, new_disk, retrain_here, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.forget_the_registration()
    before = content(project.workspace)
    small_disk = new_disk(64 << 10)  # not enough for the model that MLflow is to keep
    monkeypatch.setenv("TMPDIR", str(small_disk))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(EnvironmentProblem) as refused:
        retrain_here(project)
    assert_refused(refused.value, 8, str(small_disk), "no space left", "TMPDIR")
    assert content(project.workspace) == before
    assert not list(small_disk.glob("headway-*"))


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/api", "127.0.0.1:4200"])
def test_a_prefect_server_that_is_not_there(new_project, url: str) -> None:
    new_project.settings["PREFECT_API_URL"] = url
    done = new_project.retrain()
    assert done.returncode == 8, done.stderr
    assert_one_message(done.stderr, url, "PREFECT_API_URL")
    assert done.stdout == ""

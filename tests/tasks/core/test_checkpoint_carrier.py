"""What a machine commits is published behind its training, manifest last, and another machine takes the newest good."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from blake3 import blake3

from headway.data_contracts.store.digests import canonical_json
from headway.data_contracts.store.documents import (
    CheckpointFile,
    CheckpointManifest,
    DeviceFingerprint,
    Link,
    ProofBatch,
)
from headway.data_contracts.store.errors import EnvironmentProblem, IntegrityError, Superseded
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.checkpoint_carrier import CheckpointCarrier
from headway.training.checkpoint.layout import BEST_STEP, RunResult, directory_name, seal
from headway.training.observe.ledger import Event, Ledger, read_events
from tests.waiting import wait_until

RUN = Link(kind="run", sha256="ab" * 32)
FOLDER = "runs/abababab"
NAMES = ["manifest.json", "manifest.sha256", "proof.safetensors", "tensors.safetensors"]


@pytest.fixture
def workspace(new_bucket: Callable[[], str]) -> Workspace:
    return Workspace.create(f"s3://{new_bucket()}/team")


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "flow.jsonl"


def carrier(workspace: Workspace, spool: Path, run: Link = RUN) -> CheckpointCarrier:
    return CheckpointCarrier(workspace, FOLDER, run, Ledger(spool))


def events(spool: Path, name: str) -> list[Event]:
    return [event for event in read_events(spool) if event["event"] == name]


def commit(workspace: Workspace, step: int, *, run: Link = RUN, best: int | None = None, text: str = "tensors") -> Path:
    """A checkpoint as ranks leave it on their disk."""
    folder = workspace.local_path(f"{FOLDER}/checkpoints/{directory_name(step)}")
    folder.mkdir(parents=True)
    contents = {"proof.safetensors": b"proof %d" % step, "tensors.safetensors": f"{text} {step}".encode() * 100}
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    manifest = CheckpointManifest(
        run=run,
        step=step,
        num_samples=step,
        world_size=1,
        parent=None,
        files=tuple(
            CheckpointFile(
                name=n,
                size_bytes=len(d),
                blake3=blake3(d).hexdigest(),
                block_bytes=1 << 20,
                blocks=(xxhash.xxh3_128_hexdigest(d),),
            )
            for n, d in contents.items()
        ),
        layout=(),
        scalars={} if best is None else {BEST_STEP: best},
        proof=ProofBatch(file="proof.safetensors", loss_hex=(1.0).hex()),
        fingerprint=DeviceFingerprint(device="cpu", machine="m", cpu_capability="c", torch="t", num_threads=1),
    )
    (folder / "manifest.sha256").write_bytes(seal(manifest))
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    return folder


def published(workspace: Workspace) -> dict[str, list[str]]:
    where = f"{FOLDER}/checkpoints"
    return {name: workspace.names(f"{where}/{name}") for name in workspace.names(where)}


def lose_this_machine(workspace: Workspace) -> None:
    shutil.rmtree(workspace.local_root)


def test_a_checkpoint_is_published_while_training_goes_on_and_the_result_at_its_end(workspace, spool) -> None:
    with carrier(workspace, spool) as under_way:
        commit(workspace, 10)
        wait_until(lambda: published(workspace).get(directory_name(10)) == NAMES)

        def is_on_record() -> bool:
            under_way.emit_pending()  # which the thread that publishes adds to only then
            return [event["step"] for event in events(spool, "checkpoint.published")] == [10]

        wait_until(is_on_record)
        commit(workspace, 20)
        workspace.local_path(f"{FOLDER}/result.json").write_bytes(b"{}")
    assert published(workspace)[directory_name(20)] == NAMES
    assert workspace.read(f"{FOLDER}/result.json") == b"{}"


def test_another_machine_gets_the_newest_with_every_byte_and_the_result(workspace, spool) -> None:
    with carrier(workspace, spool):
        folder = commit(workspace, 10)
        workspace.local_path(f"{FOLDER}/result.json").write_bytes(b"{}")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    lose_this_machine(workspace)
    with carrier(workspace, spool):
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        assert workspace.local_path(f"{FOLDER}/result.json").read_bytes() == b"{}"
    assert [event["step"] for event in events(spool, "checkpoints.fetch")] == [None, 10]


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        *((name, "flip") for name in NAMES),
        ("tensors.safetensors", "lose"),
        *(pytest.param(name, "lose", marks=pytest.mark.soak) for name in NAMES if name != "tensors.safetensors"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_for_an_older_good_one(workspace, spool, name: str, harm: str) -> None:
    for step in (10, 20):
        with carrier(workspace, spool):
            commit(workspace, step)
    key = workspace.path(f"{FOLDER}/checkpoints/{directory_name(20)}/{name}")
    data = bytearray(workspace.fs.cat_file(key))
    data[len(data) // 2] ^= 4
    workspace.fs.rm_file(key) if harm == "lose" else workspace.fs.pipe_file(key, bytes(data))
    lose_this_machine(workspace)
    with carrier(workspace, spool):
        here = [path.parent.name for path in workspace.local_path(FOLDER).glob("checkpoints/*/manifest.json")]
        assert here == [directory_name(10)]
    (damaged,) = events(spool, "checkpoint.damaged")
    assert (damaged["step"], name in damaged["message"] or "manifest.json" in damaged["message"]) == (20, True)


NO_NAMES = ("../x", "../../../x", "/etc/x", "a\\b", "a\0b", "", ".", "x" * 300, "x" * 250, "manifest.json")


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_sealed_manifest_that_names_files_elsewhere_is_passed_over_for_an_older_good_one(
    workspace, spool, name: str
) -> None:
    """As who can write the bucket can write it: nothing is signed."""
    for step in (10, 20):
        with carrier(workspace, spool):
            folder = commit(workspace, step)
    manifest = CheckpointManifest.from_bytes((folder / "manifest.json").read_bytes(), where="")
    files = (manifest.files[0].model_copy(update={"name": name}), *manifest.files[1:])
    forged = manifest.model_copy(update={"files": files})
    place = f"{FOLDER}/checkpoints/{directory_name(20)}"
    workspace.publish(f"{place}/manifest.json", forged.to_bytes())
    workspace.publish(f"{place}/manifest.sha256", seal(forged))
    lose_this_machine(workspace)
    with carrier(workspace, spool):
        here = [path.relative_to(workspace.local_root) for path in workspace.local_root.rglob("*") if path.is_file()]
    assert sorted(map(str, here)) == [f"{FOLDER}/checkpoints/{directory_name(10)}/{kept}" for kept in NAMES]
    assert [event["step"] for event in events(spool, "checkpoint.damaged")] == [20]


def test_another_runs_checkpoint_is_not_taken(workspace, spool) -> None:
    other = Link(kind="run", sha256="cd" * 32)
    with carrier(workspace, spool, other):
        commit(workspace, 10, run=other)
    lose_this_machine(workspace)
    with carrier(workspace, spool):
        assert not workspace.local_path(f"{FOLDER}/checkpoints/{directory_name(10)}").exists()


def test_a_machine_that_is_as_far_fetches_nothing(workspace, spool) -> None:
    with carrier(workspace, spool):
        commit(workspace, 10)
    commit(workspace, 20)
    with carrier(workspace, spool):
        pass
    assert events(spool, "checkpoints.fetch")[-1]["step"] is None
    assert published(workspace)[directory_name(20)] == NAMES


def test_what_retention_deleted_here_goes_there_too_but_never_the_newest(workspace, spool) -> None:
    with carrier(workspace, spool):
        oldest = commit(workspace, 10)
        wait_until(lambda: len(published(workspace)) == 1)
        commit(workspace, 20)
        wait_until(lambda: len(published(workspace)) == 2)
        shutil.rmtree(oldest)
        commit(workspace, 30)
    assert list(published(workspace)) == [directory_name(20), directory_name(30)]


def result_of(workspace: Workspace, step: int) -> None:
    result = RunResult(
        run=RUN.sha256,
        step=step,
        checkpoint=directory_name(step),
        manifest_sha256="0" * 64,
        tensors_sha256="0" * 64,
    )
    workspace.local_path(f"{FOLDER}/result.json").write_bytes(canonical_json(result.model_dump()))


def test_the_best_checkpoint_goes_there_however_old_it_is_and_stays_there(workspace, spool) -> None:
    with carrier(workspace, spool):
        commit(workspace, 40, best=40)
        wait_until(lambda: len(published(workspace)) == 1)
        for step in (10, 30):  # as if 40 had overtaken them on their way
            commit(workspace, step, best=30 if step == 30 else 10)
        commit(workspace, 50, best=30)
        wait_until(lambda: directory_name(50) in published(workspace))
        shutil.rmtree(workspace.local_path(f"{FOLDER}/checkpoints/{directory_name(10)}"))
        shutil.rmtree(workspace.local_path(f"{FOLDER}/checkpoints/{directory_name(40)}"))
        commit(workspace, 60, best=30)
        result_of(workspace, 30)
    assert list(published(workspace)) == [directory_name(step) for step in (30, 50, 60)]
    assert all(names == NAMES for names in published(workspace).values())


def test_another_machine_gets_the_best_besides_the_newest_and_takes_it_from_nobody(workspace, spool) -> None:
    with carrier(workspace, spool):
        for step in (10, 20, 30):
            commit(workspace, step, best=10)
            wait_until(lambda step=step: published(workspace).get(directory_name(step)) == NAMES)
    lose_this_machine(workspace)
    with carrier(workspace, spool):
        here = {path.parent.name for path in workspace.local_path(FOLDER).glob("checkpoints/*/manifest.json")}
        assert here == {directory_name(10), directory_name(30)}
        commit(workspace, 40, best=10)
        result_of(workspace, 10)
    assert directory_name(10) in published(workspace)
    lose_this_machine(workspace)
    with carrier(workspace, spool):
        assert workspace.local_path(f"{FOLDER}/checkpoints/{directory_name(10)}/manifest.json").exists()


def test_what_is_trained_again_replaces_what_was_put_aside_for_it(workspace, spool) -> None:
    with carrier(workspace, spool):
        for step in (10, 20, 30):
            commit(workspace, step)
            wait_until(lambda step=step: published(workspace).get(directory_name(step)) == NAMES)
        for step in (20, 30):
            put_aside(workspace, step)
        wait_until(lambda: list(published(workspace)) == [directory_name(10)])
        again = commit(workspace, 20, text="other")
    assert list(published(workspace)) == [directory_name(10), directory_name(20)]
    place = f"{FOLDER}/checkpoints/{directory_name(20)}/tensors.safetensors"
    assert workspace.read(place) == (again / "tensors.safetensors").read_bytes()


def put_aside(workspace: Workspace, step: int) -> None:
    aside = workspace.local_path(f"{FOLDER}/abandoned/{directory_name(step)}.0")
    aside.parent.mkdir(exist_ok=True)
    workspace.local_path(f"{FOLDER}/checkpoints/{directory_name(step)}").rename(aside)


def test_what_is_trained_again_to_the_same_bits_stays_there(workspace, spool) -> None:
    with carrier(workspace, spool) as under_way:
        for step in (10, 20):
            commit(workspace, step)
            wait_until(lambda step=step: published(workspace).get(directory_name(step)) == NAMES)
        put_aside(workspace, 20)
        wait_until(lambda: list(published(workspace)) == [directory_name(10)])
        commit(workspace, 20)
        wait_until(lambda: published(workspace).get(directory_name(20)) == NAMES)
        commit(workspace, 30)
        wait_until(lambda: published(workspace).get(directory_name(30)) == NAMES)
        under_way.emit_pending()
    assert [event["step"] for event in events(spool, "checkpoint.published")] == [10, 20, 20, 30]
    with carrier(workspace, spool):
        pass
    assert list(published(workspace)) == [directory_name(step) for step in (10, 20, 30)]


def test_nobody_goes_on_from_what_was_put_aside_when_the_flow_was_killed(workspace, spool) -> None:
    with carrier(workspace, spool):
        for step in (10, 20):
            commit(workspace, step)
            wait_until(lambda step=step: published(workspace).get(directory_name(step)) == NAMES)
    put_aside(workspace, 20)  # and its flow is killed before it looks again
    with carrier(workspace, spool):
        assert not workspace.local_path(f"{FOLDER}/checkpoints/{directory_name(20)}").exists()
    assert events(spool, "checkpoints.fetch")[-1]["step"] is None
    assert list(published(workspace)) == [directory_name(10)]


def test_a_result_whose_checkpoint_went_bad_on_this_disk_is_not_published(workspace, spool) -> None:
    with pytest.raises(IntegrityError, match="model is not whole"), carrier(workspace, spool):
        folder = commit(workspace, 10)
        (folder / "tensors.safetensors").write_bytes(b"tensors 11" * 100)
        result_of(workspace, 10)
    assert "result.json" not in workspace.names(FOLDER)


def test_a_checkpoint_without_a_manifest_is_nobodys(workspace, spool) -> None:
    with carrier(workspace, spool):
        (commit(workspace, 10) / "manifest.json").unlink()
    assert published(workspace) == {}


def test_a_checkpoint_gone_bad_on_this_disk_is_not_published_as_good(workspace, spool) -> None:
    with carrier(workspace, spool):
        folder = commit(workspace, 10)
        (folder / "tensors.safetensors").write_bytes(b"tensors 11" * 100)
    assert "manifest.json" not in published(workspace).get(directory_name(10), [])
    assert [event["step"] for event in events(spool, "checkpoint.damaged")][:1] == [10]


def test_a_store_that_is_down_stalls_no_training_and_is_told_at_its_end(workspace, spool, monkeypatch) -> None:
    def down(*_arguments: object, **_options: object) -> None:
        raise EnvironmentProblem("writing failed 9 times.", where="s3://x")

    monkeypatch.setattr(workspace, "publish_expected", down)
    with pytest.raises(EnvironmentProblem, match="failed 9 times"), carrier(workspace, spool) as under_way:
        commit(workspace, 10)
        wait_until(lambda: under_way.emit_pending() or events(spool, "checkpoints.unpublished"))
    with pytest.raises(ZeroDivisionError), carrier(workspace, spool):
        raise ZeroDivisionError  # what ended the training is what is told


def test_who_lost_the_run_publishes_no_checkpoint_and_no_result_and_is_told_once(workspace, spool) -> None:
    def lost() -> None:
        raise Superseded("another machine goes on with the run.")

    with (
        pytest.raises(Superseded),
        CheckpointCarrier(workspace, FOLDER, RUN, Ledger(spool), lost) as under_way,
    ):
        commit(workspace, 10)
        workspace.local_path(f"{FOLDER}/result.json").write_bytes(b"{}")
        wait_until(lambda: not under_way._thread.is_alive())
        under_way.emit_pending()
        assert len(events(spool, "checkpoints.unpublished")) == 1
    assert workspace.names(FOLDER) == []


def test_who_loses_the_run_in_the_midst_of_a_checkpoint_neither_completes_it_nor_takes_another_away(
    workspace, spool
) -> None:
    with carrier(workspace, spool):
        commit(workspace, 10)
    before, asked = published(workspace), 0

    def lost_after_two() -> None:
        nonlocal asked
        asked += 1
        if asked > 2:
            raise Superseded("another machine goes on with the run.")

    with pytest.raises(Superseded), CheckpointCarrier(workspace, FOLDER, RUN, Ledger(spool), lost_after_two):
        shutil.rmtree(workspace.local_path(f"{FOLDER}/checkpoints"))
        commit(workspace, 20)
    after = published(workspace)
    assert after[directory_name(10)] == before[directory_name(10)] == NAMES
    assert len(after[directory_name(20)]) == 2 and "manifest.json" not in after[directory_name(20)]


def test_who_loses_the_run_once_a_checkpoint_is_safe_takes_no_expired_one_away(workspace, spool) -> None:
    with carrier(workspace, spool):
        commit(workspace, 10)
    asked = 0

    def lost_after_four() -> None:
        nonlocal asked
        asked += 1
        if asked > len(NAMES):
            raise Superseded("another machine goes on with the run.")

    with pytest.raises(Superseded), CheckpointCarrier(workspace, FOLDER, RUN, Ledger(spool), lost_after_four):
        shutil.rmtree(workspace.local_path(f"{FOLDER}/checkpoints"))
        commit(workspace, 20)
    assert published(workspace) == {directory_name(step): NAMES for step in (10, 20)}


def test_an_end_without_anything_to_publish_asks_nobody_whose_the_run_is(workspace, spool) -> None:
    def away() -> None:
        raise AssertionError("asked")

    with CheckpointCarrier(workspace, FOLDER, RUN, Ledger(spool), away):
        pass


def test_a_folder_needs_no_carrying(tmp_path: Path, spool) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    with carrier(workspace, spool):
        folder = commit(workspace, 10)
    assert sorted(path.name for path in folder.iterdir()) == NAMES
    assert read_events(spool) == []


def test_what_a_pause_leaves_of_a_run_is_all_that_is_left_of_it_there(workspace, spool) -> None:
    with carrier(workspace, spool) as under_way:
        for step in (10, 20):
            folder = commit(workspace, step)
            wait_until(lambda name=folder.name: name in published(workspace))
        shutil.rmtree(workspace.local_path(f"{FOLDER}/checkpoints/{directory_name(10)}"))
        under_way.emit_pending()
    assert list(published(workspace)) == [directory_name(20)]

"""A run that is validated ends where and with what it would have, on any number of ranks and through any end of one."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.data_contracts.store.errors import IntegrityError, RunStopped
from headway.training.checkpoint.layout import committed_steps, directory_name
from headway.training.checkpoint.read import read_checkpoint
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.config.optimizer import EmaSpec, OptimizerSpec
from headway.training.config.parallel import ParallelSpec
from headway.training.config.shards import VALIDATION
from headway.training.config.validation import ValidationSpec
from headway.training.data.load.device_copy import to_tensors
from headway.training.data.load.shard_reader import ShardReader
from headway.training.evaluation import validation_rows as validation_rows_module
from headway.training.evaluation.scorers import score_all, scorer_of
from headway.training.evaluation.validation_rows import ValidationRows, held_bytes
from headway.training.observe.ledger import Event, read_events
from headway.training.programs.evaluation import prediction, recipe_of, restored_model
from tests.training.conftest import TINY, TinyProject, make_project
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.process

# So large a learning rate that it is best early, and no better for long.
UNSTEADY = TINY.model_copy(
    update={
        "max_steps": 40,
        "optimizer": OptimizerSpec(lr=0.3, implementation="foreach"),
        "checkpoints": CheckpointSpec(every_steps=3, keep_last=2),
        "validation": ValidationSpec(every_steps=2, patience=4, keep_best=True),
        "ema": EmaSpec(decay=0.6),
    }
)


@pytest.fixture(scope="module")
def validated(tmp_path_factory) -> TinyProject:
    return make_project(tmp_path_factory.mktemp("validated"), heldout_fraction=0.2, validation_fraction=0.15)


@pytest.fixture(scope="module")
def undisturbed(validated, tmp_path_factory) -> Path:
    run_dir: Path = tmp_path_factory.mktemp("undisturbed")
    assert validated.train(validated.publish_run(UNSTEADY), run_dir, world_size=2) == [0, 0]
    return run_dir


def result(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "result.json").read_bytes())
    return found


def events(run_dir: Path, name: str) -> list[Event]:
    """Of rank 0, over all attempts."""
    spools = sorted(run_dir.glob("attempts/*/ledger/rank-0.jsonl"))
    return [event for spool in spools for event in read_events(spool) if event["event"] == name]


def noise_scales(run_dir: Path) -> dict[int, float]:
    return {e["step"]: e["gradient_noise_scale"] for e in events(run_dir, "step") if "gradient_noise_scale" in e}


def curve(run_dir: Path) -> dict[int, float]:
    return {event["step"]: event["value"] for event in events(run_dir, "validation") if "value" in event}


def test_a_run_ends_once_it_has_been_no_better_for_long_and_the_best_checkpoint_is_its_model(undisturbed):
    values = curve(undisturbed)
    best = min(values, key=lambda step: (values[step], step))
    assert max(values) == best + 4 * 2 < 40, "patience is 4 validations, every 2 steps"
    assert result(undisturbed)["step"] == best
    assert best in committed_steps(undisturbed / "checkpoints"), "older than the two that are kept anyway"
    assert max(committed_steps(undisturbed / "checkpoints")) == max(values)


@pytest.mark.parametrize(
    ("world_size", "shard"),
    [(1, 1), (3, 1), pytest.param(4, 1, marks=pytest.mark.soak), pytest.param(2, 2, marks=pytest.mark.long)],
)
def test_curve_end_and_model_have_the_same_bits_on_any_number_of_ranks(
    validated, undisturbed, tmp_path, world_size, shard
):
    training = UNSTEADY.model_copy(update={"parallel": ParallelSpec(shard=shard)})
    codes = validated.train(validated.publish_run(training), tmp_path, world_size=world_size)
    assert codes == [0] * world_size, validated.log(tmp_path)
    assert curve(tmp_path) == curve(undisturbed)
    assert noise_scales(tmp_path) == noise_scales(undisturbed)
    ours, theirs = result(tmp_path), result(undisturbed)
    assert (ours["step"], ours["tensors_sha256"]) == (theirs["step"], theirs["tensors_sha256"])


@pytest.mark.parametrize("split", [pytest.param("tensor", marks=pytest.mark.long), "pipeline"])
def test_ranks_that_split_one_model_are_validated_on_every_row_once(validated, undisturbed, tmp_path, split):
    parallel = ParallelSpec.model_validate({"mode": "fast", split: 2})
    training = UNSTEADY.model_copy(update={"parallel": parallel, "max_steps": 2})  # as far as it is warm-up
    assert validated.train(validated.publish_run(training), tmp_path, world_size=2) == [0, 0], validated.log(tmp_path)
    assert curve(tmp_path) == {2: pytest.approx(curve(undisturbed)[2], rel=1e-5)}
    assert result(tmp_path)["step"] == 2


def test_the_figure_is_that_of_an_evaluation_of_the_same_rows(validated, undisturbed):
    step = result(undisturbed)["step"]
    run = validated.publish_run(UNSTEADY)
    recipe = recipe_of(validated.workspace, run, validated.manifest)
    model = restored_model(recipe, run, read_checkpoint(undisturbed / "checkpoints" / directory_name(step)))
    reader = ShardReader(validated.workspace, validated.manifest, VALIDATION)
    scorer = scorer_of(validated.workspace, validated.manifest, reader)
    blocks = score_all(scorer, range(scorer.num_blocks), prediction(recipe, model), on_block=lambda: None)
    nats, sizes = (math.fsum(value for block in blocks for value in block["sums"][name]) for name in ("nats", "bytes"))
    assert curve(undisturbed)[step] == pytest.approx(nats / math.log(2) / sizes, rel=1e-6)


def test_without_keep_best_the_last_checkpoint_is_the_model_and_nothing_else_is_other(validated, undisturbed, tmp_path):
    validation = UNSTEADY.validation.model_copy(update={"keep_best": False})
    run = validated.publish_run(UNSTEADY.model_copy(update={"validation": validation}))
    assert validated.train(run, tmp_path, world_size=1) == [0]
    assert curve(tmp_path) == curve(undisturbed)
    assert result(tmp_path)["step"] == max(curve(undisturbed))


def test_looking_and_averaging_change_no_bit_of_the_training(validated, undisturbed, tmp_path):
    blind = UNSTEADY.model_copy(update={"validation": None, "ema": None})
    assert validated.train(validated.publish_run(blind), tmp_path, world_size=1) == [0]
    losses, seen = (
        {event["step"]: event["loss"] for event in events(each, "step")} for each in (tmp_path, undisturbed)
    )
    assert {step: losses[step] for step in seen} == seen
    assert len(losses) == 40 > len(seen)


@pytest.mark.soak  # what the next test proves of chosen moments, at any
def test_a_run_killed_and_stopped_again_and_again_decides_as_an_undisturbed_one(
    validated, undisturbed, until, tmp_path
):
    run = validated.publish_run(UNSTEADY)
    for world_size, number in ((2, signal.SIGKILL), (1, signal.SIGTERM), (4, signal.SIGKILL)):
        enough = len(events(tmp_path, "step")) + 4
        ranks = validated.start(run, tmp_path, world_size=world_size)
        until(lambda enough=enough: len(events(tmp_path, "step")) >= enough, what="steps")
        for rank in ranks:
            rank.send_signal(number)
        for rank in ranks:
            rank.wait(60)
    validated.train(run, tmp_path, world_size=2)
    assert curve(tmp_path) == curve(undisturbed)
    assert noise_scales(tmp_path) == noise_scales(undisturbed) != {}
    assert result(tmp_path)["tensors_sha256"] == result(undisturbed)["tensors_sha256"]


def test_a_run_cut_within_its_validations_and_continued_on_other_numbers_of_ranks_decides_as_an_undisturbed_one(
    validated, undisturbed, tmp_path
):
    run = validated.publish_run(UNSTEADY)
    arguments = ["--workspace", validated.workspace.uri, "--run-spec", run.sha256, "--run-dir", str(tmp_path)]
    best = result(undisturbed)["step"]
    for world_size, rank, step, number in (
        (2, 1, 2, signal.SIGKILL),  # nothing is kept yet
        (2, 0, best, signal.SIGTERM),
        (1, 0, best, signal.SIGKILL),
        (4, 2, max(curve(undisturbed)), signal.SIGTERM),
    ):
        ranks = validated.start_ranks(
            "tests.training.programs.cut_worker",
            arguments,
            tmp_path,
            world_size=world_size,
            CUT=f"{rank} {step} 2 {int(number)}",
        )
        code = ranks[rank].wait(DEADLINE_S)
        for other in ranks:
            if number == signal.SIGKILL:  # as their guard does
                other.kill()
            # One that notices that a peer is gone may end by itself before.
            assert other.wait(DEADLINE_S) in ({code, 1} if number == signal.SIGKILL else {code})
        assert code == (-signal.SIGKILL if number == signal.SIGKILL else RunStopped.exit_code), validated.log(tmp_path)
        if number == signal.SIGTERM:
            *_, last = events(tmp_path, "validation")
            assert last["step"] == step and "value" not in last, "it was broken off"
            assert committed_steps(tmp_path / "checkpoints")[-1] == step
    assert validated.train(run, tmp_path, world_size=2) == [0, 0], validated.log(tmp_path)
    assert curve(tmp_path) == curve(undisturbed)
    assert noise_scales(tmp_path) == noise_scales(undisturbed) != {}
    ours, theirs = result(tmp_path), result(undisturbed)
    assert (ours["step"], ours["tensors_sha256"]) == (theirs["step"], theirs["tensors_sha256"])


def test_a_best_checkpoint_with_a_flipped_bit_is_put_aside_and_trained_again(validated, undisturbed, tmp_path):
    run = validated.publish_run(UNSTEADY)
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    expected = result(tmp_path)
    (tmp_path / "result.json").unlink()
    file = next((tmp_path / "checkpoints" / directory_name(expected["step"])).glob("tensors-*"))
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    assert validated.train(run, tmp_path, world_size=2) == [0, 0]
    (quarantined,) = events(tmp_path, "checkpoint.quarantined")
    assert quarantined["checkpoint"].startswith(directory_name(expected["step"]))
    assert result(tmp_path) == expected


@pytest.mark.long
def test_a_disk_that_damages_each_best_checkpoint_ends_the_run_with_a_word(validated, until, tmp_path):
    """Else it would be trained anew for ever."""
    patient = UNSTEADY.validation.model_copy(update={"patience": 12})
    run = validated.publish_run(UNSTEADY.model_copy(update={"validation": patient, "max_steps": 60}))
    (rank,) = validated.start(run, tmp_path, world_size=1)
    damaged: set[int] = set()  # inodes: the folder's name is given again

    def has_ended() -> bool:
        for manifest in tmp_path.glob("checkpoints/*/manifest.json"):
            _damage(manifest, damaged)
        return rank.poll() is not None

    until(has_ended, what="its end", every_s=0.05)  # a checkpoint is good for longer, and the rank needs the processor
    assert rank.wait(DEADLINE_S) == IntegrityError.exit_code, validated.log(tmp_path)
    assert "that validated best was no longer good 3 times" in validated.log(tmp_path)


def _damage(manifest: Path, damaged: set[int]) -> None:
    """Flip a bit of a tensor, once for each checkpoint that names itself as the best."""
    with contextlib.suppress(OSError, ValueError, StopIteration):  # retention takes some away meanwhile
        step = json.loads(manifest.read_bytes())
        file = next(manifest.parent.glob("tensors-*"))
        if step["scalars"].get("best_step") == step["step"] and manifest.stat().st_ino not in damaged:
            damaged.add(manifest.stat().st_ino)
            with file.open("r+b") as stream:
                stream.seek(-5, 2)
                bit = bytes([stream.read(1)[0] ^ 1])
                stream.seek(-5, 2)
                stream.write(bit)


def test_of_many_rows_as_many_as_were_asked_for_are_looked_at_and_they_lie_all_over_the_split(validated, tmp_path):
    reader = ShardReader(validated.workspace, validated.manifest, VALIDATION)
    some = ValidationRows(
        validated.workspace, validated.manifest, reader, metric=None, block_rows=2, max_rows=reader.num_rows // 3
    )
    cpu = torch.device("cpu")
    blocks = list(some.blocks(range(some.num_blocks), cpu))
    rows = np.concatenate(some._blocks)
    assert some.num_rows == len(rows) == len(set(rows.tolist())) == reader.num_rows // 3
    assert rows[-1] >= reader.num_rows - 4
    alone = [to_tensors(reader.gather(own), cpu) for own in some._blocks]
    assert all(torch.equal(block.batch["tokens"], its["tokens"]) for block, its in zip(blocks, alone, strict=True))


@pytest.mark.parametrize("kept_blocks", [0, 2, 100])
def test_rows_stay_in_memory_up_to_a_bound_and_are_the_same_ones_each_time(validated, monkeypatch, kept_blocks):
    reader = ShardReader(validated.workspace, validated.manifest, VALIDATION)
    monkeypatch.setattr(validation_rows_module, "GATHERED_BYTES", 1)
    rows = ValidationRows(validated.workspace, validated.manifest, reader, metric=None, block_rows=2, max_rows=10)
    cpu, gathered = torch.device("cpu"), []
    read, numbers = reader.gather, [0, 2, 4, 4]  # as the second of two ranks would, of five blocks
    monkeypatch.setattr(reader, "gather", lambda wanted: gathered.append(len(wanted)) or read(wanted))
    (one,) = rows.blocks([0], cpu)
    monkeypatch.setattr(validation_rows_module, "KEPT_BYTES", kept_blocks * held_bytes([one]))
    rows._kept.clear()
    rows._kept_bytes = 0
    gathered.clear()
    first, again = (list(rows.blocks(numbers, cpu)) for _ in range(2))
    assert len(gathered) == {0: 8, 2: 6, 100: 3}[kept_blocks], "with room for two, block 4 is gathered each time"
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.batch["tokens"], other.batch["tokens"])
        assert one.batch["tokens"].data_ptr() % 64 == 0


def test_what_blocks_hold_is_counted_whole_and_a_recipe_that_writes_into_one_sees_the_rows_anew(validated):
    reader = ShardReader(validated.workspace, validated.manifest, VALIDATION)
    rows = ValidationRows(validated.workspace, validated.manifest, reader, metric=None, block_rows=2, max_rows=10)
    cpu = torch.device("cpu")
    blocks = list(rows.blocks(range(5), cpu))
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for b in blocks for each in b.batch.values()}
    assert rows._kept_bytes == held_bytes(blocks) > sum(each.nbytes() for each in storages.values())
    before = [block.batch["tokens"].clone() for block in blocks]
    for block in rows.blocks(range(5), cpu):
        block.batch["tokens"].mul_(0)
    again = [block.batch["tokens"] for block in rows.blocks(range(5), cpu)]
    assert all(torch.equal(one, other) for one, other in zip(before, again, strict=True)) and any(map(torch.any, again))

"""Evaluation: the same figures from any number of ranks, over exactly the held-out documents' bytes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from headway.data_contracts.store.digests import canonical_json
from headway.data_contracts.store.errors import ConfigError, IntegrityError, TrainingFailed
from headway.training.checkpoint.read import read_checkpoint
from headway.training.data.load.shard_reader import ShardReader
from headway.training.evaluation.measures import TEXT
from headway.training.evaluation.scorers import DocumentScorer, Measured, score_all, token_sizes_bytes
from headway.training.observe.ledger import Ledger
from headway.training.programs.evaluation import (
    EvaluationRequest,
    evaluate_share,
    merge,
    part_name,
    recipe_of,
    restored_model,
)
from headway.training.programs.export import GRAPH, write_graph
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.process

(BITS_PER_BYTE,) = TEXT.measures


def free(columns) -> Measured:
    """A model for which everything is certain."""
    return {"nats": np.zeros((len(columns["tokens"]), 16))}


@pytest.fixture(scope="module")
def trained(shared_project, tmp_path_factory) -> Path:
    """A finished run's last checkpoint."""
    run_dir = tmp_path_factory.mktemp("trained")
    assert shared_project.train(shared_project.publish_run(), run_dir, world_size=1) == [0]
    return run_dir / "checkpoints" / "step-00000006"


def evaluate(project, checkpoint: Path, folder: Path, world_size: int, **changes):
    request = EvaluationRequest(
        checkpoint=str(checkpoint), run=project.publish_run().sha256, manifest=project.manifest.sha256
    ).model_copy(update=changes)
    folder.mkdir()
    for number in range(world_size):
        rank = SimpleNamespace(rank=number, world_size=world_size, ledger=Ledger(folder / "ledger"))
        (folder / part_name(number)).write_bytes(canonical_json(evaluate_share(rank, project.workspace, request)))
    return merge(folder, world_size)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_any_number_of_ranks_gives_the_same_bits(project, trained, tmp_path, world_size):
    alone = evaluate(project, trained, tmp_path / "alone", 1)
    together = evaluate(project, trained, tmp_path / "together", world_size)
    assert (together.examples, together.slices) == (alone.examples, alone.slices)
    for one, other in ((together.sums, alone.sums), (together.baselines["bigram"], alone.baselines["bigram"])):
        assert set(one) == set(other) == {"nats", "targets", "bytes"}
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_the_documents_are_the_held_out_files_and_their_bytes_are_the_files_own(project, trained, tmp_path):
    scores = evaluate(project, trained, tmp_path / "scores", 1)
    held_out = sorted(path for group in project.manifest.groups if group.split == "heldout" for path in group.documents)
    assert list(scores.examples) == held_out
    assert scores.sums["bytes"].tolist() == [len(project.documents[path]) for path in held_out]
    assert len({path for group in project.manifest.groups for path in group.documents}) == 24


def test_the_loss_of_a_document_is_that_of_its_tokens(project, trained, tmp_path):
    """Put together by hand: one row after another, each token charged to the document that it lies in."""
    scores = evaluate(project, trained, tmp_path / "scores", 1)
    run = project.publish_run()
    recipe = recipe_of(project.workspace, run, project.manifest)
    model = restored_model(recipe, run, read_checkpoint(trained))
    reader = ShardReader(project.workspace, project.manifest, "heldout")
    groups = [group for group in project.manifest.groups if group.split == "heldout"]
    expected = dict.fromkeys(scores.examples, 0.0)
    number = 0
    for group in groups:
        for _ in range(group.num_rows):
            columns = reader.gather(np.array([number]))
            tokens = torch.from_numpy(columns["tokens"].astype(np.int64))
            with torch.no_grad():
                nats = recipe.losses(model, {"tokens": tokens}).nats[0].tolist()
            document = int(columns["document"][0, 0])
            for token, loss in zip(tokens[0, 1:].tolist(), nats, strict=True):
                document += token == 0
                if token != 1:
                    expected[group.documents[document]] += loss
            number += 1
    assert scores.sums["nats"] == pytest.approx([expected[path] for path in scores.examples], rel=1e-5)
    assert BITS_PER_BYTE.value(scores.sums) == pytest.approx(
        sum(expected.values()) / math.log(2) / sum(len(project.documents[path]) for path in scores.examples), rel=1e-6
    )


def test_the_bigram_is_scored_on_the_same_bytes_and_can_be_left_out(project, trained, tmp_path):
    with_it = evaluate(project, trained, tmp_path / "with", 2)
    assert list(with_it.baselines) == ["bigram"]
    assert 0.1 < BITS_PER_BYTE.value(with_it.baselines["bigram"]) < 8
    assert evaluate(project, trained, tmp_path / "without", 1, baselines=False).baselines == {}


def test_a_missing_part_or_block_is_an_error_and_never_a_smaller_figure(project, trained, tmp_path):
    evaluate(project, trained, tmp_path / "scores", 2)
    part = tmp_path / "scores" / part_name(1)
    whole = json.loads(part.read_bytes())
    part.write_bytes(canonical_json({**whole, "blocks": whole["blocks"][:-1]}))
    with pytest.raises(TrainingFailed, match="do not make up the whole split"):
        merge(tmp_path / "scores", 2)
    part.unlink()
    with pytest.raises(TrainingFailed, match="no readable scores"):
        merge(tmp_path / "scores", 2)


def test_every_token_of_the_vocabulary_has_its_bytes(project):
    sizes = token_sizes_bytes(project.workspace, project.manifest)
    assert len(sizes) == 300
    assert sizes[:2].tolist() == [0, 0], "markers stand for no bytes"
    assert sizes[2:].min() == 1


def test_shards_of_another_fitted_state_are_refused(project, trained):
    foreign = project.manifest.model_copy(
        update={"fitted": project.manifest.fitted.model_copy(update={"sha256": "0" * 64})}
    )
    with pytest.raises(ConfigError, match="another fitted state"):
        recipe_of(project.workspace, project.publish_run(), foreign)


def test_another_runs_checkpoint_is_refused(project, trained, tiny_training):
    other = project.publish_run(tiny_training.model_copy(update={"seed": 9}))
    recipe = recipe_of(project.workspace, other, project.manifest)
    with pytest.raises(IntegrityError, match="another run"):
        restored_model(recipe, other, read_checkpoint(trained))


def test_a_registered_graph_is_scored_as_its_checkpoint_is(project, trained, tmp_path):
    run = project.publish_run()
    recipe = recipe_of(project.workspace, run, project.manifest)
    write_graph(restored_model(recipe, run, read_checkpoint(trained)), recipe.example_input(), tmp_path)
    graph = project.workspace.publish_file(tmp_path / GRAPH, f"models/tiny/{GRAPH}")
    alone = evaluate(project, trained, tmp_path / "checkpoint", 1)
    instead = evaluate(project, tmp_path / "no-checkpoint", tmp_path / "graph", 2, graph=graph)
    assert instead.examples == alone.examples
    assert instead.sums["nats"] == pytest.approx(alone.sums["nats"], rel=1e-5)

    path = project.workspace.local_path(graph.path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="not the registered ones"):
        evaluate(project, trained, tmp_path / "altered", 1, graph=graph)


def test_blocks_cover_every_row_once(project):
    reader = ShardReader(project.workspace, project.manifest, "heldout")
    scorer = DocumentScorer(reader, project.manifest, np.ones(300, dtype=np.int64))
    zeros = [scorer.score(block, free) for block in range(scorer.num_blocks)]
    assert sum(sum(block["sums"]["targets"]) for block in zeros) == int(
        (reader.gather(np.arange(reader.num_rows))["tokens"][:, 1:] != 1).sum()
    )


def test_evaluation_ranks_write_their_parts(project, trained, tmp_path):
    request = EvaluationRequest(
        checkpoint=str(trained), run=project.publish_run().sha256, manifest=project.manifest.sha256
    )
    (tmp_path / "request.json").write_text(request.model_dump_json())
    arguments = [
        "--workspace",
        project.workspace.uri,
        "--request",
        str(tmp_path / "request.json"),
        "--out",
        str(tmp_path),
    ]
    ranks = project.start_ranks("headway.training.programs.evaluation", arguments, tmp_path, world_size=2)
    assert [rank.wait(DEADLINE_S) for rank in ranks] == [0, 0], project.log(tmp_path)

    alone = evaluate(project, trained, tmp_path / "alone", 1)
    assert BITS_PER_BYTE.value(merge(tmp_path, 2).sums) == BITS_PER_BYTE.value(alone.sums)


def test_a_request_that_cannot_be_read_is_a_configuration_error(project, tmp_path):
    arguments = ["--workspace", project.workspace.uri, "--request", str(tmp_path / "none.json"), "--out", str(tmp_path)]
    (rank,) = project.start_ranks("headway.training.programs.evaluation", arguments, tmp_path, world_size=1)
    assert rank.wait(DEADLINE_S) == 2
    assert "not an evaluation request" in project.log(tmp_path)


def test_every_block_and_every_shard_opened_is_told(project):
    shards, blocks = [], []
    held = [group for group in project.manifest.groups if group.split == "heldout"]
    reader = ShardReader(project.workspace, project.manifest, "heldout", on_shard=lambda: shards.append(1))
    assert len(shards) == sum(len(group.shards) for group in held) > 0
    scorer = DocumentScorer(reader, project.manifest, token_sizes_bytes(project.workspace, project.manifest))
    score_all(scorer, [0], free, on_block=lambda: blocks.append(1))
    assert len(blocks) == 1

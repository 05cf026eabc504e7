"""Starting from another run's weights: only verified ones, by name, and nothing left out in silence."""

from __future__ import annotations

import pytest
import torch

from headway.data_contracts.store.errors import ConfigError
from headway.training.checkpoint.layout import checkpoint_path, run_folder
from headway.training.checkpoint.read import read_checkpoint
from headway.training.config.optimizer import EmaSpec
from headway.training.config.start_spec import StartSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.engine.fine_tuning import matching

URI = "models:/tiny/1"
OLD = {"body.weight": (4, 4), "head.weight": (2, 4)}


def spec(**policy) -> StartSpec:
    return StartSpec(model=URI, **policy)


def test_a_uri_alone_stands_for_the_strictest_policy():
    assert TrainingSpec.model_validate({"start_from": URI}).start_from == spec()


@pytest.mark.parametrize("uri", ["tiny", "models:/tiny", "models:/tiny@Champion", "models:/tiny/x"])
def test_what_is_no_model_uri_is_refused(uri):
    with pytest.raises(ValueError, match="start_from"):
        TrainingSpec.model_validate({"start_from": uri})


def test_the_same_shapes_are_taken_over_whole():
    assert matching(OLD, OLD, spec()) == ["body.weight", "head.weight"]


def test_a_new_head_is_taken_over_from_nowhere():
    new = {"body.weight": (4, 4), "head.weight": (9, 4)}
    assert matching(new, OLD, spec(fresh=("head.*",))) == ["body.weight"]


@pytest.mark.parametrize(
    ("new", "policy", "problem"),
    [
        ({**OLD, "head.weight": (9, 4)}, {}, r"head\.weight is \[2, 4\] in models:/tiny/1 and \[9, 4\].*`head\.\*`"),
        ({**OLD, "head.bias": (2,)}, {}, r"lacks head\.bias.*start_from\.fresh"),
        ({"body.weight": (4, 4)}, {}, r"has head\.weight, which the recipe's model lacks.*extra: ignore"),
        (OLD, {"fresh": ("haed.*",)}, r"start_from\.fresh: 'haed\.\*' matches no weight.*head\.weight"),
        (OLD, {"fresh": ("*",)}, "nothing would be taken over"),
        ({**OLD, **{f"new.{n}": (1,) for n in range(9)}}, {}, r"lacks new\.0, new\.1, new\.2 and 6 more"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_the_policy_that_would_allow_it(new, policy, problem):
    with pytest.raises(ConfigError, match=problem):
        matching(new, OLD, spec(**policy))


def test_a_tied_weight_is_fresh_under_each_of_its_names():
    tied = {"head.weight": ("head.weight", "embedding.weight")}
    assert matching(OLD, OLD, spec(fresh=("embedding.*",)), tied) == ["body.weight"]


def test_a_policy_allows_what_is_missing_or_extra():
    assert matching({**OLD, "head.bias": (2,)}, OLD, spec(missing="fresh")) == list(OLD)
    assert matching({"body.weight": (4, 4)}, OLD, spec(extra="ignore")) == ["body.weight"]


@pytest.mark.process
def test_ranks_begin_with_the_verified_weights_whatever_their_number_and_keep_frozen_ones(own_project, tiny_training):
    workspace = own_project.workspace
    parent = own_project.publish_run()
    parent_dir = workspace.local_path(run_folder(parent.link))
    parent_dir.mkdir(parents=True)
    assert own_project.train(parent, parent_dir, world_size=1) == [0]
    folder = workspace.local_path(checkpoint_path(run_folder(parent.link), tiny_training.max_steps))
    taught = read_checkpoint(folder)
    start = workspace.publish_document(taught.manifest)

    child = own_project.publish_run(
        tiny_training.model_copy(
            update={
                "start_from": spec(fresh=("head.*",)),
                "max_steps": 2,
                "ema": EmaSpec(decay=0.5),
                "optimizer": tiny_training.optimizer.model_validate(
                    {"groups": [{"parameters": ["blocks.*"], "frozen": True}]}
                ),
            }
        ),
        start=start,
    )
    learnt = []
    for world_size in (1, 2):
        run_dir = workspace.local_path(f"elsewhere/{world_size}")
        run_dir.mkdir(parents=True)
        assert own_project.train(child, run_dir, world_size=world_size) == [0] * world_size, own_project.log(run_dir)
        learnt.append(read_checkpoint(run_dir / "checkpoints" / "step-00000002").tensors)
    for name, value in learnt[0].items():
        assert torch.equal(value, learnt[1][name]), name
    names = [name for name in taught.tensors if name.startswith("model.")]
    kept = {name for name in names if torch.equal(learnt[0][name], taught.tensors[name])}
    assert kept == {name for name in names if name.startswith("model.blocks.")}
    moved = (learnt[0]["model.embedding.weight"] - taught.tensors["model.embedding.weight"]).abs().max()
    assert moved < 0.1, "two steps of 0.02 from the weights taken over"
    apart = (learnt[0]["model.embedding.weight"] - learnt[0]["trained.embedding.weight"]).abs().max()
    assert 0 < apart < 0.1, "the model is an average of weights that began there, too"
    assert not any(name.startswith("optimizer.") and "blocks" in name for name in learnt[0])

    other = taught.manifest.model_copy(update={"num_samples": taught.manifest.num_samples + 1})
    stranger = own_project.publish_run(
        TrainingSpec.model_validate(child.config), start=workspace.publish_document(other)
    )
    run_dir = workspace.local_path("elsewhere/stranger")
    run_dir.mkdir()
    assert own_project.train(stranger, run_dir, world_size=1) == [5]
    assert f"it is not {other.link.short}" in own_project.log(run_dir)

    path = next(folder.glob("tensors-*"))
    data = bytearray(path.read_bytes())
    data[data.index(taught.tensors["model.embedding.weight"].numpy().tobytes()) + 5] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    run_dir = workspace.local_path("elsewhere/damaged")
    run_dir.mkdir()
    assert own_project.train(child, run_dir, world_size=1) == [5]
    assert path.name in own_project.log(run_dir)

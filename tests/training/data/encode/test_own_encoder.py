"""An encoder of the user's own: the same bytes whoever runs it, by the code that it was fitted with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.training.config.shapes import CustomShape, TokenShape
from headway.training.data.encode.data_shape import data_shape
from headway.training.data.load.shard_reader import ShardReader
from headway.training.evaluation.measures import CLASSES, TEXT, metric_set_for, target_of
from headway.training.evaluation.scorers import token_sizes_bytes
from tests.training.data.own_words import PLACES, TOKENS, Own, documents

pytestmark = pytest.mark.process


@pytest.fixture
def elsewhere(tmp_path: Path, own: Own) -> Callable[[str], Own]:
    """The same project over an empty workspace."""
    return lambda name: own._replace(workspace=Workspace.create(str(tmp_path / name)))


def test_rows_are_what_the_encoder_makes_of_them_and_its_state_says_what_they_are(own: Own) -> None:
    spec = own.spec()
    fitted = own.fit(spec)
    manifest = own.shards(spec, fitted)
    shape = data_shape(manifest.spec["encoder"], fitted.statistics)
    assert isinstance(shape, CustomShape) and shape.facts == {"kinds": ["fruit", "root"]}
    assert {column.name: (column.dtype, column.shape) for column in manifest.columns} == {
        "letters": ("uint8", (8,)),
        "label": ("int32", (1,)),
    }
    assert {file.path.rpartition("/")[2] for file in fitted.files} == {"encoder.zip", "kinds.txt"}
    assert metric_set_for(own.workspace, manifest) is CLASSES
    encoder = manifest.spec["encoder"]
    assert target_of(encoder, fitted.statistics) == "the class of my_words.encoder:Words"
    named = target_of(encoder, {**fitted.statistics, "target": "kind"})
    assert named == target_of({"kind": "tabular", "numeric": ["x"], "label": "kind"}), "comparable with a built-in one"
    reader = ShardReader(own.workspace, manifest, "train")
    columns = reader.gather(np.arange(reader.num_rows))
    lengths = sorted(columns["letters"].sum(axis=1).tolist())
    assert lengths == sorted(
        len(word)
        for document in documents()
        if any(document.path in group.documents for group in manifest.groups if group.split == "train")
        for batch in document.read()
        for word in batch.column("word").to_pylist()
    )
    counts = np.sum([s.label_counts for g in manifest.groups for s in g.shards if g.split == "train"], axis=0)
    assert counts.tolist() == np.bincount(columns["label"][:, 0]).tolist()
    assert "my_words" not in sys.modules, "the user's code belongs into its own process"


@pytest.mark.usefixtures("helpers_are_forks")
def test_bytes_are_the_same_for_any_number_of_workers(own: Own, elsewhere: Callable[[str], Own]) -> None:
    spec = own.spec()
    first = own.fit(spec)
    alone = own.shards(spec, first, num_threads=1)
    other = elsewhere("other")
    again = other.fit(spec)
    assert again == first
    assert other.shards(spec, again, num_threads=4) == alone


@pytest.mark.usefixtures("helpers_are_forks")
def test_new_files_cost_their_own_groups_and_an_edit_to_the_encoder_all(own: Own) -> None:
    spec = own.spec()
    fitted = own.fit(spec)
    before = own.shards(spec, fitted)
    grown = own.shards(spec, fitted, num_files=13)
    kept = {shard.file.path for group in before.groups for shard in group.shards}
    for group in grown.groups:
        is_new = "part-12" in group.documents
        assert all((shard.file.path in kept) is not is_new for shard in group.shards), group.name
    assert any("part-12" in group.documents for group in grown.groups)

    (own.root / "my_words" / "pictures.py").write_text("import torch\n")
    assert own.code(spec) == own.code(spec) and own.fit(spec) == fitted, "nothing that the encoder imports"
    own.write(places=PLACES + "\n# edited\n")
    edited = own.fit(spec)
    assert edited != fitted
    after = own.shards(spec, edited)
    assert not kept & {shard.file.path for group in after.groups for shard in group.shards}
    assert after.content_sha256 == before.content_sha256, "the rows themselves are as they were"


@pytest.mark.usefixtures("helpers_are_forks")
def test_a_state_is_encoded_with_its_own_frozen_code_whatever_the_project_holds_now(own: Own) -> None:
    spec = own.spec()
    fitted = own.fit(spec)
    before = own.shards(spec, fitted)
    own.write("+= 1", "+= 2")
    (own.root / "my_words" / "places.py").unlink()
    grown = own.shards(spec, fitted, num_files=13)
    assert grown.fitted == before.fitted
    reader = ShardReader(own.workspace, grown, "train")
    assert reader.gather(np.arange(reader.num_rows))["letters"].sum(axis=1).max() == len("carrot")

    (archive,) = (file for file in fitted.files if file.path.endswith("encoder.zip"))
    own.workspace.remove(archive.path)
    with pytest.raises(IntegrityError, match=r"encoder\.zip"):
        own.shards(spec, fitted, num_files=14)


@pytest.mark.usefixtures("helpers_are_forks")
def test_tokens_of_an_own_tokenizer_are_packed_and_judged_in_bits_a_byte(own: Own) -> None:
    own.write(letters=TOKENS)
    spec = own.spec("my_words.letters:Letters")
    fitted = own.fit(spec)
    manifest = own.shards(spec, fitted)
    assert data_shape(manifest.spec["encoder"], fitted.statistics) == TokenShape(vocab_size=130, context_tokens=8)
    assert metric_set_for(own.workspace, manifest) is TEXT
    held = [name for each in manifest.groups if each.split == "heldout" for name in each.documents]
    words = [
        word
        for document in documents()
        if document.path in held
        for batch in document.read()
        for word in batch.column("word").to_pylist()
    ]
    reader = ShardReader(own.workspace, manifest, "heldout")
    found = reader.gather(np.arange(reader.num_rows))["tokens"][:, 1:]
    # Every token is a target once, but for those that open a group's stream.
    assert sorted(found[found > 1].tolist()) == sorted(ord(letter) + 2 for word in words for letter in word)
    assert int(token_sizes_bytes(own.workspace, manifest)[found].sum()) == len("".join(words))


@pytest.mark.usefixtures("helpers_are_forks")
def test_what_the_sample_is_too_small_to_teach_is_learnt_from_all_rows(own: Own) -> None:
    own.write(
        "        return EncoderState(sorted",
        "        if batch.num_rows and len(found) < 2: raise DataError('one kind')\n        return EncoderState(sorted",
    )
    assert own.fit(own.spec()).statistics["fitted"] == ["fruit", "root"]

"""An encoder of the user's own: the same bytes whoever runs it, and a mistake in it is one sentence with a place."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from data_contracts.documents import FittedState, Link, ShardManifest
from data_contracts.errors import ConfigError, DataError, IntegrityError
from data_contracts.publication import Workspace
from training.code_archive import encoder_code
from training.data.data_shape import data_shape
from training.data.encoder_host import Guest
from training.data.encoder_specs import OwnSpec
from training.data.hosted_encoder import check_own_encoder
from training.data.loader import ShardReader
from training.data.shapes import OwnShape, TokenShape
from training.data.sharding import fit, write_shards
from training.data.spec import ShardSpec
from training.data.splits import NO_ROWS, SourceRows
from training.launch.process_tree import ALREADY_DEAD, process_state
from training.measures import CLASSES, TEXT, target_of, yardstick_for
from training.scorers import token_sizes_bytes

SNAPSHOT, RECEIPT = Link(kind="snapshot", sha256="a" * 64), Link(kind="receipt", sha256="b" * 64)
GOOD = """\
import numpy as np

from data_contracts.documents import Frozen, PayloadColumn
from data_contracts.errors import DataError
from training.data.own_protocol import Learnt
from training.data.shapes import OwnShape

from .places import kinds_of


class Options(Frozen):
    column: str = "word"
    buckets: int = 8


class Words:
    spec_type = Options

    @classmethod
    def fit(cls, spec, batches):
        found = set()
        for batch in batches:
            found.update(kinds_of(batch))
        return Learnt(sorted(found), {"kinds.txt": " ".join(sorted(found)).encode()})

    def __init__(self, spec, learnt):
        self.spec, self.kinds = spec, learnt.files["kinds.txt"].decode().split()
        column = PayloadColumn(name="letters", dtype="uint8", shape=(spec.buckets,))
        self.shape = OwnShape(columns=(column,), num_classes=len(self.kinds), facts={"kinds": self.kinds})

    def encode(self, batch):
        letters = np.zeros((batch.num_rows, self.spec.buckets), dtype=np.uint8)
        for row, word in enumerate(batch.column(self.spec.column).to_pylist()):
            for letter in word:
                letters[row, ord(letter) % self.spec.buckets] += 1
        label = np.array([self.kinds.index(kind) for kind in kinds_of(batch)], dtype=np.int32)
        return {"letters": letters, "label": label[:, None]}
"""
PLACES = """\
def kinds_of(batch):
    return batch.column("kind").to_pylist()
"""
TOKENS = """\
import numpy as np

from data_contracts.documents import Frozen
from training.data.own_protocol import Learnt
from training.data.shapes import TokenShape


class Letters:
    spec_type = Frozen
    shape = TokenShape(vocab_size=128, context_tokens=8)
    token_sizes_bytes = (1,) * 128

    @classmethod
    def fit(cls, spec, batches):
        return Learnt()

    def __init__(self, spec, learnt):
        pass

    def encode(self, batch):
        return [np.frombuffer(word.encode(), dtype=np.uint8) for word in batch.column("word").to_pylist()]
"""
WORDS = ["apple", "fig", "plum", "kiwi", "carrot", "leek", "beet", "bean"]


def rows(number: int, count: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, count, 7):
        places = range(first, min(first + 7, count))
        yield pa.RecordBatch.from_pydict(
            {
                "word": [WORDS[(number + 3 * place) % 8] for place in places],
                "kind": ["fruit" if (number + 3 * place) % 8 < 4 else "root" for place in places],
            }
        )


def documents(num_files: int = 12) -> list[SourceRows]:
    def made(number: int) -> SourceRows:
        count = 20 + number
        sha256 = hashlib.sha256(f"{number}".encode()).hexdigest()
        return SourceRows(f"part-{number:02d}", sha256, 100 + number, count, NO_ROWS, partial(rows, number, count))

    return [made(number) for number in range(num_files)]


class Own(NamedTuple):
    """A user's project and the workspace that it is sharded into."""

    root: Path
    workspace: Workspace

    def write(self, old: str = "", new: str = "", **files: str) -> None:
        assert old in GOOD
        package = self.root / "my_words"
        package.mkdir(exist_ok=True)
        texts = {"__init__": "", "encoder": GOOD.replace(old, new) if old else GOOD, "places": PLACES, **files}
        for name, text in texts.items():
            (package / f"{name}.py").write_text(text)

    def spec(self, name: str = "my_words.encoder:Words", **options: Any) -> ShardSpec:
        own = OwnSpec(name=name, options=options)
        return ShardSpec(encoder=own, num_groups=4, heldout_fraction=0.3, rows_per_shard=64, split_salt="words")

    def code(self, spec: ShardSpec) -> bytes:
        code = encoder_code(spec.encoder, (str(self.root),))
        assert code is not None
        return code

    def fit(self, spec: ShardSpec, num_files: int = 12) -> FittedState:
        sources, code = documents(num_files), self.code(spec)
        fitted = fit(spec, sources, self.workspace, snapshot=SNAPSHOT, receipt=RECEIPT, code=code)
        self.workspace.publish_document(fitted)
        return fitted

    def shards(self, spec: ShardSpec, fitted: FittedState, num_files: int = 12, num_threads: int = 2) -> ShardManifest:
        return write_shards(
            spec,
            fitted,
            documents(num_files),
            self.workspace,
            snapshot=SNAPSHOT,
            receipt=RECEIPT,
            num_threads=num_threads,
        )


@pytest.fixture
def own(tmp_path: Path) -> Own:
    made = Own(tmp_path, Workspace.create(str(tmp_path / "workspace")))
    made.write()
    return made


@pytest.fixture
def elsewhere(tmp_path: Path, own: Own) -> Callable[[str], Own]:
    """The same project over an empty workspace."""
    return lambda name: own._replace(workspace=Workspace.create(str(tmp_path / name)))


def test_rows_are_what_the_encoder_makes_of_them_and_its_state_says_what_they_are(own: Own) -> None:
    spec = own.spec()
    fitted = own.fit(spec)
    manifest = own.shards(spec, fitted)
    shape = data_shape(manifest.spec["encoder"], fitted.statistics)
    assert isinstance(shape, OwnShape) and shape.facts == {"kinds": ["fruit", "root"]}
    assert {column.name: (column.dtype, column.shape) for column in manifest.columns} == {
        "letters": ("uint8", (8,)),
        "label": ("int32", (1,)),
    }
    assert {file.path.rpartition("/")[2] for file in fitted.files} == {"encoder.zip", "kinds.txt"}
    assert yardstick_for(own.workspace, manifest) is CLASSES
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


def test_bytes_are_the_same_for_any_number_of_workers(own: Own, elsewhere: Callable[[str], Own]) -> None:
    spec = own.spec()
    first = own.fit(spec)
    alone = own.shards(spec, first, num_threads=1)
    other = elsewhere("other")
    again = other.fit(spec)
    assert again == first
    assert other.shards(spec, again, num_threads=4) == alone


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


def test_tokens_of_an_own_tokenizer_are_packed_and_judged_in_bits_a_byte(own: Own) -> None:
    own.write(letters=TOKENS)
    spec = own.spec("my_words.letters:Letters")
    fitted = own.fit(spec)
    manifest = own.shards(spec, fitted)
    assert data_shape(manifest.spec["encoder"], fitted.statistics) == TokenShape(vocab_size=130, context_tokens=8)
    assert yardstick_for(own.workspace, manifest) is TEXT
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


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("sorted(found), {", "list({*'abcdefgh'}), {", ["fit learnt something else", "order of a set"]),
        ("+= 1", "+= 1 + np.random.randint(2)", ["encode made other bytes of the same rows"]),
        ("+= 1", "+= min(4, batch.num_rows)", ["other rows were beside them"]),
        ("        found = set()", "        import os; os._exit(9)", ["ended with exit code 9"]),
    ],
)
def test_an_encoder_that_is_no_function_of_its_rows_is_refused_before_all_are_read(
    own: Own, old: str, new: str, words: list[str]
) -> None:
    own.write(old, new)
    spec = own.spec()
    with pytest.raises(ConfigError) as told:
        own.fit(spec)
    assert all(word in str(told.value) for word in words), told.value
    assert not list((own.root / "workspace").glob("fitted/*"))


@pytest.fixture
def guest(own: Own, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Guest]]:
    """The encoder in this process and from an archive, as in its own."""

    def made() -> Guest:
        (own.root / "encoder.zip").write_bytes(own.code(own.spec()))
        monkeypatch.syspath_prepend(str(own.root / "encoder.zip"))
        return Guest("my_words.encoder:Words", {})

    yield made
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_words"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "dtype=np.uint8)\n        for",
            "dtype=np.int16)\n        for",
            ["letters as int16", "uint8 [", "encoder.py:31"],
        ),
        ("(batch.num_rows, self.spec", "(batch.num_rows + 1, self.spec", ["letters with", "rows for", "encoder.py:31"]),
        ('{"letters": letters, ', "{", ["returned label, not the columns letters, label", "encoder.py:31"]),
        ("        return {", "        return None and {", ["returned nothing, not the columns"]),
        ("label[:, None]", "label[:, None] + np.int32(1)", ["label outside [0, 2)"]),
        (
            "    def encode(self",
            "    def encodes(self",
            ["Words is no encoder: it has no method encode", "encoder.py:16"],
        ),
        ("    @classmethod\n", "", ["fit is no classmethod", "encoder.py:19"]),
        ("return Learnt(", "return (", ["fit returned a tuple, not Learnt", "encoder.py:19"]),
        ("Learnt(sorted(found)", "Learnt({1.5: found}", ["no JSON value"]),
        ('"kinds.txt":', '"../kinds.txt":', ["'../kinds.txt', which is no plain name"]),
        ("spec_type = Options", "spec_type = dict", ["its spec_type is no Frozen model"]),
        ("self.kinds.index(kind)", "self.kinds.idx(kind)", ["no attribute 'idx'", "encoder.py:36"]),
        ("self.kinds.index(kind)", "{}[kind]", ["encode raised KeyError.", "encoder.py:36"]),
        ("        found = set()", "        raise SystemExit('no')", ["fit raised SystemExit", "encoder.py:21"]),
        ("sorted(found)).encode()}", "sorted(found)).encode()}.values()", ["fit returned files as a dict_values"]),
        ('{"letters": letters, ', '{7: letters, "label": 1, ', ["returned 7, label, not the columns letters, label"]),
        ("import numpy as np", "import numpie as np", ["No module named 'numpie'", "encoder.py:1"]),
        ("shape=(spec.buckets,)", "shape=(0,)", ["letters' as uint8 [0]", "encoder.py:26"]),
        ('dtype="uint8"', 'dtype="complex64"', ["letters' as complex64"]),
    ],
)
def test_a_wrong_encoder_is_refused_by_name_and_line(
    own: Own, guest: Callable[[], Guest], old: str, new: str, words: list[str]
) -> None:
    own.write(old, new)
    with pytest.raises(ConfigError) as told:
        wrong = guest()
        wrong.open(wrong.fit(rows(0, 20)))
        for batch in rows(0, 20):
            wrong.encode(batch)
    assert all(word in str(told.value) for word in words), told.value
    assert "fruit" not in str(told.value), "no value of the data"


def test_an_encoder_that_is_not_python_is_refused_by_its_file(own: Own) -> None:
    own.write("self.spec, self.kinds = spec", "self.spec self.kinds = spec")
    with pytest.raises(ConfigError, match=r"encoder\.py: the encoder's module cannot be read .*line 27"):
        own.code(own.spec())


def test_options_that_it_does_not_know_are_refused_with_the_nearest_name(own: Own) -> None:
    for options, words in (
        ({"colum": "word"}, "shards.encoder.options.colum: no such field. Did you mean column?"),
        ({"buckets": "many"}, "shards.encoder.options.buckets: Input should be a valid integer"),
    ):
        spec = own.spec(**options).encoder
        assert isinstance(spec, OwnSpec)
        with pytest.raises(ConfigError, match="shards") as told:
            check_own_encoder(spec, own.code(own.spec()))
        assert words in str(told.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my_wrods.encoder:Words", "no package 'my_wrods'"),
        ("my_words.encodr:Words", "no module 'my_words.encodr'. Did you mean my_words.encoder?"),
        ("my_words.encoder:Word", "my_words.encoder defines no class 'Word'"),
        ("training.data.images:ImageEncoder", "the encoder's package 'training' has the name of one of Headway's own"),
    ],
)
def test_an_encoder_that_is_not_there_is_named(own: Own, name: str, words: str) -> None:
    spec = own.spec(name)
    with pytest.raises(ConfigError) as told:
        assert isinstance(spec.encoder, OwnSpec)
        check_own_encoder(spec.encoder, own.code(spec))
    assert words in f"{told.value.what} {told.value.advice}"


def test_rows_that_the_encoder_refuses_are_the_datas_fault(own: Own) -> None:
    own.write("        letters = np", "        raise DataError('a word has no letter')\n        letters = np")
    with pytest.raises(DataError, match=r"encoder\.py:32 .*a word has no letter, in rows 0 to \d+ of part-"):
        own.fit(own.spec())


def test_an_error_class_of_the_users_own_is_told_as_headways_that_it_derives_from(own: Own) -> None:
    own.write(
        "        letters = np",
        """        class Unreadable(DataError):
            def __init__(self, word):
                super().__init__("a word has no letter")
        raise Unreadable(batch)
        letters = np""",
    )
    with pytest.raises(DataError, match=r"a word has no letter, in rows 0 to \d+ of part-"):
        own.fit(own.spec())


def test_what_an_encoder_forked_ends_with_it_and_keeps_nobody_waiting(own: Own, until) -> None:
    left = own.root / "left"
    own.write(
        "        found = set()",
        f"""        import os, signal
        with open({str(left)!r}, "w") as file:
            if not (child := os.fork()):
                signal.pause()
            file.write(str(child))
        os._exit(9)""",
    )
    with pytest.raises(ConfigError, match="ended with exit code 9"):
        own.fit(own.spec())
    pid = int(left.read_text())
    until(lambda: process_state(pid) in ALREADY_DEAD, what=f"the end of {pid}, which the encoder forked,")


def test_what_the_sample_is_too_small_to_teach_is_learnt_from_all_rows(own: Own) -> None:
    own.write(
        "        return Learnt(sorted",
        "        if batch.num_rows and len(found) < 2: raise DataError('one kind')\n        return Learnt(sorted",
    )
    assert own.fit(own.spec()).statistics["learnt"] == ["fruit", "root"]

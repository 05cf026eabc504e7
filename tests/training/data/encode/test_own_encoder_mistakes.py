"""A mistake in an encoder of the user's own is one sentence with a place, and leaves nothing behind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from headway.data_contracts.store.errors import ConfigError, DataError
from headway.training.config.encoder_specs import CustomEncoderSpec
from headway.training.config.shards import ShardSpec
from headway.training.data.encode import hosted_encoder
from headway.training.data.encode.host import HostedCode
from headway.training.data.encode.hosted_encoder import check_custom_encoder
from headway.training.data.encode.process import NoAnswerInTime
from headway.training.launch.base.process_tree import ALREADY_DEAD, process_state
from tests.training.data.own_words import Own, rows

pytestmark = pytest.mark.process
forked = pytest.mark.usefixtures("helpers_are_forks")
"""All but those who draw or hash: a fork does as the one before it did."""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("sorted(found), {", "list({*'abcdefgh'}), {", ["answered something else", "order of a set"]),
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
def guest(own: Own, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], HostedCode]]:
    """The encoder in this process and from an archive, as in its own."""

    def made() -> HostedCode:
        (own.root / "encoder.zip").write_bytes(own.code(own.spec()))
        monkeypatch.syspath_prepend(str(own.root / "encoder.zip"))
        return HostedCode("my_words.encoder:Words", {})

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
        ("return EncoderState(", "return (", ["fit returned a tuple, not EncoderState", "encoder.py:19"]),
        ("EncoderState(sorted(found)", "EncoderState({1.5: found}", ["no JSON value"]),
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
    own: Own, guest: Callable[[], HostedCode], old: str, new: str, words: list[str]
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


@forked
def test_options_that_it_does_not_know_are_refused_with_the_nearest_name(own: Own) -> None:
    for options, words in (
        ({"colum": "word"}, "shards.encoder.options.colum: no such field. Did you mean column?"),
        ({"buckets": "many"}, "shards.encoder.options.buckets: must be a whole number"),
    ):
        spec = own.spec(**options).encoder
        assert isinstance(spec, CustomEncoderSpec)
        with pytest.raises(ConfigError, match="shards") as told:
            check_custom_encoder(spec, own.code(own.spec()))
        assert words in str(told.value)


@forked
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my_wrods.encoder:Words", "no package 'my_wrods'"),
        ("my_words.encodr:Words", "no module 'my_words.encodr'. Did you mean my_words.encoder?"),
        ("my_words.encoder:Word", "my_words.encoder defines no class 'Word'"),
        ("headway.training.data.encode.images:ImageEncoder", "the encoder's package has Headway's own name"),
    ],
)
def test_an_encoder_that_is_not_there_is_named(own: Own, name: str, words: str) -> None:
    spec = own.spec(name)
    with pytest.raises(ConfigError) as told:
        assert isinstance(spec.encoder, CustomEncoderSpec)
        check_custom_encoder(spec.encoder, own.code(spec))
    assert words in f"{told.value.what} {told.value.advice}"


@forked
def test_rows_that_the_encoder_refuses_are_the_datas_fault(own: Own) -> None:
    own.write("        letters = np", "        raise DataError('a word has no letter')\n        letters = np")
    with pytest.raises(DataError, match=r"encoder\.py:32 .*a word has no letter, in rows 0 to \d+ of part-"):
        own.fit(own.spec())


@forked
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


@forked
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


def encoder_of(spec: ShardSpec) -> CustomEncoderSpec:
    assert isinstance(spec.encoder, CustomEncoderSpec)
    return spec.encoder


@forked
@pytest.mark.parametrize("how", ["        import time; time.sleep(1000)", "        while True: pass"])
def test_a_try_of_an_encoder_that_does_not_end_is_over_at_its_deadline(
    own: Own, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(hosted_encoder, "WITHIN_S", 3.0)
    own.write("        found = set()", how)
    spec = own.spec()
    with pytest.raises(NoAnswerInTime, match=r"'my_words.encoder:Words': .*did not answer within 3 s.*import, fit"):
        hosted_encoder.try_custom_encoder(encoder_of(spec), own.code(spec), next(rows(0, 7)))


@forked
def test_an_import_that_does_not_end_is_over_at_its_deadline(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_encoder, "WITHIN_S", 3.0)
    own.write("class Options", "import time; time.sleep(1000)\n\n\nclass Options")
    spec = own.spec()
    with pytest.raises(NoAnswerInTime, match="did not answer within 3 s"):
        check_custom_encoder(encoder_of(spec), own.code(spec))


@forked
def test_what_left_the_encoders_group_ends_with_it(own: Own) -> None:
    left = own.root / "left"
    start = "subprocess.Popen(['sleep', '1000'], start_new_session=True, stdin=-3, stdout=-3, stderr=-3)"
    own.write(
        "        found = set()",
        f"        import subprocess\n        open({str(left)!r}, 'w').write(str({start}.pid))\n        found = set()",
    )
    own.fit(own.spec())
    assert process_state(int(left.read_text())) in ALREADY_DEAD

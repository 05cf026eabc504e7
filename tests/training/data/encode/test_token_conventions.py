"""What `TokenShape` promises to recipes and to encoders of one's own: each sentence of its docstring, one test."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from headway.training.config.encoder_specs import BytePairSpec, TokenIdsSpec
from headway.training.config.recipe_specs import LanguageModelSpec
from headway.training.config.shapes import TokenShape
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.encode.byte_pair import MARKERS, BytePairEncoder, fit_byte_pair
from headway.training.data.encode.custom_encoder import CustomEncoderFacts
from headway.training.data.encode.packing import EOT_ID, NUM_MARKERS, PAD_ID, document_of_positions
from headway.training.data.encode.token_ids import TokenIdsEncoder
from headway.training.data.load.device_copy import to_tensors
from headway.training.recipes.language_model import LanguageModel

IDS = [[5, 6, 7], [], [8, 9]]
SEQUENCE = 4


def rows() -> dict[str, np.ndarray]:
    """Three documents of ids packed by fours, as `token-ids` does."""
    encoder = TokenIdsEncoder(TokenIdsSpec(vocab_size=10, sequence_tokens=SEQUENCE))
    stream = encoder.stream(seed=0)
    names = np.arange(len(IDS))
    block = SourceBlock("a", names, names.astype(np.uint64), pa.record_batch({"tokens": IDS}))
    made = [*stream.push(block), *stream.finish()]
    return {name: np.concatenate([each.values[name] for each in made]) for name in ("tokens", "document")}


def test_every_document_is_opened_by_token_0_and_closed_by_nothing() -> None:
    stream = [EOT_ID, 7, 8, 9, EOT_ID, EOT_ID, 10, 11]
    tokens = rows()["tokens"]
    assert [*tokens[0], *tokens[1, 1:]][: len(stream)] == stream
    assert EOT_ID == 0, "no marker for an end: the next document's opening is what follows a last token"


def test_what_is_left_of_the_last_row_is_filled_with_token_1_which_is_no_target() -> None:
    tokens = rows()["tokens"]
    assert PAD_ID == 1 and tokens[-1, -1] == PAD_ID
    recipe = LanguageModel(
        LanguageModelSpec(width=8, depth=1, heads=1, hidden=8), TokenShape(vocab_size=12, context_tokens=SEQUENCE)
    )
    torch.manual_seed(0)
    losses = recipe.losses(recipe.build(), to_tensors({"tokens": tokens}, torch.device("cpu")))
    assert losses.valid.tolist() == (tokens[:, 1:] != PAD_ID).tolist()
    assert bool((losses.nats[~losses.valid] == 0).all()) and bool((losses.nats[losses.valid] > 0).all())


def test_a_row_holds_one_token_more_than_it_predicts_and_the_recipe_shifts() -> None:
    tokens = rows()["tokens"]
    assert tokens.shape == (2, SEQUENCE + 1)
    assert tokens[1, 0] == tokens[0, -1], "the last target of a row is the next one's first input"


def test_rows_cross_documents_and_document_says_whose_the_first_token_is() -> None:
    made = rows()
    assert made["document"].tolist() == [[0], [1]]
    whose = document_of_positions(made["tokens"], made["document"])
    assert whose.tolist()[0] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(("vocab_size", "dtype"), [((1 << 16) - 2, "uint16"), ((1 << 16) - 1, "uint32")])
def test_tokens_are_stored_in_16_bits_where_they_fit_and_come_as_int64(vocab_size: int, dtype: str) -> None:
    encoder = TokenIdsEncoder(TokenIdsSpec(vocab_size=vocab_size, sequence_tokens=SEQUENCE))
    assert [(column.name, column.dtype, column.shape) for column in encoder.columns] == [
        ("tokens", dtype, (SEQUENCE + 1,)),
        ("document", "int32", (1,)),
    ]
    assert to_tensors(rows(), torch.device("cpu"))["tokens"].dtype == torch.int64


def test_ids_of_a_source_or_of_an_own_encoder_lie_2_higher_and_the_shape_counts_them() -> None:
    assert NUM_MARKERS == 2 and rows()["tokens"][0, 1] == IDS[0][0] + 2
    own = CustomEncoderFacts(shape=TokenShape(vocab_size=10, context_tokens=SEQUENCE), token_sizes_bytes=(1,) * 10)
    marked = own.with_markers()
    assert isinstance(marked.shape, TokenShape) and marked.shape.vocab_size == 12
    assert marked.token_sizes_bytes == (0, 0, *[1] * 10)


def test_byte_pairs_have_both_markers_in_their_vocabulary_and_no_text_spells_one() -> None:
    spec = BytePairSpec(vocab_size=300)
    tokenizer = fit_byte_pair(spec, [b"some text, some more"])
    (ids,) = BytePairEncoder(spec, tokenizer).tokens([b"a <|endoftext|> and a <|pad|>"])
    assert MARKERS == ("<|endoftext|>", "<|pad|>") and not {EOT_ID, PAD_ID} & set(ids.tolist())

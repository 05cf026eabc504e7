"""What a language model writes after the beginnings of some held-out rows: sampled, seeded, short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headway.training.data.encode.packing import EOT_ID, PAD_ID
from headway.training.data.load.shard_reader import ShardReader
from headway.training.evaluation.measures import TOKENS
from headway.training.evaluation.outputs import seen_outputs
from headway.training.evaluation.scorers import Predict

if TYPE_CHECKING:
    from torch import nn

MAX_PROMPT_TOKENS = 48
MAX_NEW_TOKENS = 64
TEMPERATURE = 0.8
"""Below 1: a small model's unlikely tokens would end every sentence in noise."""


def continuations(
    reader: ShardReader,
    model: nn.Module,
    predict: Predict,
    table: Sequence[bytes],
    *,
    count: int,
    seed: int,
    on_part: Callable[[], None],
) -> list[dict[str, str | int]]:
    """`row`, `prompt` and `text` of some rows, evenly spread; none where the model gives no logits of every token.

    Args:
        table: bytes of each token.
    """
    rows = np.unique(np.linspace(0, reader.num_rows - 1, count).astype(np.int64))
    columns = reader.gather(rows)
    tokens = columns[TOKENS].astype(np.int64)
    context = tokens.shape[1] - 1
    prompt = min(MAX_PROMPT_TOKENS, context // 2)
    # A row that is padded early would be continued from nothing.
    usable = (tokens[:, :prompt] != PAD_ID).all(axis=1)
    if prompt < 1 or not usable.any():
        return []
    rows, tokens = rows[usable], tokens[usable]
    columns = {name: values[usable] for name, values in columns.items()}
    generator = np.random.default_rng(seed)
    end = min(prompt + MAX_NEW_TOKENS, context)
    for place in range(prompt, end):
        # Targets count for nothing here; the model must not look ahead, or its loss would mean nothing either.
        with seen_outputs(model) as seen:
            predict({**columns, TOKENS: tokens.astype(columns[TOKENS].dtype)})
        on_part()
        if len(seen) != 1 or seen[0] is None or seen[0].ndim != 3 or seen[0].shape[:2] != (len(rows), context):
            return []
        logits = seen[0][:, place - 1].double().cpu().numpy()
        tokens[:, place] = [_drawn(each[: len(table)], generator) for each in logits]
    made = []
    for row, line in zip(rows.tolist(), tokens[:, :end].tolist(), strict=True):
        new = line[prompt:]
        new = new[: new.index(EOT_ID)] if EOT_ID in new else new
        made.append({"row": row, "prompt": _text(line[:prompt], table), "text": _text(new, table)})
    return made


def _drawn(logits: NDArray[np.float64], generator: np.random.Generator) -> int:
    scaled = logits / TEMPERATURE
    scaled[PAD_ID] = -np.inf  # never a target
    weights = np.cumsum(np.exp(scaled - scaled.max()))
    return int(min(np.searchsorted(weights, generator.random() * weights[-1], side="right"), len(weights) - 1))


def _text(tokens: Sequence[int], table: Sequence[bytes]) -> str:
    return b"".join(table[token] for token in tokens).decode(errors="replace")

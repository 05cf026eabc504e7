"""A small modern decoder-only transformer over packed token sequences.

RMSNorm (Zhang and Sennrich, 2019), of embeddings too, rotary positions (Su et al., 2021), SwiGLU (Shazeer, 2020),
normalised queries and keys (Henry et al., 2020), and output projections that start at zero, so that every block
starts as the identity.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.training.config.parallel import ParallelSpec
from headway.training.config.recipe_specs import LanguageModelSpec
from headway.training.config.shapes import TokenShape
from headway.training.recipes.protocol import Losses

NORM_EPSILON = 1e-6
PAD_TOKEN = 1


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.gain, NORM_EPSILON)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (i, i + d/2) of the last axis of `x` (batch, heads, positions, d) by their position's angle."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, spec: LanguageModelSpec) -> None:
        super().__init__()
        self.head_width = spec.width // spec.heads
        self.query_key_value = nn.Linear(spec.width, 3 * spec.width, bias=False)
        self.output = nn.Linear(spec.width, spec.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # By head first, so that ranks can have heads of their own; how many are here, the width says.
        projected = self.query_key_value(x).unflatten(-1, (-1, 3, self.head_width))
        query, key, value = projected.permute(3, 0, 2, 1, 4).unbind(0)
        query = rotate(F.rms_norm(query, (self.head_width,), eps=NORM_EPSILON), cos, sin)
        key = rotate(F.rms_norm(key, (self.head_width,), eps=NORM_EPSILON), cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class GatedLayer(nn.Module):
    def __init__(self, spec: LanguageModelSpec) -> None:
        super().__init__()
        self.group_width = spec.hidden // spec.hidden_groups
        self.gate_and_value = nn.Linear(spec.width, 2 * spec.hidden, bias=False)
        self.output = nn.Linear(spec.hidden, spec.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        # By group first, each a gate and a value, so that ranks can have groups of their own.
        gate, value = self.gate_and_value(x).unflatten(-1, (-1, 2, self.group_width)).unbind(-2)
        return self.output((F.silu(gate) * value).flatten(-2))  # type: ignore[no-any-return]


class TransformerBlock(nn.Module):
    def __init__(self, spec: LanguageModelSpec) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(spec.width), Attention(spec)
        self.layer_norm, self.layer = RMSNorm(spec.width), GatedLayer(spec)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.layer(self.layer_norm(x))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Tokens, int64 (batch, positions), to logits, float32 (batch, positions, vocabulary)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, spec: LanguageModelSpec, shape: TokenShape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab_size, spec.width)
        self.blocks = nn.ModuleList(TransformerBlock(spec) for _ in range(spec.depth))
        self.norm = RMSNorm(spec.width)
        self.head = nn.Linear(spec.width, shape.vocab_size, bias=False)
        self._initialise()
        if spec.tied_embeddings:
            self.head.weight = self.embedding.weight
        half = spec.width // spec.heads // 2
        rates = spec.rotary_base ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(shape.context_tokens, dtype=torch.float64), rates)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("output.weight"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        # Small logits at the start: the first loss is then close to log(vocabulary).
        nn.init.normal_(self.head.weight, std=0.1 * self.head.weight.shape[1] ** -0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = tokens.shape[1]
        cos, sin = self.cos[:positions], self.sin[:positions]
        x = embed(self.embedding, tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def embed(embedding: nn.Embedding, tokens: Tensor) -> Tensor:
    # Unit scale, so that blocks do not drown the token itself: 0.07 bits a byte after 300 steps of the example.
    return F.rms_norm(embedding(tokens), (embedding.embedding_dim,), eps=NORM_EPSILON)


class TransformerStage(nn.Module):
    """Consecutive blocks of a transformer under its names; the first stage embeds, the last one predicts.

    Rows have the whole context: ranks that split it by position cannot tell its length from their part.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, whole: Transformer, numbers: range) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({str(number): whole.blocks[number] for number in numbers})
        self.register_buffer("cos", whole.cos, persistent=False)
        self.register_buffer("sin", whole.sin, persistent=False)
        self.embeds, self.predicts = numbers.start == 0, numbers.stop == len(whole.blocks)
        if self.embeds:
            self.embedding = whole.embedding
        if self.predicts:
            self.norm, self.head = whole.norm, whole.head

    def forward(self, x: Tensor) -> Tensor:
        x = embed(self.embedding, x) if self.embeds else x
        for block in self.blocks.values():
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x)) if self.predicts else x


class LanguageModel:
    """The recipe: next-token prediction on rows of context + 1 tokens; padding has no loss."""

    spec_type = LanguageModelSpec
    shape_type = TokenShape

    def __init__(self, spec: LanguageModelSpec, shape: TokenShape) -> None:
        self.spec, self.shape = spec, shape

    def build(self) -> nn.Module:
        return Transformer(self.spec, self.shape)

    def inputs(self, batch: Mapping[str, Tensor]) -> Tensor:
        return batch["tokens"][:, :-1]

    def losses(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Losses:
        targets = batch["tokens"][:, 1:]
        logits = model(self.inputs(batch))
        nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD_TOKEN, reduction="none")
        return Losses(nats=nats.view(targets.shape), valid=targets != PAD_TOKEN)

    def measures(self, model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"nats": self.losses(model, batch).nats}

    def blocks(self, model: nn.Module) -> tuple[str, ...]:
        return tuple(name for name, _ in model.named_modules() if re.fullmatch(r"blocks\.\d+", name))

    def tensor_plan(self, parallel: ParallelSpec) -> dict[str, object]:
        """Heads, hidden groups and vocabulary are split; between them, activations are split by position or whole.

        Raises:
            ConfigError: heads, positions or vocabulary do not divide by the ranks.
        """
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

        for problem in self.spec.mesh_problems(parallel, self.shape):
            raise problem
        between = Shard(1) if parallel.sequence_parallel else Replicate()
        to_logits = (
            ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False)
            if parallel.loss_parallel
            else ColwiseParallel(input_layouts=between, output_layouts=Replicate())
        )
        norms = ("blocks.*.attention_norm", "blocks.*.layer_norm", "norm") if parallel.sequence_parallel else ()
        return {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            **{norm: SequenceParallel(use_local_output=True) for norm in norms},
            "blocks.*.attention.query_key_value": ColwiseParallel(input_layouts=between),
            "blocks.*.attention.output": RowwiseParallel(output_layouts=between),
            "blocks.*.layer.gate_and_value": ColwiseParallel(input_layouts=between),
            "blocks.*.layer.output": RowwiseParallel(output_layouts=between),
            "head": to_logits,
        }

    def flops_per_token(self, num_parameters: int) -> float:
        """6 N + 12 L H Q T (Chowdhery et al., PaLM, 2022, appendix B): matrices, and queries against all positions.

        N is without a table of embeddings of its own, in which rows are looked up and nothing is multiplied.
        """
        spec, shape = self.spec, self.shape
        looked_up = 0 if spec.tied_embeddings else shape.vocab_size * spec.width
        head_width = spec.width // spec.heads
        attention = 12 * spec.depth * spec.heads * head_width * shape.context_tokens
        return 6.0 * (num_parameters - looked_up) + attention

    def stages(self, model: nn.Module, count: int) -> list[nn.Module]:
        """Equal runs of blocks, the first ones longer where they cannot be equal."""
        assert isinstance(model, Transformer)
        cuts = [-(-len(model.blocks) * stage // count) for stage in range(count + 1)]
        return [TransformerStage(model, range(start, stop)) for start, stop in itertools.pairwise(cuts)]

    def hidden_matrices(self, model: nn.Module) -> tuple[str, ...]:
        parameters = model.named_parameters()
        return tuple(name for name, value in parameters if name.startswith("blocks.") and value.dim() == 2)

    def example_input(self) -> Tensor:
        positions = min(8, self.shape.context_tokens)
        return torch.arange(2 * positions, dtype=torch.int64).view(2, positions) % self.shape.vocab_size

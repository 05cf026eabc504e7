"""A network of your own for these tokens: `recipe: {name: recipes.network:Network}` in the pipeline file trains it.

It predicts each token from the few before it (Bengio et al., 2003). Change what you like. The package is frozen into
each run, so an edit here retrains, and an old run resumes on old code.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headway import Frozen, Losses, TokenShape

PAD = 1  # fills the last row of a shard group, and is no target


class Spec(Frozen):
    """The pipeline file's `recipe: {model: ...}`."""

    width: int = 64
    history_tokens: int = 4


class NextToken(nn.Module):
    """Tokens (rows, length) to logits (rows, length, vocabulary) of the token that follows each."""

    def __init__(self, vocab_size: int, spec: Spec) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, spec.width)
        self.hidden = nn.Linear(spec.history_tokens * spec.width, spec.width)
        self.head = nn.Linear(spec.width, vocab_size)
        self.history_tokens = spec.history_tokens

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        embedded = nn.functional.pad(self.embedding(tokens), (0, 0, self.history_tokens - 1, 0))
        history = torch.cat([embedded[:, back : back + length] for back in range(self.history_tokens)], dim=2)
        logits: Tensor = self.head(torch.relu(self.hidden(history)))
        return logits


class Network:
    spec_type, shape_type = Spec, TokenShape

    def __init__(self, spec: Spec, shape: TokenShape) -> None:
        self.spec, self.shape = spec, shape

    def build(self) -> nn.Module:
        return NextToken(self.shape.vocab_size, self.spec)

    def losses(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Losses:
        tokens = batch["tokens"]
        logits, targets = model(tokens[:, :-1]), tokens[:, 1:]
        nats = nn.functional.cross_entropy(logits.transpose(1, 2), targets, ignore_index=PAD, reduction="none")
        return Losses(nats, targets != PAD)

    def measures(self, model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        # What evaluation adds up over the held-out rows: each target counts once.
        return {"nats": self.losses(model, batch).nats}

    def hidden_matrices(self, model: nn.Module) -> tuple[str, ...]:
        # Matrices that the optimizer `muon` may orthogonalise; all others get AdamW.
        return ("hidden.weight",)

    def example_input(self) -> Tensor:
        return torch.zeros(2, self.shape.context_tokens, dtype=torch.long)

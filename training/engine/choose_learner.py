"""Which learner a configuration asks for: one that meets others at every step, every few, or in federated rounds."""

from __future__ import annotations

from headway.training.config.training_spec import TrainingSpec
from headway.training.data.load.shard_reader import ShardReader
from headway.training.engine.batches import client_rounds
from headway.training.engine.federated_learner import FederatedLearner
from headway.training.engine.island_learner import IslandLearner
from headway.training.engine.learner import Learner
from headway.training.ranks.distributed import ProcessGroup
from headway.training.recipes.protocol import Recipe


def new_learner(
    recipe: Recipe, spec: TrainingSpec, process_group: ProcessGroup, reader: ShardReader | None = None
) -> Learner:
    """From fresh weights.

    Args:
        reader: of the training split, whose groups are clients; by default nobody's, for one that is only tried out.

    Raises:
        ConfigError: the model cannot be trained as the configuration asks.
    """
    if spec.federated is not None:
        return FederatedLearner(recipe, spec, process_group, client_rounds(spec, reader))
    kind = Learner if spec.sync is None else IslandLearner
    return kind(recipe, spec, process_group)

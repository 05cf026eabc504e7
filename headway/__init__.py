"""Headway retrains models that nobody watches: validated data, deterministic shards, verified checkpoints.

What a project writes against is named here, and loaded when it is first used: `import headway` costs nothing, and
ranks import neither Prefect nor MLflow. Everything else is Headway's own business.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headway.public import PLACES

if TYPE_CHECKING:
    __version__: str

    from headway.data_contracts.store.documents import Frozen as Frozen
    from headway.data_contracts.store.documents import PayloadColumn as PayloadColumn
    from headway.data_contracts.store.errors import ConfigError as ConfigError
    from headway.data_contracts.store.errors import ContractViolation as ContractViolation
    from headway.data_contracts.store.errors import DataError as DataError
    from headway.data_contracts.store.errors import EncodingRefused as EncodingRefused
    from headway.data_contracts.store.errors import EnvironmentProblem as EnvironmentProblem
    from headway.data_contracts.store.errors import HeadwayError as HeadwayError
    from headway.data_contracts.store.errors import IntegrityError as IntegrityError
    from headway.data_contracts.store.errors import NotReproduced as NotReproduced
    from headway.data_contracts.store.errors import OutsideWindow as OutsideWindow
    from headway.data_contracts.store.errors import PipelineHeld as PipelineHeld
    from headway.data_contracts.store.errors import PromotionRefused as PromotionRefused
    from headway.data_contracts.store.errors import RegistryError as RegistryError
    from headway.data_contracts.store.errors import RunBusy as RunBusy
    from headway.data_contracts.store.errors import RunStopped as RunStopped
    from headway.data_contracts.store.errors import TrainingFailed as TrainingFailed
    from headway.flows.python_api import load_table_model as load_table_model
    from headway.flows.python_api import load_text_model as load_text_model
    from headway.flows.python_api import retrain as retrain
    from headway.training.config.shapes import CustomShape as CustomShape
    from headway.training.config.shapes import ImageShape as ImageShape
    from headway.training.config.shapes import TabularNumberShape as TabularNumberShape
    from headway.training.config.shapes import TabularShape as TabularShape
    from headway.training.config.shapes import TokenShape as TokenShape
    from headway.training.data.encode.custom_encoder import CustomEncoder as Encoder  # noqa: F401
    from headway.training.data.encode.custom_encoder import CustomEncoderFacts as CustomEncoderFacts
    from headway.training.data.encode.custom_encoder import EncoderMetadata as EncoderMetadata
    from headway.training.data.encode.custom_encoder import EncoderState as EncoderState
    from headway.training.recipes.protocol import FlopCounter as FlopCounter
    from headway.training.recipes.protocol import Losses as Losses
    from headway.training.recipes.protocol import Parallelizable as Parallelizable
    from headway.training.recipes.protocol import Recipe as Recipe

__all__ = [*PLACES]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("headway")
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, there = PLACES[name]
    found = globals()[name] = getattr(importlib.import_module(module), there)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

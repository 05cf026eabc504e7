"""A registered graph as a model, if it is one that torch may load."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import TYPE_CHECKING

from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.places import keep_compiled_code_private
from headway.training.graph_check.check import check_graph, check_graph_file
from headway.training.graph_check.refusal import UnsafeGraph

if TYPE_CHECKING:
    from torch import nn

ADVICE = "It was altered, or made elsewhere: load it nowhere. Retrain to register a graph that Headway wrote."


def load_graph(data: bytes, where: str) -> nn.Module:
    """The model of an exported program's bytes.

    Raises:
        IntegrityError: loading it could run code, or torch cannot.
    """
    try:
        check_graph(data)
    except UnsafeGraph as error:
        raise IntegrityError(f"the graph is refused: {error}.", where=where, advice=ADVICE) from error
    # Both import torch, which who only checks a graph does without.
    from headway.training.graph_check.run_graph import GraphModel, Unsupported

    with contextlib.suppress(Unsupported):
        return GraphModel(data)
    keep_compiled_code_private()
    import torch

    try:
        return torch.export.load(io.BytesIO(data)).module()
    except Exception as error:  # torch raises anything, also what is nobody's fault but the archive's
        raise IntegrityError(f"torch cannot load the graph ({type(error).__name__}).", where=where) from error


def require_safe_graph(path: Path, where: str) -> None:
    """Raises `IntegrityError`: loading the exported program in this file could run code."""
    try:
        check_graph_file(path)
    except UnsafeGraph as error:
        raise IntegrityError(f"the graph is refused: {error}.", where=where, advice=ADVICE) from error

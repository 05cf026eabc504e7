"""The seam between files and rows: an encoder is fitted once, then turns a group's documents into columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from data_contracts.digests import sha256_bytes
from data_contracts.documents import FittedState, PayloadColumn
from data_contracts.errors import ConfigError, IntegrityError
from data_contracts.publication import Workspace
from training.data.byte_pair import TOKENIZER_FILE, BytePairEncoder, fit_byte_pair
from training.data.spec import BytePairSpec

LIBRARIES = ("tokenizers",)
"""Distributions whose version may change what is fitted or encoded."""


class Encoder(Protocol):
    """Documents to rows, a pure function of their bytes, the spec and the fitted state."""

    columns: tuple[PayloadColumn, ...]

    def encode(self, documents: Iterable[bytes]) -> Mapping[str, NDArray[Any]]:
        """One array a column, shape (rows, *column.shape); thread-safe."""
        ...


def fit_encoder(spec: BytePairSpec, documents: Iterable[bytes]) -> dict[str, bytes]:
    """The fitted state's files, by name."""
    return fit_byte_pair(spec, documents)


def load_encoder(spec: BytePairSpec, fitted: FittedState, workspace: Workspace) -> Encoder:
    """The encoder that a fitted state holds.

    Raises:
        IntegrityError: a fitted file is gone or altered.
        ConfigError: it was fitted for another encoder or vocabulary.
    """
    asked = {"kind": spec.kind, "vocab_size": spec.vocab_size}
    held = {name: fitted.spec.get(name) for name in asked}
    if held != asked:
        raise ConfigError(
            f"the fitted state is for {held}, the spec asks for {asked}.",
            where=fitted.link.short,
            advice="Fit again, or keep the encoder's spec.",
        )
    return BytePairEncoder(spec, fitted_file(workspace, fitted, TOKENIZER_FILE))


def fitted_file(workspace: Workspace, fitted: FittedState, name: str) -> bytes:
    """A fitted file's bytes, checked.

    Raises:
        IntegrityError: not part of the state, gone or altered.
    """
    for file in fitted.files:
        if file.path.rpartition("/")[2] == name:
            data = workspace.read(file.path)
            if sha256_bytes(data) != file.sha256:
                raise IntegrityError(
                    "its bytes differ from the digest in the fitted state.",
                    where=file.path,
                    advice="Delete it and run again: fitting makes the same file.",
                )
            return data
    raise IntegrityError(f"the fitted state holds no {name}.", where=fitted.link.short)

"""The seam between rows of the source and rows of the shards: an encoder is fitted once, then encodes group by group.

A new kind is a spec in `encoder_specs`, a class with `columns`, `num_classes` and `stream`, and an entry below. One of
the user's own needs no edit here: `custom_encoder` says what it brings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, Final

from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import FittedState
from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.data_contracts.store.installation import version
from headway.data_contracts.store.publication import Workspace
from headway.training.config.encoder_specs import (
    ENCODER_SPEC,
    BytePairSpec,
    CustomEncoderSpec,
    EncoderSpec,
    ImageEncoderSpec,
    TabularEncoderSpec,
    TokenIdsSpec,
)
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.encode.protocol import Encoder, Fit, Fitted

TOKENIZER_FILE: Final = "tokenizer.json"


SOURCES = {
    "byte-pair": ("byte_pair", "packing", "token_stream"),
    "token-ids": ("token_ids", "packing", "token_stream"),
    "tabular": ("tabular", "categories", "protocol", "times", "numeric_block", "table_statistics"),
    "image": ("images", "tabular", "categories", "protocol"),
    "own": (
        *("custom_encoder", "host", "hosted_encoder", "messages", "process"),
        *("packing", "protocol", "token_stream"),
    ),
}
"""Modules of this folder that decide an encoder's rows."""


def libraries(spec: EncoderSpec) -> dict[str, str]:
    """Distributions whose version may change what is fitted or encoded."""
    also = (
        ("tokenizers",) if isinstance(spec, BytePairSpec) else ("numpy",) if isinstance(spec, CustomEncoderSpec) else ()
    )
    # Only what decides bytes: another version of a library that is not listed invalidates no group.
    return {name: version(name) for name in ("pyarrow", *also)}


def fit_encoder(
    spec: EncoderSpec, groups: Sequence[Iterable[SourceBlock]], num_threads: int, code: bytes | None = None
) -> Fitted:
    """What the encoder learns from the training split.

    Args:
        groups: blocks of training rows; the result does not depend on how they are shared out.
        code: of an encoder of the user's own, the archive that it is imported from.

    Raises:
        DataError: no row to learn from, or a row that the spec does not allow.
        ConfigError: an encoder of the user's own is wrong.
    """
    match spec:
        case CustomEncoderSpec():
            from headway.training.data.encode.hosted_encoder import fit_custom_encoder

            if code is None:
                raise ValueError("an encoder of the user's own is fitted with its code")
            return fit_custom_encoder(spec, code, groups)
        case BytePairSpec():
            return _fit_byte_pair(spec, groups)
        case TokenIdsSpec():
            return Fitted({}, None)
        case TabularEncoderSpec() | ImageEncoderSpec():
            with ThreadPoolExecutor(num_threads, "fit") as pool:
                # Fitted group by group and merged: sums and counts are exact, so the order shows nowhere.
                fits = list(pool.map(lambda blocks: _fit_of(spec, blocks), groups))
            whole = _new_fit(spec)
            for fit in fits:
                whole.merge(fit)
            return Fitted({}, whole.statistics())


def _fit_byte_pair(spec: BytePairSpec, groups: Sequence[Iterable[SourceBlock]]) -> Fitted:
    from headway.training.data.encode.byte_pair import fit_byte_pair
    from headway.training.data.encode.fit_sample import FitSample

    sample = FitSample(chain.from_iterable(groups), spec.column, spec.fit_mb * 10**6)
    tokenizer = fit_byte_pair(spec, sample.documents())
    return Fitted({TOKENIZER_FILE: tokenizer}, None if sample.account is None else {"sample": sample.account})


def _fit_of(spec: TabularEncoderSpec | ImageEncoderSpec, blocks: Iterable[SourceBlock]) -> Fit:
    fit = _new_fit(spec)
    for block in blocks:
        fit.add(block)
    return fit


def _new_fit(spec: TabularEncoderSpec | ImageEncoderSpec) -> Fit:
    from headway.training.data.encode.images import ImageFit
    from headway.training.data.encode.tabular import TabularFit

    return TabularFit(spec) if isinstance(spec, TabularEncoderSpec) else ImageFit(spec)


def load_encoder(spec: EncoderSpec, fitted: FittedState, workspace: Workspace) -> Encoder:
    """The encoder that a fitted state holds.

    Raises:
        IntegrityError: a fitted file is gone or altered.
        ConfigError: it was fitted for another encoder.
    """
    held = ENCODER_SPEC.validate_python(fitted.spec).fitting
    # Only what fitting depends on is compared; other options may change without fitting again.
    if held != spec.fitting:
        raise ConfigError(
            f"the fitted state is for {_difference(held, spec.fitting)}.",
            where=fitted.link.short,
            advice="Fit again, or keep the encoder's spec.",
        )
    match spec:
        case BytePairSpec():
            from headway.training.data.encode.byte_pair import BytePairEncoder

            return BytePairEncoder(spec, fitted_file(workspace, fitted, TOKENIZER_FILE))
        case TokenIdsSpec():
            from headway.training.data.encode.token_ids import TokenIdsEncoder

            return TokenIdsEncoder(spec)
        case TabularEncoderSpec():
            from headway.training.data.encode.tabular import TabularEncoder

            return TabularEncoder(spec, fitted.statistics)
        case ImageEncoderSpec():
            from headway.training.data.encode.images import ImageEncoder

            return ImageEncoder(spec, fitted.statistics)
        case CustomEncoderSpec():
            from headway.training.data.encode.hosted_encoder import HostedEncoder

            names = [file.path.rpartition("/")[2] for file in fitted.files]
            files = {name: fitted_file(workspace, fitted, name) for name in names}
            return HostedEncoder(spec, files, fitted.statistics)


def _difference(held: dict[str, Any], asked: dict[str, Any]) -> str:
    names = [name for name in sorted({*held, *asked}) if held.get(name) != asked.get(name)]
    return f"{names[0]} {held.get(names[0])}, the spec asks for {asked.get(names[0])}"


def fitted_file(workspace: Workspace, fitted: FittedState, name: str) -> bytes:
    """A fitted file's bytes, checked.

    Raises:
        IntegrityError: not part of the state, gone or altered.
    """
    for file in fitted.files:
        if file.path.rpartition("/")[2] == name:
            data = workspace.read(file.path, file.size_bytes)
            # Read once and checked: what is hashed is what is used.
            if sha256_bytes(data) != file.sha256:
                raise IntegrityError(
                    "its bytes differ from the digest in the fitted state.",
                    where=file.path,
                    advice="Delete it and run again: fitting makes the same file.",
                )
            return data
    raise IntegrityError(f"the fitted state holds no {name}.", where=fitted.link.short)

"""The process that runs a user's encoder: its code comes from a frozen archive, and what it makes is checked here.

As a process: `python -m headway.training.data.encode.host`, with the archive first on PYTHONPATH. It answers
messages on its standard input until that ends; whatever is wrong with the encoder is an answer, too.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import ValidationError

from headway.data_contracts.store import errors
from headway.data_contracts.store.digests import canonical_json
from headway.data_contracts.store.documents import Frozen, PayloadColumn
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem, HeadwayError, plain_message
from headway.training.config.shapes import CustomShape, TokenShape
from headway.training.data.encode.custom_encoder import (
    ADVICE,
    DTYPES,
    LABEL,
    TOKENS,
    CustomEncoderFacts,
    EncoderState,
    columns_of,
    num_classes_of,
)
from headway.training.data.encode.messages import Message, array_bytes, batch_from, receive, send
from headway.training.launch.base.process_tree import die_with_parent
from headway.training.recipes.blame import definition, line_at_fault
from headway.training.recipes.built_in import model_fields

OPTIONS = ("shards", "encoder", "options")
ABOUT_CODE = (ArithmeticError, AttributeError, ImportError, NameError, NotImplementedError, SyntaxError, TypeError)
"""Exceptions whose own words speak of code; those of others may quote a value of the data."""
MESSAGE_CHARACTERS = 300


class HostedCode:
    """A user's encoder under watch.

    Args:
        name: `package.module:Class`.
        options: its own fields of the pipeline file.

    Raises:
        ConfigError: cannot be imported, is no encoder, or does not accept its options.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        module, _, attribute = name.partition(":")
        self._package = module.partition(".")[0]
        with self._blamed("importing it"):
            imported = importlib.import_module(module)
        if not isinstance(found := getattr(imported, attribute, None), type):
            raise ConfigError(f"{module} defines no class {attribute!r}.", where=self._where, advice=ADVICE)
        self._class: type[Any] = found
        self._require_methods()
        self._spec = model_fields(self._class.spec_type, options, OPTIONS)
        self._encoder: Any = None
        self._columns: tuple[PayloadColumn, ...] = ()
        self.facts: CustomEncoderFacts | None = None

    @property
    def _where(self) -> str:
        return f"shards.encoder {self._name!r}"

    def _require_methods(self) -> None:
        spec_type = getattr(self._class, "spec_type", None)
        if not (isinstance(spec_type, type) and issubclass(spec_type, Frozen)):
            self._refuse(None, "is no encoder: its spec_type is no Frozen model.")
        for method in ("fit", "encode"):
            if not callable(getattr(self._class, method, None)):
                self._refuse(None, f"is no encoder: it has no method {method}.")
        # `fit` runs before there is an instance, so an ordinary method would be called with the wrong arguments.
        if not inspect.ismethod(self._class.fit):
            self._refuse("fit", "is no classmethod: it runs before there is an encoder.")

    def fit(self, batches: Iterator[pa.RecordBatch]) -> EncoderState:
        with self._blamed("fit", "fit"):
            fitted: object = self._class.fit(self._spec, batches)
        if not isinstance(fitted, EncoderState):
            self._refuse("fit", f"returned {_kind(fitted)}, not EncoderState(state, files).")
        try:
            # Checked now: a state that is no JSON value would fail hours later, when it is written.
            canonical_json(fitted.state)
        except (TypeError, ValueError, RecursionError) as error:
            self._refuse("fit", f"returned a state that is no JSON value ({error}).")
        if not isinstance(fitted.files, Mapping):
            self._refuse("fit", f"returned files as {_kind(fitted.files)}, not as bytes by name.")
        for file, data in fitted.files.items():
            # Names become paths in the workspace, so nothing that leads elsewhere may pass.
            if not isinstance(file, str) or not file or "/" in file or file.startswith("."):
                self._refuse("fit", f"returned a file called {file!r}, which is no plain name.")
            if not isinstance(data, bytes):
                self._refuse("fit", f"returned the file {file!r} as {_kind(data)}, not as bytes.")
        return fitted

    def open(self, fitted: EncoderState) -> CustomEncoderFacts:
        """Make the encoder that a state belongs to; what it says of its rows."""
        with self._blamed("constructing it", "__init__"):
            self._encoder = self._class(self._spec, fitted)
            shape: Any = self._encoder.shape
            sizes = getattr(self._encoder, "token_sizes_bytes", None)
            target = getattr(self._encoder, "target", None)
        try:
            facts = CustomEncoderFacts(
                shape=shape,
                fitted=fitted.state,
                target=target,
                token_sizes_bytes=None if sizes is None else tuple(sizes),
            )
        except (ValidationError, TypeError) as error:
            message = plain_message(error.errors()[0]) if isinstance(error, ValidationError) else error
            self._refuse("__init__", f"made an encoder whose shape, target or token_sizes_bytes is none ({message}).")
        self._check_shape(facts)
        self._columns, self.facts = columns_of(facts.shape), facts
        return facts

    def _check_shape(self, facts: CustomEncoderFacts) -> None:
        shape = facts.shape
        if isinstance(shape, TokenShape):
            # 31 bits less two: ids are stored as uint32 above two markers, and read as int64.
            if not (0 < shape.vocab_size < (1 << 31) - 2 and 0 < shape.context_tokens <= 1 << 17):
                self._refuse("__init__", f"made a shape that cannot be: {shape}.")
            if facts.token_sizes_bytes is not None and len(facts.token_sizes_bytes) != shape.vocab_size:
                problem = f"gives sizes of {len(facts.token_sizes_bytes)} tokens, and the vocabulary has"
                self._refuse("__init__", f"{problem} {shape.vocab_size}.")
            return
        if facts.token_sizes_bytes is not None:
            self._refuse("__init__", "gives token_sizes_bytes, and its rows are no tokens.")
        columns = shape.columns if isinstance(shape, CustomShape) else ()
        names = [column.name for column in columns]
        if len({*names, LABEL}) != len(names) + 1:
            self._refuse("__init__", f"names a column twice, or {LABEL!r}, in {', '.join(names)}.")
        for column in columns:
            if column.dtype not in DTYPES or min(column.shape, default=0) < 1:
                message = f"column {column.name!r} as {column.dtype} {list(column.shape)}"
                self._refuse("__init__", f"names {message}; a column has a shape and one of {', '.join(DTYPES)}.")

    def encode(self, batch: pa.RecordBatch) -> dict[str, NDArray[Any]]:
        """By column, or `tokens` of all rows one after another and their `lengths`."""
        with self._blamed("encode", "encode"):
            made = self._encoder.encode(batch)
        if self.facts is not None and isinstance(self.facts.shape, TokenShape):
            return self._checked_tokens(made, batch.num_rows, self.facts.shape.vocab_size)
        names = [column.name for column in self._columns]
        if not isinstance(made, Mapping) or set(made) != set(names):
            message = ", ".join(map(str, made)) or "none" if isinstance(made, Mapping) else _kind(made)
            self._refuse("encode", f"returned {message}, not the columns {', '.join(names)}.")
        return {column.name: self._checked(column, made[column.name], batch.num_rows) for column in self._columns}

    def _checked(self, column: PayloadColumn, values: object, num_rows: int) -> NDArray[Any]:
        if not isinstance(values, np.ndarray):
            self._refuse("encode", f"returned {column.name} as {_kind(values)}, not as a numpy array.")
        if values.shape[:1] != (num_rows,):
            message = "no rows" if not values.shape else f"{values.shape[0]:,} rows"
            self._refuse("encode", f"returned {column.name} with {message} for {num_rows:,} rows of the source.")
        if values.dtype != np.dtype(column.dtype) or values.shape[1:] != column.shape:
            message = f"{values.dtype} {list(values.shape)}"
            expected = f"{column.dtype} {[num_rows, *column.shape]}"
            self._refuse("encode", f"returned {column.name} as {message}, not as {expected}.")
        # A NaN in a shard would show as a loss that is not finite, far from its cause.
        if np.issubdtype(values.dtype, np.floating) and not bool(np.isfinite(values).all()):
            self._refuse("encode", f"returned {column.name} with a NaN or an infinity.")
        classes = num_classes_of(self.facts.shape) if column.name == LABEL and self.facts is not None else 0
        if classes and num_rows and not 0 <= int(values.min()) <= int(values.max()) < classes:
            self._refuse("encode", f"returned a label outside [0, {classes}), which the shape gives.")
        return values

    def _checked_tokens(self, made: object, num_rows: int, vocab_size: int) -> dict[str, NDArray[Any]]:
        if not isinstance(made, Sequence):
            self._refuse("encode", f"returned {_kind(made)}, not a list with the tokens of each row.")
        if len(made) != num_rows:
            self._refuse("encode", f"returned tokens of {len(made):,} rows for {num_rows:,} rows of the source.")
        for tokens in made:
            if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
                message = f"{tokens.dtype} {list(tokens.shape)}" if isinstance(tokens, np.ndarray) else _kind(tokens)
                self._refuse(
                    "encode", f"returned the tokens of a row as {message}, not as a flat array of whole numbers."
                )
        # With an empty array in front, so that a batch without rows still has a type.
        flat = np.concatenate([np.zeros(0, dtype=np.int64), *made]).astype(np.int64)
        if flat.size and not 0 <= int(flat.min()) <= int(flat.max()) < vocab_size:
            self._refuse("encode", f"returned a token outside [0, {vocab_size}), which the shape gives.")
        return {TOKENS: flat, "lengths": np.array([len(tokens) for tokens in made], dtype=np.int64)}

    @contextlib.contextmanager
    def _blamed(self, doing: str, method: str = "") -> Iterator[None]:
        """Name the encoder's line for what went wrong in it."""
        try:
            yield
        except HeadwayError as error:
            where = line_at_fault(error, self._package) or self._where
            # The user's own subclass cannot be raised in the other process; its nearest class of ours can.
            raise _own_kind(error)(error.what, where=error.where or where, advice=error.advice) from error
        except MemoryError as error:
            advice = "Hold less at once: batches are bounded, and fit gets them one after another."
            raise EnvironmentProblem(f"no memory is left for {doing}.", where=self._where, advice=advice) from error
        except (Exception, SystemExit) as error:
            text = " ".join(str(error).split())[:MESSAGE_CHARACTERS]
            # Messages of other exceptions may quote values, which must not reach logs.
            message = f": {text}" if text and isinstance(error, ABOUT_CODE) else ""
            where = line_at_fault(error, self._package) or self._definition(method)
            if isinstance(error, SyntaxError):
                where, message = f"{_in_archive(str(error.filename))}:{error.lineno}", f": {error.msg}"
            problem = f"{doing} raised {type(error).__name__}{message}."
            raise ConfigError(problem, where=where, advice=ADVICE) from error

    def _refuse(self, method: str | None, problem: str) -> NoReturn:
        subject = {None: self._class.__name__, "__init__": "it"}.get(method, method)
        raise ConfigError(f"{subject} {problem}", where=self._definition(method or ""), advice=ADVICE)

    def _definition(self, method: str) -> str:
        known = getattr(self, "_class", None)
        found = None if known is None else definition(getattr(known, method, known))
        return found or self._where


def _is_of_code(error: HeadwayError) -> bool:
    """Whether no other rows could have been encoded: what was returned is wrong, or code is, or a column's name."""
    cause = error.__cause__
    return cause is None or isinstance(cause, ABOUT_CODE) or "does not exist in schema" in str(cause)


def _own_kind(error: HeadwayError) -> type[HeadwayError]:
    """Headway's own class: one that the user derived from it is known in this process alone."""
    known = vars(errors).values()
    return next(kind for kind in type(error).__mro__ if issubclass(kind, HeadwayError) and kind in known)


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _in_archive(path: str) -> str:
    """The file as its package names it."""
    inside = [path.removeprefix(f"{entry}/") for entry in sys.path if path.startswith(f"{entry}/")]
    return min(inside, key=len, default=path)


def _answer(
    guest: HostedCode, question: Message, questions: BinaryIO
) -> tuple[dict[str, Any], list[memoryview | bytes]]:
    header = question.header
    match header["ask"]:
        case "fit":
            rows = _rows(questions)
            fitted = guest.fit(map(batch_from, rows))
            # Read to the end: what is left in the pipe would be taken for the next question.
            for _ in rows:
                pass  # that it did not ask for
            # As it will be read: JSON has text keys and no tuples.
            fitted = EncoderState(json.loads(canonical_json(fitted.state)), dict(sorted(fitted.files.items())))
            facts = guest.open(fitted)
            return {"facts": facts.model_dump(mode="json"), "files": list(fitted.files)}, [*fitted.files.values()]
        case "open":
            files = {name: bytes(part) for name, part in zip(header["files"], question.parts, strict=True)}
            facts = guest.open(EncoderState(header["state"], files))
            return {"facts": facts.model_dump(mode="json")}, []
        case "encode":
            made = guest.encode(batch_from(question.parts[0]))
            names = list(made)
            return {"columns": names}, [array_bytes(made[name]) for name in names]
    raise ValueError(f"no such question: {header['ask']}")


def _rows(questions: BinaryIO) -> Iterator[memoryview]:
    """The batches that follow a question, up to the message without one."""
    while (message := receive(questions)) is not None and message.parts:
        yield message.parts[0]


def main() -> None:
    # First of all: the parent may be killed while a library is imported.
    die_with_parent()
    # What a user's code prints, or reads, is not for this pipe.
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    for end in (questions.fileno(), answers.fileno()):
        # What a user's code forks must not hold the pipe open when this process is gone.
        os.register_at_fork(after_in_child=functools.partial(os.close, end))
    guest: HostedCode | None = None
    while (question := receive(questions)) is not None:
        try:
            if guest is None:
                guest = HostedCode(question.header["name"], question.header["options"])
                send(answers, {})
                continue
            header, parts = _answer(guest, question, questions)
        except HeadwayError as error:
            words = {"what": error.what, "where": error.where, "advice": error.advice}
            send(answers, {"refused": type(error).__name__, "is_of_code": _is_of_code(error), **words})
            # It has refused, so it is not asked again; the parent starts another.
            return
        send(answers, header, parts)


if __name__ == "__main__":
    main()

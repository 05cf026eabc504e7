"""A registered model for whoever asks it: rows or text as the source has them, encoded by the model's own fitted state.

What is loaded is checked against the digests of its registration: the graph, and what the encoder learnt. A row of a
table gets the score that it got in evaluation, up to the rounding of float32. A text is scored as a document of its
own, while evaluation packs documents one after another, so that each begins somewhere in a context.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headway.data_contracts.store.documents import FittedState, Json, Registration, RunSpec, ShardManifest
from headway.data_contracts.store.errors import ConfigError, DataError, IntegrityError, shortened
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.notebook_card import notebook_card
from headway.data_contracts.types.report_text import count
from headway.tasks.registry import model_refs
from headway.tasks.registry.model_export import CONFIG, naming_the_copy, registered_graph
from headway.tasks.serving.exported_model import ADVICE, exported_file, parse_model_config, read_exported
from headway.tasks.serving.rows_to_predict import ROWS, as_table, rows_with_all_values, with_fitted_types
from headway.tasks.tracking.model_folder import ARTIFACTS
from headway.training.config.encoder_specs import ENCODER_SPEC, BytePairSpec, EncoderSpec, TabularEncoderSpec
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.encode.byte_pair import TOKENIZER_FILE, BytePairEncoder, token_bytes
from headway.training.data.encode.data_shape import classes_of, data_shape
from headway.training.data.encode.encoders import fitted_file
from headway.training.data.encode.packing import EOT_ID
from headway.training.data.encode.table_statistics import table_statistics
from headway.training.data.encode.tabular import TabularEncoder
from headway.training.data.encode.times import fitted_type
from headway.training.graph_check.safe_graph import load_graph
from headway.training.programs.evaluation import graph_model, prediction, recipe_of
from headway.training.programs.export import GRAPH, WEIGHTS
from headway.training.recipes.built_in import BUILT_IN
from headway.training.recipes.load import load_recipe

if TYPE_CHECKING:
    from torch import Tensor, nn

    from headway.training.recipes.protocol import Recipe

ROWS_AT_ONCE = 1 << 14
MAX_COLUMNS_SHOWN = 12
WINDOWS_AT_ONCE = 16
"""Bounds the memory of a call."""
OnMissing = Literal["refuse", "null"]
FILL_IN = "Fill it in, or leave such rows out."
MISSING = "Fill it in, leave such rows out, or have `predict(rows, on_missing='null')` answer null for them."


class ModelVersion(NamedTuple):
    """Which model it is that answers."""

    name: str
    """Of the registered model."""
    version: str
    """The number in its registry."""
    sha256: str
    """Digest of its registration, and by that of every file that it stands on."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class TableModel:
    """A model of table rows."""

    version: ModelVersion
    """Which model it is."""

    encoder: TabularEncoder
    """Makes of rows what the recipe reads; `encode` asks it."""
    graph: nn.Module
    """Called with float32 (rows, numbers + category ids); of a recipe of your own, with what that makes of a row."""
    recipe: Recipe | None
    """None: a recipe of your own."""
    classes: tuple[int | str, ...]
    """In the order of the outputs; none where a number is predicted."""
    fitted_types: Mapping[str, pa.DataType]
    """By name, of the columns that the encoder reads."""

    def __repr__(self) -> str:
        """One line: a graph's own fills twenty."""
        answers = f"a class of {len(self.classes):,}" if self.classes else "a number"
        return f"<TableModel {_name(self.version)}: {count(len(self.fitted_types), 'column')} to {answers}>"

    def _repr_html_(self) -> str:
        """For a notebook."""
        shown, num_more = list(self.fitted_types)[:MAX_COLUMNS_SHOWN], len(self.fitted_types) - MAX_COLUMNS_SHOWN
        columns = [*shown, *([f"and {num_more} more: model.fitted_types"] if num_more > 0 else [])]
        answers = f"a class: {', '.join(map(str, self.classes))}" if self.classes else "a number"
        return _card(self.version, {"reads": ", ".join(columns), "predicts": answers, "ask it": "model.predict(rows)"})

    def encode(self, rows: Any) -> dict[str, NDArray[Any]]:
        """The columns that the recipe reads: `numeric` float32 and `categorical` int32, (rows, columns) each.

        Args:
            rows: an Arrow table, a pandas or Polars frame, a dict of columns, a list of dicts, or one row as a dict or
                Series. Columns that the model does not read, the label among them, are passed over. One without any
                value may be of any type.

        Raises:
            DataError: no rows, a column is missing or of another kind than in training, or has a null that training
                refused.
        """
        return self._encoded(*self._numbered(rows))

    def _numbered(self, rows: Any, first_row: int = 0) -> tuple[pa.Table, NDArray[np.int64]]:
        """The columns that are read, and what each row is called."""
        table = with_fitted_types(as_table(rows), self.fitted_types, first_row)
        return table, np.arange(first_row, first_row + table.num_rows)

    def _encoded(self, table: pa.Table, row_numbers: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        encoded, first_row = [], 0
        # Not as one batch, which holds no more than 2 GB of texts.
        for batch in table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]:
            try:
                encoded.append(
                    self.encoder.encode(block_of(batch, row_numbers[first_row : first_row + batch.num_rows]))
                )
            except DataError as error:
                # The encoder's advice is for who trains; these rows are somebody's who asks.
                raise DataError(error.what, where=ROWS, advice=MISSING) from error
            first_row += batch.num_rows
        return {name: np.concatenate([each[name] for each in encoded]) for name in encoded[0]}

    def outputs(self, rows: Any) -> NDArray[np.float32]:
        """What the graph makes of the rows: logits (rows, classes), or numbers (rows, 1) in the unit of the label.

        Raises:
            ConfigError: a recipe of your own, of which only you know how it calls its model.
            DataError: as `encode`, or a row gets no finite answer.
        """
        return self._outputs(*self._numbered(rows))

    def _outputs(self, table: pa.Table, row_numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        import torch

        recipe = self.require_recipe()
        encoded = self._encoded(table, row_numbers)
        columns = {name: torch.as_tensor(values) for name, values in encoded.items()}
        width = len(self.classes) or 1
        with torch.inference_mode():
            given = recipe.inputs(columns)  # type: ignore[attr-defined]  # the tabular recipes have it
            made = [self._asked(some, width) for some in given.split(ROWS_AT_ONCE) if len(some)]
        values: NDArray[np.float32] = torch.cat([torch.zeros(0, width), *made]).numpy()
        self._refuse_overflows(values, encoded, row_numbers)
        return values

    def _asked(self, given: Tensor, width: int) -> Tensor:
        """The graph's answer, float32 (rows, width). A digest proves whose graph it is, not that it is of these rows.

        Raises:
            IntegrityError: it has none of that shape.
        """
        try:
            made: Tensor = self.graph(given).float()
        except Exception as error:  # what torch raises where shapes do not match, or the graph asserts
            message = shortened(" ".join(str(error).split()), 200)
            raise _unfit(f"it fails ({type(error).__name__}: {message})") from error
        if made.shape != (len(given), width):
            raise _unfit(f"its answers are {tuple(made.shape)}, not {(len(given), width)}")
        return made

    def require_recipe(self) -> Recipe:
        """Raises `ConfigError`: a recipe of your own, of which only you know how it calls its model."""
        if self.recipe is None:
            raise ConfigError(
                "only your recipe knows what it makes of encoded rows.",
                advice="Call `graph` with what it makes of `encode(rows)`.",
            )
        return self.recipe

    def _refuse_overflows(
        self, outputs: NDArray[np.float32], encoded: Mapping[str, NDArray[Any]], row_numbers: NDArray[np.int64]
    ) -> None:
        """A number far from all of training fits float32, and what the model makes of it may not."""
        overflown = ~np.isfinite(outputs).all(axis=1)
        if not overflown.any():
            return
        first = int(overflown.argmax())
        others = int(overflown.sum()) - 1
        more = f", nor for {others} more" if others else ""
        largest = ""
        if self.encoder.numeric:
            name = self.encoder.numeric[int(np.abs(encoded["numeric"][first]).argmax())]
            largest = f" Scaled as in training, the largest number of that row is in column {name!r}."
        raise DataError(
            f"the model has no finite answer for row {row_numbers[first]}{more}.{largest}",
            where=ROWS,
            advice="Put it right, or leave such rows out: it lies too far from what the model was trained on.",
        )

    def predict(self, rows: Any, *, on_missing: OnMissing = "refuse", first_row: int = 0) -> pa.Table:
        """A row for each row: `prediction`, which is a class or a number, and of classes `p(CLASS)` each, float32.

        Args:
            rows: as for `encode`.
            on_missing: what becomes of a row without a number or time that every row had in training: `refuse` raises,
                `null` predicts null for that row and continues.
            first_row: what messages call the first of these rows, such as its number in a file.

        Raises:
            ConfigError, DataError: as `outputs`.
        """
        if on_missing not in get_args(OnMissing):
            raise ConfigError(f"on_missing is 'refuse' or 'null', not {on_missing!r}.", where="predict")
        table, row_numbers = self._numbered(rows, first_row)
        if on_missing == "refuse" or not self.encoder.required:
            return self._predicted(table, row_numbers)
        whole = rows_with_all_values(table, self.encoder.required)
        places = pa.array(np.cumsum(whole) - 1, mask=~whole)
        return self._predicted(table.filter(pa.array(whole)), row_numbers[whole]).take(places)

    def _predicted(self, table: pa.Table, row_numbers: NDArray[np.int64]) -> pa.Table:
        import torch

        outputs = self._outputs(table, row_numbers)
        if not self.classes:
            return pa.table({"prediction": outputs[:, 0]})
        likeliest = pa.array(self.classes).take(pa.array(outputs.argmax(axis=1)))
        shares = torch.as_tensor(outputs).softmax(dim=1).numpy()
        named = {f"p({name})": shares[:, number] for number, name in enumerate(self.classes)}
        return pa.table({"prediction": likeliest, **named})


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class TextModel:
    """A language model over byte-pair tokens."""

    encoder: BytePairEncoder
    """Makes tokens of texts."""
    graph: nn.Module
    """int64 tokens (rows, positions) to logits (rows, positions, vocabulary)."""
    recipe: Recipe
    """The one that it was trained by."""
    column: str
    """The source's column whose texts it was trained on."""
    context_tokens: int
    """Tokens that it reads at once."""
    vocabulary: tuple[bytes, ...]
    """The bytes that each token stands for, by token id; none of markers, and of ids that the fit left unused."""
    version: ModelVersion
    """Which model it is."""

    def __repr__(self) -> str:
        """One line: a graph's own fills twenty."""
        tokens = f"{len(self.vocabulary):,} tokens, context {self.context_tokens:,}"
        return f"<TextModel {_name(self.version)}: {tokens}>"

    def _repr_html_(self) -> str:
        """For a notebook."""
        facts = {
            "reads": f"texts such as those of column {self.column}",
            "vocabulary": f"{len(self.vocabulary):,} tokens",
            "context": f"{self.context_tokens:,} tokens",
            "ask it": "model.bits(text), model.next_token_logits(text)",
        }
        return _card(self.version, facts)

    def bits(self, text: str) -> float:
        """What the model pays for the text as a document of its own, in bits; its end is no part of it."""
        batch = pa.RecordBatch.from_pydict({self.column: [text]})
        stream = self.encoder.stream(seed=0)
        encoded = [*stream.push(block_of(batch, np.arange(1))), *stream.finish()]
        columns = {name: np.concatenate([each.values[name] for each in encoded]) for name in ("tokens", "document")}
        # Logits of a whole book would fill the memory.
        nats = [
            value
            for first in range(0, len(columns["tokens"]), WINDOWS_AT_ONCE)
            for value in prediction(self.recipe, self.graph)(
                {name: values[first : first + WINDOWS_AT_ONCE] for name, values in columns.items()}
            )["nats"].ravel()
        ]
        return math.fsum(nats) / math.log(2)

    def next_token_logits(self, text: str) -> NDArray[np.float32]:
        """Of the token that follows the text, by token id, (vocabulary,); of a long text the last tokens count."""
        import torch

        (tokens,) = self.encoder.tokens([text.encode()])
        given = [EOT_ID, *tokens.tolist()][-self.context_tokens :]
        with torch.inference_mode():
            made: NDArray[np.float32] = self.graph(torch.tensor([given]))[0, -1].float().numpy()
        return made


def _unfit(what: str) -> IntegrityError:
    return IntegrityError(f"the graph does not belong to the encoder: {what}.", where=GRAPH, advice=ADVICE)


def _name(version: ModelVersion) -> str:
    return f"{version.name} version {version.version}"


def _card(version: ModelVersion, facts: Mapping[str, str]) -> str:
    digest = {"registration": version.sha256}
    return notebook_card(_name(version), facts={**facts, **digest})


def block_of(batch: pa.RecordBatch, row_numbers: NDArray[np.int64]) -> SourceBlock:
    return SourceBlock("rows", row_numbers, row_numbers.astype(np.uint64), batch)


def load_table_model(workspace: Workspace, model_uri: str) -> TableModel:
    """A registered model of table rows, such as `models:/NAME@champion`.

    Raises:
        ConfigError: no such model, or none of tables.
        IntegrityError: something it stands on is gone or altered.
    """
    name, version, registration, run, spec, fitted = _stands_on(workspace, model_uri)
    table = _require_table(spec, model_uri)
    return _table_model(
        ModelVersion(name, version, registration.sha256),
        table,
        fitted.statistics,
        graph=_graph(workspace, name, version, registration),
        recipe=_built_in_recipe(workspace, run),
    )


def load_exported_table_model(folder: Path) -> TableModel:
    """The same of a folder that `headway export` wrote; no workspace is asked.

    Raises:
        ConfigError: no such folder, or no model of tables.
        IntegrityError: a file is gone, or not the registered one.
    """
    found = read_exported(folder)
    registration = found.registration
    data = exported_file(folder, registration, f"/{WEIGHTS}/{CONFIG}")
    version = ModelVersion(registration.model, found.version, registration.sha256)
    graph_bytes = exported_file(folder, registration, f"/{ARTIFACTS}/{GRAPH}")
    return described_table_model(data, str(folder / CONFIG), load_graph(graph_bytes, str(folder / GRAPH)), version)


def described_table_model(config: bytes, where: str, graph: nn.Module, version: ModelVersion) -> TableModel:
    """Args:
    config: the description among the weights, its digest checked.

    Raises:
        ConfigError: no model of tables.
        IntegrityError: it is no description.
    """
    described = parse_model_config(config, where)
    encoder = described.encoder
    table = _require_table(_encoder_spec(encoder.spec, where), where)
    recipe = None
    if described.recipe in BUILT_IN:
        recipe = load_recipe(described.recipe, described.fields, data_shape(encoder.spec, encoder.fitted))
    return _table_model(version, table, encoder.fitted, graph=graph, recipe=recipe)


def _encoder_spec(value: Json, where: str) -> EncoderSpec:
    try:
        return ENCODER_SPEC.validate_python(value)
    except ValueError as error:
        raise IntegrityError("says no encoder.", where=where) from error


def _require_table(spec: EncoderSpec, where: str) -> TabularEncoderSpec:
    if isinstance(spec, TabularEncoderSpec):
        return spec
    raise ConfigError(
        f"its encoder is {spec.kind!r}, not 'tabular'.",
        where=where,
        advice="Use `load_text_model`." if isinstance(spec, BytePairSpec) else "",
    )


def _table_model(
    version: ModelVersion, spec: TabularEncoderSpec, statistics: Json, *, graph: nn.Module, recipe: Recipe | None
) -> TableModel:
    learnt = table_statistics(spec, statistics)
    return TableModel(
        version=version,
        # What is asked has no label. The model never learnt what a gap means in a column that had none.
        encoder=TabularEncoder(spec.model_copy(update={"label": None}), statistics, only_known_gaps=True),
        graph=graph,
        recipe=recipe,
        classes=classes_of(spec, statistics),
        fitted_types={
            **dict.fromkeys(spec.numeric, pa.float64()),
            **{each.column: fitted_type(each) for each in learnt.times},
            **{each.column: pa.array(each.values or [""]).type for each in learnt.categorical},
        },
    )


def load_text_model(workspace: Workspace, model_uri: str) -> TextModel:
    """A registered language model over byte-pair tokens, such as `models:/NAME@champion`.

    Raises:
        ConfigError: no such model, or none of text, or of a recipe of the user's own.
        IntegrityError: something it stands on is gone or altered.
    """
    name, version, registration, run, spec, fitted = _stands_on(workspace, model_uri)
    recipe = _built_in_recipe(workspace, run)
    if not isinstance(spec, BytePairSpec) or recipe is None:
        raise ConfigError(
            "it is no shipped recipe over byte-pair tokens.",
            where=model_uri,
            advice="Use `load_table_model`." if isinstance(spec, TabularEncoderSpec) else "",
        )
    tokenizer = fitted_file(workspace, fitted, TOKENIZER_FILE)
    known = token_bytes(tokenizer)
    return TextModel(
        encoder=BytePairEncoder(spec, tokenizer),
        graph=_graph(workspace, name, version, registration),
        recipe=recipe,
        column=spec.column,
        context_tokens=spec.sequence_tokens,
        vocabulary=(*known, *[b""] * (spec.vocab_size - len(known))),
        version=ModelVersion(name, version, registration.sha256),
    )


def _graph(workspace: Workspace, name: str, version: str, registration: Registration) -> nn.Module:
    with naming_the_copy(workspace, name, version, registration.link):
        return graph_model(workspace, registered_graph(registration))


class _StandsOn(NamedTuple):
    name: str
    version: str
    registration: Registration
    run: RunSpec
    spec: EncoderSpec
    fitted: FittedState


def _stands_on(workspace: Workspace, model_uri: str) -> _StandsOn:
    name, version, link = model_refs.resolve(workspace, model_uri)
    registration = workspace.load(link, Registration)
    run = workspace.load(registration.run, RunSpec)
    spec = _encoder_spec(dict(workspace.load(run.manifest, ShardManifest).spec).get("encoder"), run.manifest.short)
    return _StandsOn(name, version, registration, run, spec, workspace.load(run.fitted, FittedState))


def _built_in_recipe(workspace: Workspace, run: RunSpec) -> Recipe | None:
    if run.config["recipe"]["name"] not in BUILT_IN:
        return None
    return recipe_of(workspace, run, workspace.load(run.manifest, ShardManifest))

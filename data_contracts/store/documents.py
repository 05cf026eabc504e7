"""The documents that stages hand on: small, frozen, canonical JSON, named by their own SHA-256.

A document never holds wall time, a host name or an absolute path: equal inputs must give equal bytes. All of them in
one file, long as it is: whoever reads the chain from snapshot to registration should not have to turn pages.

Whoever makes a document fills it: a stage in `tasks/stages`, or `engine/validation.py`, `sources/snapshots.py`,
`training/data/shards/sharding.py` and `training/checkpoint/commit.py`. A field that is added has a default and
`exclude_if` it.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from headway.data_contracts.store.digests import Algorithm, canonical_json, sha256_bytes
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.strict_json import parse_json

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Blake3 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Xxh128 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Severity = Literal["critical", "warning", "info"]
Json = Any
"""A JSON value: a document stores a branch of configuration as it was, without knowing its model."""


class Frozen(BaseModel):
    """An immutable record: unknown keys and numbers that are not finite are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Link(Frozen):
    """The name of a document: its kind and the SHA-256 of its canonical bytes."""

    kind: str
    sha256: Sha256

    @property
    def short(self) -> str:
        return f"{self.kind} {self.sha256[:12]}"


class DigestedFile(Frozen):
    """A file's size, and the one digest that proves it."""

    size_bytes: int
    # Left out of the JSON where empty: such a field changes no digest of documents that lack it.
    sha256: Sha256 = Field(default="", exclude_if=operator.not_)
    blake3: Blake3 = Field(default="", exclude_if=operator.not_)
    """In place of SHA-256, of the files of a checkpoint."""

    @model_validator(mode="after")
    def _one_digest(self) -> Self:
        if bool(self.sha256) == bool(self.blake3):
            raise ValueError("either sha256 or blake3 proves a file")
        return self

    @property
    def algorithm(self) -> Algorithm:
        return "blake3" if self.blake3 else "sha256"

    @property
    def digest(self) -> str:
        return self.blake3 or self.sha256


class StoredFile(DigestedFile):
    """A file in the workspace, by relative POSIX path."""

    path: str


class Document(Frozen):
    """What a stage hands on, named by the digest of its bytes.

    A field that is added has a default and `exclude_if` it: documents that lie in workspaces keep their digests.
    """

    kind: ClassVar[str]
    format_version: int = 1

    def to_bytes(self) -> bytes:
        return canonical_json(self.model_dump(mode="json"))

    @property
    def sha256(self) -> str:
        return sha256_bytes(self.to_bytes())

    @property
    def link(self) -> Link:
        return Link(kind=self.kind, sha256=self.sha256)

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> Self:
        """Parse, strictly.

        Raises:
            IntegrityError: not strict JSON, not this kind of document, or a newer format.
        """
        try:
            value = parse_json(data)
            newest = cls.model_fields["format_version"].default
            # Before validation, which would name the field that is new instead of the reason.
            if isinstance(value, dict) and value.get("format_version", 0) > newest:
                raise IntegrityError(
                    f"format_version {value['format_version']} is newer than this Headway reads ({newest}).",
                    where=where,
                    advice="Upgrade Headway.",
                )
            return cls.model_validate(value)
        except (ValueError, TypeError, RecursionError, ValidationError) as error:
            raise IntegrityError(f"not a readable {cls.kind} document.", where=where) from error


class SourceFile(Frozen):
    """One source file, relative to the base URI, which stays outside: data may move without being new."""

    path: str
    size_bytes: int
    sha256: Sha256
    num_rows: int = 1
    """Rows the file yields: one of a text file. A row's name is its file's path and its number there, from 0."""
    num_unparsable: int = Field(default=0, exclude_if=operator.not_)
    """Of these, rows of a text table that cannot be read as their columns' types, null where they cannot."""


class Snapshot(Document):
    kind = "snapshot"
    format: str
    """How rows come out of files, such as `text-files`."""
    options: dict[str, Json] = Field(default_factory=dict)
    """What else decides which rows come out of the same bytes, such as a CSV file's delimiter."""
    columns: dict[str, str]
    """Column name to type (`types/column_types.py`) of the rows that the source yields, in no order."""
    num_rows: int
    """Rows of all files together."""
    files: tuple[SourceFile, ...]
    """Every file that the source names, by path: what two snapshots are told apart by."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class RowName(Frozen):
    """A row of the source, for who looks it up: its values are shown nowhere."""

    path: str
    row: int
    """Its number in that file, from 0."""


class ExpectationVerdict(Frozen):
    rule_id: str
    description: str
    severity: Severity
    passed: bool
    observed: str
    """Counts and bounds only: a receipt never echoes a value of the data."""
    broken_rows: tuple[RowName, ...] = Field(default=(), exclude_if=operator.not_)
    """The first that break it, by file and number, where a row can by itself; those quarantined are in their file."""
    columns: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)
    """Of a label leak: the inputs that tell the label."""


class Distribution(Frozen):
    """How a column's values fall into bins, beside the last accepted snapshot's in the same bins."""

    column: str
    of: str
    """`values`, or `lengths` of texts, binaries or lists."""
    edges: tuple[float, ...] = ()
    """Of numbers: upper bounds, inclusive, of all bins but the last."""
    categories: tuple[str, ...] = ()
    """Of categories that the contract names: one bin each, and one more for any other."""
    num_hashed: int = 0
    """Of categories without names: so many bins, chosen by a value's MD5."""
    num_requested: int
    """Bins that the contract asked for; equal values may leave fewer."""
    counts: tuple[int, ...]
    num_nulls: int
    num_nans: int
    baseline_counts: tuple[int, ...] | None = None
    baseline_num_nulls: int | None = None
    baseline_num_nans: int | None = None


class FreshnessObservation(Frozen):
    """The newest moment in a column, for the gate to compare with its clock."""

    rule_id: str
    description: str
    severity: Severity
    unix_s: float | None
    """None: there is none, or it could not be found out."""
    max_age_s: float
    max_ahead_s: float


class ContractReceipt(Document):
    kind = "receipt"
    contract: StoredFile
    """The contract's own text, kept in the workspace."""
    suite: StoredFile | None = Field(default=None, exclude_if=operator.not_)
    """The text of the suite that it names, which it promises as well; None: it names none."""
    contract_name: str
    """What the contract calls itself."""
    contract_version: str
    """The version that the contract gives itself."""
    snapshot: Link
    """The data that were validated."""
    passed: bool
    """Whether every critical rule holds; without that no shard is written and no rank trains."""
    num_rows: int
    """Rows that remain after quarantine."""
    num_quarantined: int
    """Rows left out because they break a rule whose rows are quarantined."""
    quarantine: StoredFile | None
    """A Parquet file of the rows left out: path (string), row (int64), rule_ids (list of string). None: no row is."""
    verdicts: tuple[ExpectationVerdict, ...]
    """One for each rule that was asked."""
    metrics: dict[str, float]
    """For people, by name: rows, bytes, sums of the columns whose sum is exact, and each drift measured."""
    baseline: Link | None = None
    """The receipt of the accepted snapshot that this one was compared with; None: nothing asks for one, or none is."""
    distributions: tuple[Distribution, ...] = ()
    """Of the columns that are compared with the last accepted snapshot."""
    freshness: tuple[FreshnessObservation, ...] = ()
    """The newest moment of each column whose age the contract bounds; the gate judges it, by its own clock."""

    def verdict(self, rule_id: str) -> ExpectationVerdict | None:
        """None: nobody judged it."""
        return next((each for each in self.verdicts if each.rule_id == rule_id), None)


class FittedState(Document):
    """What an encoder learnt from data: fitted once, versioned, refitted only by decision."""

    kind = "fitted"
    encoder: str
    """The encoder's `kind`."""
    spec: Json
    """The branch `shards.encoder` of the pipeline file that it was fitted under; another one is fitted anew."""
    snapshot: Link
    """The data that it was learnt from."""
    receipt: Link
    """The receipt of these data."""
    files: tuple[StoredFile, ...]
    """What was learnt and is too large for the document, such as a vocabulary."""
    libraries: dict[str, str]
    """Versions of the distributions that may change what is fitted."""
    statistics: Json = None
    """What was learnt and is small enough to lie here: means, categories, classes."""


class PayloadColumn(Frozen):
    """A FIXED_LEN_BYTE_ARRAY column: `dtype` values of `shape` a row."""

    name: str
    """The name that batches have it by."""
    dtype: str
    """A NumPy dtype, such as `float32`."""
    shape: tuple[int, ...]
    """Of one row's values."""


class ColumnChunk(Frozen):
    column: str
    offset_bytes: int
    """Where the row group's payload starts in the file; in a compressed shard, where its page starts."""
    crc32: int
    """Of the payload, uncompressed."""


class RowGroup(Frozen):
    num_rows: int
    chunks: tuple[ColumnChunk, ...]


class Shard(Frozen):
    file: StoredFile
    num_rows: int
    row_groups: tuple[RowGroup, ...]
    codec: str = "none"
    """`none`: hot, payloads lie bare at their offsets; `lz4` or `zstd`: cold, pages must be decoded."""
    label_counts: tuple[int, ...] = ()
    """Rows of each class, where there are classes to predict."""


class ShardGroup(Frozen):
    """The shards of one group and split: a pure function of the group's files, the spec and the fitted state."""

    group: int
    split: str
    num_rows: int
    num_samples: int
    """Rows of the source."""
    documents: tuple[str, ...]
    """Paths of the source files in packing order."""
    shards: tuple[Shard, ...]
    name: str = ""
    """For a person: the folder or file behind the group's number."""
    samples_by_document: tuple[int, ...] = ()
    """Rows of each source file that fell into this group and split; a row's `document` column counts them through."""
    keys: StoredFile | None = Field(default=None, exclude_if=lambda keys: keys is None)
    """Of held-out examples, where rows are split by key: 64 bits each, little-endian, equal for examples of one key."""

    @property
    def files(self) -> tuple[StoredFile, ...]:
        return (*(shard.file for shard in self.shards), *(() if self.keys is None else (self.keys,)))

    @property
    def size_bytes(self) -> int:
        return sum(shard.file.size_bytes for shard in self.shards)


class ShardManifest(Document):
    kind = "manifest"
    snapshot: Link
    """The data that the shards were made from."""
    receipt: Link
    """The passing receipt of these data; a rank refuses shards without it."""
    fitted: Link
    """The fitted state that encoded them."""
    spec: Json
    """What of the branch `shards` decides their bytes."""
    columns: tuple[PayloadColumn, ...]
    """The columns of each shard."""
    groups: tuple[ShardGroup, ...]
    """A group is made anew only if its own files or its key changed."""
    content_sha256: Sha256
    """Digest over payload bytes and columns alone: comparable across writer versions."""
    libraries: dict[str, str]
    """Versions of the distributions that may change what is encoded."""

    @property
    def files(self) -> tuple[StoredFile, ...]:
        return tuple(file for group in self.groups for file in group.files)

    def num_rows(self, split: str) -> int:
        return sum(group.num_rows for group in self.groups if group.split == split)


class RunSpec(Document):
    """Everything that decides the weights; its digest is the run's key."""

    kind = "run"
    pipeline: str
    """The pipeline's name."""
    config: Json
    """What decides bits of the branch `training` of the pipeline file, with every default written out."""
    manifest: Link
    """The shards that it trains on."""
    receipt: Link
    """The receipt of the data behind them."""
    fitted: Link
    """The fitted state that encoded them."""
    code: StoredFile
    """The archive of the code that the ranks run: Headway's and the recipe's."""
    environment: StoredFile
    """Versions of Python and of the distributions that its arithmetic and its reading stand on."""
    start: Link | None = None
    """The checkpoint whose weights it starts from; None: fresh ones."""


class TensorSlice(Frozen):
    """A piece of a tensor: where it lies in the global tensor, and in which file."""

    tensor: str
    file: str
    dtype: str
    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


class CheckpointFile(DigestedFile):
    """A file beside the checkpoint's manifest, by bare name.

    Its blocks have digests of their own, so that a part of a file can be verified without the rest. The digest of the
    whole is what the chain of proof goes by.
    """

    name: str
    block_bytes: int = Field(gt=0)
    """Length of every block but the last."""
    blocks: tuple[Xxh128, ...]
    """XXH3-128 of each block, in order."""


class ProofBatch(Frozen):
    """A small batch and the loss the model had on it when it was saved."""

    file: str
    loss_hex: str
    """`float.hex()` of the loss, so that equality is exact."""


class DeviceFingerprint(Frozen):
    """What must agree for bits to agree."""

    device: str
    machine: str
    cpu_capability: str
    torch: str
    num_threads: int
    mesh: str = Field(default="", exclude_if=operator.not_)
    """How ranks share the arithmetic, where bits depend on it; empty where they don't."""


class CheckpointManifest(Document):
    kind = "checkpoint"
    run: Link
    """The run that it belongs to; no other continues from it."""
    step: int
    """Optimizer steps done."""
    num_samples: int
    """Samples of the plan consumed so far: with the run's seed, the whole state of the sampler."""
    world_size: int
    """Ranks that wrote it; another number may read it."""
    parent: Sha256 | None
    """SHA-256 of the manifest of the run's checkpoint before this one; None: it is the first."""
    files: tuple[CheckpointFile, ...]
    """All files of the folder but the manifest and its seal."""
    layout: tuple[TensorSlice, ...]
    """Where each piece of each tensor lies."""
    scalars: dict[str, float | int | str]
    """State that is no tensor: of the optimizer, the step guards and the counters."""
    proof: ProofBatch
    """What verification computes anew before the checkpoint is used."""
    fingerprint: DeviceFingerprint
    """The device that computed the proof: only on its like must the loss be equal to the bit."""


class Interval(Frozen):
    """A figure with its bootstrap interval."""

    value: float
    low: float
    high: float


class HeldoutComparison(Frozen):
    """That champion and challenger were compared on the rows that neither was trained on, and not by folds."""

    reason: str
    """Why there are no figures of the champion by folds that are fair on all rows."""
    num_examples: int
    num_keys: int = Field(default=0, exclude_if=operator.not_)
    """See `EvaluationReport`."""
    value: float
    """The challenger's own figure on these rows."""
    slice_sizes: dict[str, int] = Field(default_factory=dict, exclude_if=operator.not_)
    slice_keys: dict[str, int] = Field(default_factory=dict, exclude_if=operator.not_)


class ChampionComparison(Frozen):
    """Challenger minus champion on the same examples, paired."""

    champion: Link
    metric: str
    champion_value: float
    difference: Interval
    slices: dict[str, Interval] = Field(default_factory=dict, exclude_if=operator.not_)
    """The same by slice; its intervals are widened so that all of them together hold at the report's confidence."""
    heldout: HeldoutComparison | None = Field(default=None, exclude_if=lambda value: value is None)
    """Where the report's figures are of folds and the champion has none like them; None: on the report's examples."""


class Incomparable(Frozen):
    """A champion that no figure compares with, and why."""

    champion: Link
    reason: str
    """What is in the way; names of files, columns and rows, never a value."""


class ClassTally(Frozen):
    """A class among the examples, and how well its probability tells it from the others."""

    name: str
    num_actual: int
    num_predicted: int
    num_correct: int
    roc_auc: Interval | None = Field(default=None, exclude_if=operator.not_)
    """Area under the ROC curve, one class against the rest; None: not among those that have curves."""
    average_precision: Interval | None = Field(default=None, exclude_if=operator.not_)


class Confusion(Frozen):
    """So many examples of one class were taken for another; both by their place in `ClassFigures.classes`."""

    actual: int
    predicted: int
    num_examples: int


class CalibrationBin(Frozen):
    """Examples whose probability lies between two bounds, and how many of them came true."""

    low: float
    high: float
    num_examples: int
    num_true: int
    mean_probability: float


class ClassFigures(Frozen):
    """What a model made of classes, beyond its measures."""

    classes: tuple[ClassTally, ...]
    """Those that occur or were predicted, in the order of their numbers; of very many the commonest."""
    num_classes_omitted: int = Field(default=0, exclude_if=operator.not_)
    confusions: tuple[Confusion, ...]
    """The commonest first."""
    num_confusions_omitted: int = Field(default=0, exclude_if=operator.not_)
    """Pairs of classes, not examples."""
    mean_roc_auc: float | None = Field(default=None, exclude_if=lambda value: value is None)
    """Over the classes that have one."""
    calibration: tuple[CalibrationBin, ...]
    calibration_of: str
    """Of two classes the rarer one, whose probability is meant; empty: that of the class each example was taken for."""
    expected_calibration_error: Interval
    num_curve_examples: int
    """Of which curves and their areas are made: all, or evenly spread ones."""


class TargetBand(Frozen):
    """Examples whose number to predict lies between two values, both among them."""

    low: float
    high: float
    num_examples: int
    mean_error: Interval
    """Predicted minus true."""
    mean_absolute_error: Interval
    rmse: float


class NumberFigures(Frozen):
    """What a model made of numbers, beyond its measures; all in the label's own unit."""

    mean_error: Interval
    mean_absolute_error: Interval
    error_quantiles: dict[str, float]
    """Of predicted minus true, by the quantile's name, such as `p05`."""
    bands: tuple[TargetBand, ...]
    """By quantile of the number to predict, from the smallest on."""


class Importance(Frozen):
    """What an example costs more once this input is another example's: in the unit of the loss that decides."""

    name: str
    increase: Interval


class WorstExample(Frozen):
    """One of those that the model is worst at."""

    name: str
    value: float
    """Its own figure, in the deciding measure."""


class Continuation(Frozen):
    """What a model writes after the beginning of a held-out row."""

    row: int
    prompt: str
    text: str


class EvaluationReport(Document):
    kind = "evaluation"
    format_version: int = 2
    """A newer one than this Headway writes is refused."""
    checkpoint: Link
    """The model that was judged."""
    manifest: Link
    """The shards that it was trained on."""
    split: str
    """The split whose examples it was judged on."""
    examples_sha256: Sha256
    """Names and bytes of these examples: reports of equal digests were judged on the same ones."""
    num_examples: int
    """Examples behind the figures."""
    num_keys: int = Field(default=0, exclude_if=operator.not_)
    """How many keys they are of, where rows are split by one: intervals are drawn over these. 0: over examples."""
    num_ranking_examples: int = Field(default=0, exclude_if=operator.not_)
    """Further examples of the split, which rank trials, or ever did or validated a run, and judge nothing."""
    heldout_parts: Link | None = Field(default=None, exclude_if=operator.not_)
    """Which are which; empty: all judge. Whoever scores the same model again can leave the same ones out."""
    cross_validation: Link | None = Field(default=None, exclude_if=operator.not_)
    """The fold models whose figures these are, each on rows that it never saw; empty: they are the model's own, on
    rows that were held out from it."""
    num_folds: int = Field(default=0, exclude_if=operator.not_)
    """How many fold models."""
    earlier_splits: str = Field(default="", exclude_if=operator.not_)
    """Filled by no stage today: of an earlier version, which examples may have chosen models under another split."""
    metric: str
    """The measure that decides about promotion."""
    greater_is_better: bool
    """Whether a greater figure of it is the better one."""
    metrics: dict[str, Interval]
    """Every measure over all examples, by name; the deciding one is among them."""
    slices: dict[str, Interval]
    """The deciding measure by slice."""
    slice_sizes: dict[str, int] = Field(default_factory=dict)
    """Examples in each slice."""
    slice_keys: dict[str, int] = Field(default_factory=dict, exclude_if=operator.not_)
    """How many keys these are of, where intervals are drawn over keys."""
    baselines: dict[str, float]
    """Figures a person compares with, same examples and unit, such as `xz -9` and a bigram model."""
    gate_baseline: str
    """Which of the baselines a first model has to beat."""
    baseline_difference: Interval
    """This model minus the gate's baseline, paired on the same examples."""
    comparison: ChampionComparison | None
    """The same examples judged by the champion; None: there is none, or see `incomparable`."""
    incomparable: Incomparable | None = Field(default=None, exclude_if=operator.not_)
    """In place of a comparison, where there is a champion and none can be made."""
    libraries: dict[str, str] = Field(default_factory=dict)
    """Filled by no stage today: the versions are part of the key that the report is found by."""
    inexact: str = Field(default="", exclude_if=operator.not_)
    """Why the weights are not to the bit those of an undisturbed run; empty: they are."""
    slice_metrics: dict[str, dict[str, Interval]] = Field(default_factory=dict, exclude_if=operator.not_)
    """The measures beside the deciding one, by name and slice."""
    baseline_intervals: dict[str, Interval] = Field(default_factory=dict, exclude_if=operator.not_)
    """Of the baselines that were scored example by example."""
    baseline_differences: dict[str, Interval] = Field(default_factory=dict, exclude_if=operator.not_)
    """This model minus each of these, paired on the same examples."""
    class_figures: ClassFigures | None = Field(default=None, exclude_if=operator.not_)
    """Only where classes are predicted."""
    number_figures: NumberFigures | None = Field(default=None, exclude_if=operator.not_)
    """Only where numbers are predicted."""
    importances: tuple[Importance, ...] = Field(default=(), exclude_if=operator.not_)
    """The greatest first."""
    num_importance_examples: int = Field(default=0, exclude_if=operator.not_)
    """Examples behind `importances`."""
    worst: tuple[WorstExample, ...] = Field(default=(), exclude_if=operator.not_)
    """The worst first."""
    continuations: tuple[Continuation, ...] = Field(default=(), exclude_if=operator.not_)
    """Of language models: what they write after a few held-out beginnings."""
    outputs: StoredFile | None = Field(default=None, exclude_if=operator.not_)
    """A safetensors file of what the model said of each example, in their order: `training/evaluation/outputs.py`."""
    no_outputs: str = Field(default="", exclude_if=operator.not_)
    """Why there is none, of classes and numbers."""

    @property
    def compared_with(self) -> Link | None:
        """The champion of that moment; None: there was none."""
        against = self.comparison or self.incomparable
        return None if against is None else against.champion


class Registration(Document):
    """A registered model version and everything it stands on."""

    kind = "registration"
    model: str
    """The registered model's name."""
    run: Link
    """The run that trained it."""
    checkpoint: Link
    """The checkpoint whose weights it has."""
    evaluation: Link
    """The report that it was first registered by; later ones are in its decisions."""
    artifacts: tuple[StoredFile, ...]
    """The registered model's own files, as handed to the registry."""

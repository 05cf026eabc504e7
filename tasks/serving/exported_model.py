"""What a registered model says of itself where no workspace is: `headway.json` in the folder that `export` writes.

It holds the registration, whose digest is the model's, and with that the digest of every file beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from headway.data_contracts.rules.contract import parse_contract
from headway.data_contracts.store.digests import canonical_json, sha256_bytes
from headway.data_contracts.store.documents import (
    ContractReceipt,
    Frozen,
    Json,
    Link,
    Registration,
    RunSpec,
    ShardManifest,
    Snapshot,
)
from headway.data_contracts.store.errors import ConfigError, HeadwayError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.regular_files import read_regular
from headway.data_contracts.store.strict_json import parse_json
from headway.data_contracts.tables.source_spec import CsvOptions

FILE = "headway.json"
MAX_JSON_BYTES = 1 << 30
"""Of a description: most of it are the categories that an encoder knows."""
ADVICE = "Export the model again: `headway export models:/NAME/VERSION --out FOLDER`."


class ExportedModel(Frozen):
    """Which version it is, and how the files that it was trained on are read."""

    format: Literal["headway-export"] = "headway-export"
    format_version: Literal[1] = 1
    version: str
    """The number in its registry."""
    registration: Registration
    csv: CsvOptions = Field(default_factory=CsvOptions)
    """As the pipeline read its CSV files; else what is usual."""
    key: tuple[str, ...] = ()
    """The columns that name a row, by the contract."""

    def to_bytes(self) -> bytes:
        return canonical_json(self.model_dump(mode="json"))


class EncoderConfig(Frozen):
    """What encodes the rows, as far as the folder says it."""

    model_config = ConfigDict(extra="ignore")
    spec: Json
    fitted: Json


class ModelConfig(Frozen):
    """What builds the model, among the weights; fields that a reader of rows does not need are passed over."""

    model_config = ConfigDict(extra="ignore")
    recipe: str
    fields: dict[str, Json]
    encoder: EncoderConfig


def parse_model_config(data: bytes, where: str) -> ModelConfig:
    """Raises `IntegrityError`: it is none, whatever its digest."""
    try:
        value = parse_json(data)
        return ModelConfig.model_validate(value["model"])
    except (ValueError, TypeError, KeyError) as error:
        raise IntegrityError("is no description of a model.", where=where, advice=ADVICE) from error


def exported_model(workspace: Workspace, version: str, link: Link) -> ExportedModel:
    """Raises `IntegrityError`: a document that it stands on is gone or altered."""
    registration = workspace.load(link, Registration)
    run = workspace.load(registration.run, RunSpec)
    snapshot = workspace.load(workspace.load(run.manifest, ShardManifest).snapshot, Snapshot)
    known = {name: value for name, value in snapshot.options.items() if name in CsvOptions.model_fields}
    csv = CsvOptions.model_validate(known) if snapshot.format == "csv" else CsvOptions()
    return ExportedModel(version=version, registration=registration, csv=csv, key=_key(workspace, run))


def _key(workspace: Workspace, run: RunSpec) -> tuple[str, ...]:
    """The contract's first key, or else its first column without equal values; none where nobody can read it now."""
    file = workspace.load(run.receipt, ContractReceipt).contract
    try:
        contract = parse_contract(workspace.read_stored(file).decode(), where=file.path)
    except (HeadwayError, ValueError):
        # A convenience: rows have numbers, too, and the model stands on none of it.
        return ()
    if contract.keys:
        return contract.keys[0].columns
    return tuple(name for name, column in contract.columns.items() if column.unique)[:1]


def is_exported(place: str) -> bool:
    """Whether this is a folder, and no model's URI."""
    return not place.startswith("models:/") and Path(place).is_dir()


def read_exported(folder: Path) -> ExportedModel:
    """Raises `ConfigError`: no folder of an exported model; `IntegrityError`: its description is damaged."""
    try:
        data = read_regular(folder / FILE, MAX_JSON_BYTES)
    except OSError as error:
        raise ConfigError(f"holds no {FILE}.", where=str(folder), advice=ADVICE) from error
    try:
        return ExportedModel.model_validate(parse_json(data))
    except ValueError as error:
        raise IntegrityError("is no description of a model.", where=str(folder / FILE), advice=ADVICE) from error


def exported_file(folder: Path, registration: Registration, ending: str) -> bytes:
    """A file of the folder, which is the registered one.

    Args:
        ending: of its path as it was registered, such as `/weights/config.json`.

    Raises:
        IntegrityError: gone, not the registered bytes, or not registered.
    """
    name = ending.rpartition("/")[2]
    file = next((each for each in registration.artifacts if each.path.endswith(ending)), None)
    if file is None:
        raise IntegrityError(f"no {name} is registered with it.", where=registration.link.short)
    where = str(folder / name)
    try:
        # As long as it was registered: a hole makes a file of any length.
        data = read_regular(folder / name, file.size_bytes)
    except OSError as error:
        raise IntegrityError("is gone, or cannot be read.", where=where, advice=ADVICE) from error
    if sha256_bytes(data) != file.sha256:
        raise IntegrityError("its bytes are not the registered ones.", where=where, advice=ADVICE)
    return data

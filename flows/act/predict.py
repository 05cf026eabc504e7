"""`headway predict`: a registered or exported model's answers for a file of rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.report_text import count
from headway.flows.console.output import print_line, print_to_terminal
from headway.flows.console.progress_line import ProgressLine
from headway.tasks.serving.predictions_file import require_target
from headway.tasks.serving.source_file import local_file

if TYPE_CHECKING:
    from headway.tasks.serving.exported_model import ExportedModel
    from headway.tasks.serving.file_prediction import Predicted
    from headway.tasks.serving.prediction import TableModel


def predict(
    model: str,
    workspace_uri: str,
    file: str,
    out: Path,
    *,
    key: tuple[str, ...],
    on_missing: Literal["refuse", "null"],
    overwrite: bool,
) -> Predicted:
    """Load a model and predict a file with it.

    Args:
        model: a model's URI, or a folder that `headway export` wrote.
        key: columns that name a row; none: the contract's key where the file has it, else the row's number.

    Raises:
        HeadwayError: as of `predict_file`, and what loading a model raises.
    """
    # A user's mistake should cost a moment, not the loading of a model.
    require_target(out, overwrite=overwrite, source=local_file(file, base=Path.cwd()))
    print_to_terminal(f"loading {model}")
    from headway.tasks.serving.file_prediction import predict_file

    loaded, found = _loaded(model, workspace_uri)
    print_to_terminal(f"reading {file}")
    with ProgressLine(lambda done, total: f"predicted {done:,} of {count(total, 'row')}") as progress:
        return predict_file(
            loaded,
            file,
            out,
            base=Path.cwd(),
            csv=found.csv,
            key=tuple(dict.fromkeys(key)) or None,
            usual_key=found.key,
            on_missing=on_missing,
            overwrite=overwrite,
            on_rows=progress,
        )


def _loaded(model: str, workspace_uri: str) -> tuple[TableModel, ExportedModel]:
    from headway.tasks.serving.exported_model import exported_model, is_exported, read_exported
    from headway.tasks.serving.prediction import load_exported_table_model, load_table_model

    if is_exported(model):
        return load_exported_table_model(Path(model)), read_exported(Path(model))
    workspace = Workspace.existing(workspace_uri)
    loaded = load_table_model(workspace, model)
    registration = Link(kind="registration", sha256=loaded.version.sha256)
    return loaded, exported_model(workspace, loaded.version.version, registration)


def print_predicted(made: Predicted) -> None:
    print_line(f"{made.out}: {count(made.num_rows, 'row')} predicted by {made.model}, version {made.version}")
    if made.num_null:
        print_line(
            f"{count(made.num_null, 'row')} without a prediction: a number that the model needs is missing there"
        )

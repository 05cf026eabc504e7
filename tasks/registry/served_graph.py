"""What plain MLflow runs to serve a registered model. A copy goes with every model; it imports nothing of Headway but
the check of the graph, of which a copy goes along too; and the encoder of a table, where Headway is installed.

`mlflow.pytorch` gives the same graph to torch without that check, and only where unpickling is allowed: its own check
demands an example input that is a pickle. MLflow's way without one is source such as this.
"""

from __future__ import annotations

import hashlib
import importlib
import io
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.pyfunc import PythonModel

NO_ENCODER = (
    "rows as the source has them are encoded by Headway, which is not installed here. Install it, or give "
    "`unwrap_python_model().predict` an array of encoded rows."
)
MAX_CHARACTERS = 300


class ServedGraph(PythonModel):  # type: ignore[misc]
    """A `torch.export` graph: an array in, an array out. Of a table, rows in and predictions out, where Headway is."""

    def load_context(self, context: Any) -> None:
        """Raises `ValueError`: the graph is not the registered one, or could run code when it is loaded."""
        import torch

        # Of the model's folder `code`, which is not yet there when MLflow writes the folder and reads this source.
        from graph_check.check import check_graph  # type: ignore[import-not-found]
        from graph_check.run_graph import GraphModel, Unsupported  # type: ignore[import-not-found]

        data = Path(context.artifacts["graph"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != context.model_config["graph_sha256"]:
            raise ValueError("the graph is not the one that was registered: its SHA-256 is another.")
        check_graph(data)
        try:
            self._graph = GraphModel(data)
        except Unsupported:
            self._graph = torch.export.load(io.BytesIO(data)).module()
        self._config, self._table = b"", None
        if wanted := context.model_config.get("config_sha256"):
            self._where = Path(context.artifacts["graph"]).parents[1] / "weights" / "config.json"
            self._config = self._where.read_bytes()
            if hashlib.sha256(self._config).hexdigest() != wanted:
                raise ValueError("the description is not the one that was registered: its SHA-256 is another.")

    # MLflow takes other hints for what it should check rows against.
    def predict(self, model_input: np.ndarray, params: dict[str, Any] | None = None) -> Any:
        """Args:
        model_input: encoded rows; or a pandas frame of rows as the source has them.
        """
        try:
            return self._answer(model_input)
        except Exception as error:
            # Else MLflow's server sends the whole stack, with this machine's paths, to whoever asked. An error of
            # Headway's says what happened, and what to do, apart from where.
            message = getattr(error, "what", "") or str(error) or type(error).__name__
            why = " ".join([message.splitlines()[0][:MAX_CHARACTERS], self._advice_for_clients(error)]).strip()
            if isinstance(error, ImportError):
                raise MlflowException(why) from error
            raise MlflowException.invalid_parameter_value(f"the graph takes no such input: {why}") from error

    def _advice_for_clients(self, error: Exception) -> str:
        """Who asks a server calls nothing of Python's."""
        advice: str = getattr(error, "advice", "")
        if not advice or not self._config:
            return advice
        serving = importlib.import_module("headway.tasks.serving.prediction")
        # The Headway that is installed there may be another than the one that this copy is of.
        return str(getattr(serving, "FILL_IN", "")) if advice == getattr(serving, "MISSING", None) else advice

    def _answer(self, rows: Any) -> Any:
        import torch

        if self._config and not isinstance(rows, np.ndarray):
            return self._table_model().predict(rows).to_pandas()
        with torch.inference_mode():
            made: np.ndarray = self._graph(torch.as_tensor(rows)).numpy()
        return made

    def _table_model(self) -> Any:
        """Raises `ImportError`: Headway is not installed."""
        if self._table is None:
            try:
                # Of whoever serves the model: the copy of this file imports nothing of Headway for a graph alone.
                serving = importlib.import_module("headway.tasks.serving.prediction")
            except ImportError as error:
                raise ImportError(NO_ENCODER) from error
            version = serving.ModelVersion("served by MLflow", "", hashlib.sha256(self._config).hexdigest())
            self._table = serving.described_table_model(self._config, str(self._where), self._graph, version)
        return self._table


mlflow.models.set_model(ServedGraph())

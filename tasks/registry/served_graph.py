"""What plain MLflow runs to serve a registered model. A copy goes with every model; it imports nothing of Headway but
the check of the graph, of which a copy goes along too.

`mlflow.pytorch` gives the same graph to torch without that check, and only where unpickling is allowed: its own check
demands an example input that is a pickle. MLflow's way without one is source such as this.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.pyfunc import PythonModel

MAX_CHARACTERS = 300


class ServedGraph(PythonModel):  # type: ignore[misc]
    """A `torch.export` graph: an array in, an array out."""

    def load_context(self, context: Any) -> None:
        """Raises `ValueError`: the graph is not the registered one, or could run code when it is loaded."""
        import torch

        # Of the model's folder `code`, which is not yet there when MLflow writes the folder and reads this source.
        from graph_check.check import check_graph  # type: ignore[import-not-found]

        data = Path(context.artifacts["graph"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != context.model_config["graph_sha256"]:
            raise ValueError("the graph is not the one that was registered: its SHA-256 is another.")
        check_graph(data)
        self._graph = torch.export.load(io.BytesIO(data)).module()

    def predict(self, model_input: np.ndarray, params: dict[str, Any] | None = None) -> np.ndarray:
        import torch

        try:
            with torch.inference_mode():
                made: np.ndarray = self._graph(torch.as_tensor(model_input)).numpy()
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            # Of any other error MLflow's server sends the whole stack, with this machine's paths, to whoever asked.
            why = (str(error).splitlines() or [type(error).__name__])[0][:MAX_CHARACTERS]
            raise MlflowException.invalid_parameter_value(f"the graph takes no such input: {why}") from error
        return made


mlflow.models.set_model(ServedGraph())

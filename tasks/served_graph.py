"""What plain MLflow runs to serve a registered model. A copy goes with every model; it imports nothing of Headway.

`mlflow.pytorch` loads the same graph where unpickling is allowed, and unpickles nothing. Where it is switched off, its
check of the archive demands an example input that is a pickle; MLflow's own way without one is source such as this.
"""

from __future__ import annotations

from typing import Any

import mlflow
import numpy as np
from mlflow.pyfunc import PythonModel


class ServedGraph(PythonModel):  # type: ignore[misc]
    """A `torch.export` graph: an array in, an array out."""

    def load_context(self, context: Any) -> None:
        import torch

        self._graph = torch.export.load(context.artifacts["graph"]).module()

    def predict(self, model_input: np.ndarray, params: dict[str, Any] | None = None) -> np.ndarray:
        import torch

        with torch.inference_mode():
            made: np.ndarray = self._graph(torch.as_tensor(model_input)).numpy()
        return made


mlflow.models.set_model(ServedGraph())

"""An exported model is loaded, and computes the same, where there is no Headway."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from headway.data_contracts.store.errors import IntegrityError
from headway.training.checkpoint.layout import directory_name
from headway.training.checkpoint.pieces import Piece
from headway.training.checkpoint.read import read_checkpoint
from headway.training.checkpoint.universal import PREFIX, export_model
from tests.training.checkpoint.conftest import save_checkpoint

ELSEWHERE = """
import json, sys
sys.modules["headway"] = None
import torch
from safetensors.torch import load_file
config = json.load(open(sys.argv[1] + "/config.json"))
fields = config["model"]["fields"]
model = torch.nn.Sequential(torch.nn.Linear(fields["in"], fields["hidden"]), torch.nn.Linear(fields["hidden"], 1))
model.load_state_dict(load_file(f"{sys.argv[1]}/{config['file']['name']}"))
try:
    import headway.training.checkpoint
except ImportError:
    print(json.dumps(model(torch.arange(6.0)).tolist()))
"""
FIELDS = {"name": "my_package:Net", "fields": {"in": 6, "hidden": 5}}


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 1))


@pytest.fixture
def checkpoint(tmp_path, in_gang, content, model):
    """Kept by three ranks that cut the first weight by columns and hold the rest together."""
    whole = {f"model.{name}": value.detach() for name, value in model.state_dict().items()}

    def live(process_group):
        columns = slice(2 * process_group.rank, 2 * process_group.rank + 2)
        cut = Piece(local=whole["model.0.weight"][:, columns], global_shape=(5, 6), offsets=(0, 2 * process_group.rank))
        state = {**whole, "model.0.weight": cut, "optimizer.mean.0.weight": torch.randn(500)}
        return save_checkpoint(tmp_path, content(7, state), process_group)

    in_gang(3, live)
    return tmp_path / directory_name(7)


@pytest.mark.process
def test_a_process_that_has_no_headway_loads_it_and_computes_the_same(tmp_path, checkpoint, model):
    out = tmp_path / "exported"
    export_model(read_checkpoint(checkpoint, prefix=PREFIX), out, FIELDS)

    shown = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(out)], capture_output=True, text=True, check=True, cwd=out
    )

    assert json.loads(shown.stdout) == model(torch.arange(6.0)).tolist()
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
    config = json.loads((out / "config.json").read_bytes())
    assert config["file"]["sha256"] == hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    assert config["tensors"]["0.weight"] == {"dtype": "float32", "shape": [5, 6]}
    assert (config["step"], config["model"]) == (7, FIELDS)


def test_the_same_checkpoint_gives_the_same_bytes(tmp_path, checkpoint):
    for out in (tmp_path / "a", tmp_path / "b"):
        export_model(read_checkpoint(checkpoint, prefix=PREFIX), out, FIELDS)
    assert [(tmp_path / "a" / name).read_bytes() for name in ("config.json", "model.safetensors")] == [
        (tmp_path / "b" / name).read_bytes() for name in ("config.json", "model.safetensors")
    ]


def test_a_damaged_checkpoint_is_not_exported(tmp_path, checkpoint):
    for path in checkpoint.glob("tensors-*"):
        path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(IntegrityError):
        export_model(read_checkpoint(checkpoint, prefix=PREFIX), tmp_path / "out", FIELDS)
    assert not (tmp_path / "out").exists()

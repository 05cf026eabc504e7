"""A registered model holds no pickle, and plain MLflow serves it in a fresh process with unpickling switched off."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import shutil
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from headway.data_contracts.store import refs
from headway.data_contracts.store.digests import sha256_file
from headway.data_contracts.store.documents import Registration
from headway.data_contracts.store.errors import DataError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.flows.act.export import export_model
from headway.tasks.registry.model_export import save_model
from headway.tasks.registry.model_facts import latency_of, subject_of
from headway.tasks.registry.promotion_spec import PromotionSpec
from headway.training.config.recipe_specs import LanguageModelSpec
from headway.training.config.shapes import TokenShape
from headway.training.programs.evaluation import graph_model
from headway.training.programs.export import OUTPUT_EXAMPLE, WEIGHTS, write_graph
from headway.training.recipes.language_model import LanguageModel
from tests.tasks.conftest import Register
from tests.training.graph_check.altered_graphs import ON_LOADING, altered

LINEAGE = {"run": "r" * 64, "checkpoint": "c" * 64}
SERVE = """
import sys, mlflow, numpy
model = getattr(mlflow, sys.argv[1]).load_model(sys.argv[2])
tokens = numpy.arange(24).reshape(3, 8)
if sys.argv[1] == "pytorch":
    import torch
    made = model(torch.as_tensor(tokens)).detach().numpy()
else:
    made = model.predict(tokens)
numpy.save(sys.argv[3], made, allow_pickle=False)
assert "headway" not in sys.modules
"""


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(7)
    spec = LanguageModelSpec(width=16, depth=2, heads=2, hidden=24)
    return LanguageModel(spec, TokenShape(vocab_size=40, context_tokens=16)).build().eval()


@pytest.fixture(scope="module")
def exported(model: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    write_graph(model, torch.arange(16).reshape(2, 8), folder)
    (folder / WEIGHTS).mkdir()
    save_file(dict(model.named_parameters()), folder / WEIGHTS / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def saved(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("saved") / "model"
    import mlflow.pyfunc  # noqa: F401  (it warns of its own classes)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a person would see them on the terminal
        save_model(exported, LINEAGE, target)
    return target


def members(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """A file and, when it is an archive, everything in it, however deep."""
    yield name, data
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.namelist():
                yield from members(f"{name}:{member}", archive.read(member))


def is_pickle(data: bytes) -> bool:
    """Whether an unpickler would run through these bytes to a STOP; every pickle since 2003 begins with PROTO."""
    try:
        return data[:1] == b"\x80" and any(opcode.name == "STOP" for opcode, _, _ in pickletools.genops(data))
    except Exception:
        return False


def pickles_in(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [name for path in files for name, data in members(path.name, path.read_bytes()) if is_pickle(data)]


def serve(flavor: str, model: Path, out: Path, *, may_unpickle: bool) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SERVE, flavor, str(model), str(out)],
        cwd=out.parent,
        env={
            **os.environ,
            "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": str(may_unpickle).lower(),
            "MLFLOW_DISABLE_TELEMETRY": "true",
        },
        capture_output=True,
        text=True,
    )


def test_the_scan_sees_a_pickle_wherever_it_lies(tmp_path: Path) -> None:
    torch.save(torch.arange(3), tmp_path / "innocent")
    assert pickles_in(tmp_path) == ["innocent:innocent/data.pkl"]
    assert all(is_pickle(pickle.dumps({"a": 1}, protocol)) for protocol in range(2, 6))


@pytest.mark.process  # for what it takes of the processor
def test_no_file_and_no_member_of_an_archive_is_a_pickle(saved: Path) -> None:
    assert (saved / "artifacts" / "model.pt2").is_file()
    assert pickles_in(saved) == []


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize(
    ("flavor", "may_unpickle"), [("pyfunc", False), pytest.param("pytorch", True, marks=pytest.mark.long)]
)
def test_plain_mlflow_serves_the_same_logits_in_a_fresh_process_and_leaves_the_models_folder_as_it_was(
    model: torch.nn.Module, saved: Path, tmp_path: Path, flavor: str, may_unpickle: bool
) -> None:
    """What Python compiles there would be run in place of the proved source ever after."""
    before = {path: path.is_file() and path.read_bytes() for path in saved.rglob("*")}
    done = serve(flavor, saved, tmp_path / "logits.npy", may_unpickle=may_unpickle)
    assert done.returncode == 0, done.stderr
    with torch.inference_mode():
        expected = model(torch.arange(24).reshape(3, 8)).numpy()
    np.testing.assert_array_equal(np.load(tmp_path / "logits.npy"), expected)
    assert before == {path: path.is_file() and path.read_bytes() for path in saved.rglob("*")}


@pytest.mark.long
@pytest.mark.process
def test_who_asks_with_what_the_graph_does_not_take_gets_one_line_and_no_stack(saved: Path) -> None:
    import mlflow.pyfunc
    from mlflow.exceptions import MlflowException

    served = mlflow.pyfunc.load_model(str(saved))
    for given in (np.full((1, 8), 1 << 20), np.full((1, 8), -7)):
        with pytest.raises(MlflowException, match="the graph takes no such input: ") as told:
            served.predict(given.astype(np.int64))
        assert told.value.get_http_status_code() == 400 and told.value.message.count("\n") == 0
        assert "stack_trace" not in told.value.serialize_as_json()


@pytest.mark.process
def test_who_asks_mlflow_with_rows_that_are_refused_is_told_what_to_do_and_not_where_the_model_lies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mlflow.exceptions import MlflowException

    from headway.tasks.registry.served_graph import ServedGraph
    from headway.tasks.serving import prediction

    missing = prediction.MISSING

    def predict(rows: object) -> object:
        raise DataError("column 'age' is null in row 0.", where="/home/me/model", advice=missing)

    served = ServedGraph()
    served._config, served._table = b"{}", SimpleNamespace(predict=predict)
    with pytest.raises(MlflowException) as told:
        served.predict([{"age": None}])
    said = "the graph takes no such input: column 'age' is null in row 0. Fill it in, or leave such rows out."
    assert told.value.message == said, "no call of Python's, which a client cannot make"
    for name in ("FILL_IN", "MISSING"):
        monkeypatch.delattr(prediction, name)
        with pytest.raises(MlflowException, match="column 'age' is null in row 0"):  # also beside another Headway
            served.predict([{"age": None}])


@pytest.mark.parametrize("attack", ["expression", "example_inputs"])
def test_mlflow_serves_no_altered_graph_and_none_that_could_run_code(saved: Path, tmp_path: Path, attack: str) -> None:
    import mlflow.pyfunc

    folder, marker = shutil.copytree(saved, tmp_path / "model"), tmp_path / "marker"
    graph = altered(saved / "artifacts" / "model.pt2", ON_LOADING[attack], marker, folder / "artifacts" / "model.pt2")
    with pytest.raises(ValueError, match="not the one that was registered"):
        mlflow.pyfunc.load_model(str(folder))
    description = (folder / "MLmodel").read_text()
    registered, now = (sha256_file(path) for path in (saved / "artifacts" / "model.pt2", graph))
    assert registered in description
    (folder / "MLmodel").write_text(description.replace(registered, now))
    # Not `UnsafeGraph` itself: it is the class of the copy that goes with the model.
    with pytest.raises(ValueError, match=r"could run code|it has|an expression|unpickles"):
        mlflow.pyfunc.load_model(str(folder))
    assert not marker.exists()


@pytest.mark.parametrize("attack", ["expression", "example_inputs"])
def test_no_way_of_headways_own_loads_a_graph_that_could_run_code(
    workspace: Workspace, register: Register, saved: Path, tmp_path: Path, attack: str
) -> None:
    marker = tmp_path / "marker"
    bad = altered(saved / "artifacts" / "model.pt2", ON_LOADING[attack], marker, tmp_path / "bad.pt2")
    made = workspace.load(register(1)[0], Registration)
    graph = workspace.publish_file(bad, made.artifacts[1].path)
    weights = workspace.publish(f"{Path(made.artifacts[0].path).parent}/weights/model.safetensors", b"weights")
    files = (made.artifacts[0], graph, made.artifacts[2], weights)
    registration = made.model_copy(update={"artifacts": files})
    link = workspace.publish_document(registration)
    refs.move(workspace, "models/tiny/versions", link, expected=None, reason="", detail={"version": "1"})
    theirs = tmp_path / "shared" / "theirs"
    theirs.mkdir(parents=True)
    (theirs.parent / ".out.partial").symlink_to(theirs)
    for load in (
        lambda: graph_model(workspace, graph),
        lambda: latency_of(workspace, registration),
        lambda: export_model("models:/tiny/1", workspace.uri, theirs.parent / "out"),
    ):
        with pytest.raises(IntegrityError, match="the graph is refused") as refused:
            load()
        assert refused.value.where == graph.path
    assert not marker.exists()
    assert {path.name for path in theirs.parent.iterdir()} == {"theirs", ".out.partial"}, "nothing stays"
    assert not any(theirs.iterdir()), "nothing is written through a link that another user could put there"


@pytest.mark.parametrize("name", ["MLmodel", "input_example.json"])
@pytest.mark.parametrize("change", [lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: data + b"\n"])
def test_no_fact_is_taken_from_a_registered_file_whose_bytes_have_changed(
    workspace: Workspace, register: Register, name: str, change: Callable[[bytes], bytes]
) -> None:
    link, evaluation = register(1)
    registration = workspace.load(link, Registration)
    (path,) = (file.path for file in registration.artifacts if file.path.endswith(f"/{name}"))
    workspace.publish(path, change(workspace.read(path)))
    for ask in (
        lambda: latency_of(workspace, registration),
        lambda: subject_of(workspace, PromotionSpec(), link, evaluation, None),
    ):
        with pytest.raises(IntegrityError) as refused:
            ask()
        assert refused.value.where == path


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_folder_is_a_function_of_graph_and_lineage(exported: Path, saved: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree(exported, elsewhere, dirs_exist_ok=True)
    save_model(elsewhere, LINEAGE, tmp_path / "again")
    files = content(saved)
    assert files == content(tmp_path / "again")
    assert str(exported).encode() not in b"".join(files.values())


@pytest.mark.process  # for what it takes of the processor
def test_the_same_model_exports_to_the_same_bytes(model: torch.nn.Module, exported: Path, tmp_path: Path) -> None:
    write_graph(model, torch.arange(16).reshape(2, 8), tmp_path)
    for path in exported.glob("*.*"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_description_says_what_goes_in_and_what_comes_out(saved: Path, exported: Path) -> None:
    signature = yaml.safe_load((saved / "MLmodel").read_text())["signature"]
    assert '"dtype": "int64", "shape": [-1, -1]' in signature["inputs"]
    assert '"dtype": "float32", "shape": [-1, -1, -1]' in " ".join(signature["outputs"].split())
    assert np.load(exported / OUTPUT_EXAMPLE).shape == (2, 8, 40)

"""Most of a checkpoint is copied beside the next step, and is the moment of the save all the same."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch

from headway.data_contracts.store.errors import IntegrityError
from headway.training.checkpoint import file_image, save
from headway.training.checkpoint.file_image import FileImage, make_header
from headway.training.checkpoint.layout import committed_steps, directory_name
from headway.training.checkpoint.read import read_checkpoint
from headway.training.checkpoint.save import Checkpointer
from headway.training.checkpoint.staging import Staging
from headway.training.config.optimizer import OptimizerSpec
from headway.training.config.training_spec import RecipeSpec
from headway.training.optimizers.elementwise import SGD, AdamW
from headway.training.ranks.distributed import ProcessGroup
from tests.waiting import DEADLINE_S

LATE_COPIES = '''
"""The language model, whose moments are copied only once training waits for their copies."""

import threading

from headway.training.checkpoint.file_image import FileImage
from headway.training.checkpoint.save import Checkpointer
from headway.training.recipes.language_model import LanguageModel as Late

copy, finish_staging = FileImage.copy, Checkpointer.finish_staging
asked = threading.Event()


def copy_once_asked(image, tensors):
    if threading.current_thread().name == "checkpoint-stage":
        asked.wait()
    copy(image, tensors)


def ask(checkpointer):
    if checkpointer._staging is not None:
        asked.set()
    finish_staging(checkpointer)
    asked.clear()


FileImage.copy, Checkpointer.finish_staging = copy_once_asked, ask
'''

ALONE = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))
CPU = torch.device("cpu")


class Gate(threading.Event):
    """Copies in another thread than the one that trains wait for it; `asked` is set once one does."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()


@pytest.fixture
def gate(monkeypatch):
    real, gate, main = FileImage.copy, Gate(), threading.current_thread()

    def copy(image, tensors):
        if threading.current_thread().name == "checkpoint-stage" and threading.current_thread() is not main:
            gate.asked.set()
            assert gate.wait(DEADLINE_S)
        real(image, tensors)

    monkeypatch.setattr(FileImage, "copy", copy)
    yield gate
    gate.set()


def state() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Weights with a buffer, and moments, one of which is of a wider type and so lies before the weights."""
    weights = {"model.w": torch.arange(1000.0), "model.count": torch.tensor(3)}
    moments = {"optimizer.mean.w": torch.ones(3, 5), "optimizer.exact.w": torch.full((7,), 0.5, dtype=torch.float64)}
    return weights, moments


def test_weights_may_change_at_once_and_moments_once_staging_is_finished(tmp_path, content, gate):
    weights, moments = state()
    as_it_was = {name: value.clone() for name, value in (weights | moments).items()}
    with Checkpointer(tmp_path, ALONE) as checkpointer:
        checkpointer.save(content(1, weights, moments=moments))
        for value in weights.values():
            value.mul_(-7)  # as a forward pass may
        update = threading.Thread(target=lambda: (checkpointer.finish_staging(), _change(moments)))
        update.start()
        assert gate.asked.wait(DEADLINE_S)
        update.join(0.05)
        waits = update.is_alive()
        gate.set()
        update.join(DEADLINE_S)

    assert waits, "the update waits for the copy"
    assert float(moments["optimizer.mean.w"].sum()) == 30
    found = read_checkpoint(tmp_path / directory_name(1))
    assert found.tensors.keys() == as_it_was.keys()
    assert all(torch.equal(found.tensors[name], value) for name, value in as_it_was.items())


def _change(tensors):
    for value in tensors.values():
        value.add_(1)


@pytest.mark.process
def test_every_update_of_a_run_waits_for_the_copies_of_the_save_before(project, tiny_training, tmp_path):
    (tmp_path / "late_recipe.py").write_text(LATE_COPIES)
    recipe = RecipeSpec(name="late_recipe:Late", model=tiny_training.recipe.model)
    run = project.publish_run(tiny_training.model_copy(update={"recipe": recipe}))

    assert project.train(run, tmp_path, world_size=1) == [0], project.log(tmp_path)

    saved = [event["step"] for event in project.events(tmp_path) if event["event"] == "checkpoint.durable"]
    assert saved == [2, 4, 6]


@pytest.mark.parametrize("implementation", ["fused", "foreach"])
@pytest.mark.parametrize("rule", [AdamW, SGD])
def test_an_update_that_does_not_wait_is_found_out_and_leaves_no_checkpoint(
    tmp_path, content, gate, rule, implementation
):
    spec = OptimizerSpec(implementation=implementation, momentum=0.9)
    parameter = torch.nn.Parameter(torch.ones(40))
    parameter.grad = torch.ones(40)
    optimizer = rule({"w": parameter}, spec, weight_decay=0.0)
    moments = {f"optimizer.{moment}.w": values["w"] for moment, values in optimizer.moments.items()}
    with (
        pytest.raises(IntegrityError, match=r"optimizer\.\w+\.w changed while it was copied"),
        Checkpointer(tmp_path, ALONE) as checkpointer,
    ):
        checkpointer.save(content(1, {"model.w": parameter}, moments=moments))
        assert gate.asked.wait(DEADLINE_S)
        optimizer.update(0.1, 1)
        gate.set()
    assert committed_steps(tmp_path) == []


@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize("then", ["save", "finish", "fail"])
def test_whatever_comes_next_waits_for_the_copies(tmp_path, content, gate, monkeypatch, then, is_written):
    if not is_written:
        monkeypatch.setattr(save, "write_share", lambda *_arguments, **_options: 1 / 0)
    weights, moments = state()
    checkpointer = Checkpointer(tmp_path, ALONE)
    checkpointer.save(content(1, weights, moments=moments))
    assert is_written or checkpointer._in_flight.exception(DEADLINE_S) is not None
    ended = threading.Event()

    def go_on():
        with contextlib.suppress(ZeroDivisionError):
            if then == "save":
                checkpointer.save(content(2, weights))
            elif then == "finish":
                checkpointer.finish()
            else:
                checkpointer.__exit__(ValueError, ValueError(), None)
        ended.set()

    thread = threading.Thread(target=go_on)
    thread.start()
    assert gate.asked.wait(DEADLINE_S)
    went_on = ended.wait(0.05)
    gate.set()
    thread.join(DEADLINE_S)
    assert not went_on
    if is_written:
        checkpointer.finish()
        assert committed_steps(tmp_path) == ([1, 2] if then == "save" else [1])


def test_a_file_is_written_as_far_as_it_is_there(gate, monkeypatch):
    monkeypatch.setattr(file_image, "RUN_BYTES", 8)
    values = {"a": torch.arange(4.0), "b": torch.arange(2.0), "c": torch.arange(3.0), "d": torch.ones(1)}
    image = FileImage(make_header({name: ("float32", tuple(value.shape)) for name, value in values.items()}))
    staging = Staging([image], [values], later=["b", "c"], device=CPU)
    first = image.header.entries["b"].start
    image.wait_for(first)
    written = bytes(image.data[:first])
    behind = threading.Thread(target=image.wait_for, args=(first + 1,))
    behind.start()
    assert gate.asked.wait(DEADLINE_S) and behind.is_alive()
    gate.set()
    behind.join(DEADLINE_S)
    staging.finish()
    assert bytes(image.view())[:first] == written
    whole = FileImage(image.header)
    whole.stage(values)
    assert bytes(whole.view()) == bytes(image.view())


def test_who_waits_for_a_copy_that_failed_is_told(gate):
    image = FileImage(make_header({"w": ("float32", (2,))}))
    Staging([image], [{"w": torch.ones(3)}], later=["w"], device=CPU)
    gate.set()
    with pytest.raises(RuntimeError, match="size"):
        image.view()

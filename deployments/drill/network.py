"""The network of a drill's sandbox: a small one whose training suffers what `plan.json` of the sandbox says.

One fault, in one rank of one attempt, at one of its micro-batches. Without a plan it is a network like any other. Its
code is the same either way: a disturbed run and an undisturbed one are to end with equal bits.
"""

import contextlib
import ctypes
import functools
import json
import os
import resource
import secrets
import signal
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headway import Frozen, Losses, TabularShape
from headway.training.launch.base.channel import connect
from headway.training.launch.base.protocol import AttemptFiles

SANDBOX = "DRILL_SANDBOX"
"""Environment variable of all that a drill starts: the sandbox's folder."""
PLAN, PLANTED = "plan.json", "planted.json"
SPARE_BYTES, HUGE_BYTES = 64 << 20, 1 << 32
"""Memory that is left to a rank which is to run out of it, and what it asks for."""
COMPLETE_WITHIN_S = 10.0
REFUSED_WITHIN_S = 3.0
SO_ATTACH_FILTER, RETURN = 26, 0x06
"""Of <asm/socket.h> and <linux/bpf_common.h>: a filter that returns 0 keeps nothing of a packet."""


class Spec(Frozen):
    """The pipeline file's `recipe: {model: ...}`."""

    width: int = 32


class Network:
    spec_type, shape_type = Spec, TabularShape

    def __init__(self, spec: Spec, shape: TabularShape) -> None:
        self.spec, self.shape = spec, shape
        self.num_inputs = shape.num_numeric + len(shape.cardinalities)

    def build(self) -> nn.Module:
        width = self.spec.width
        return nn.Sequential(nn.Linear(self.num_inputs, width), nn.ReLU(), nn.Linear(width, self.shape.num_classes))

    def inputs(self, batch: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([batch[name].float() for name in ("numeric", "categorical") if name in batch], dim=1)

    def losses(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Losses:
        # Scoring, proofs and a first look at the recipe are no training, and suffer nothing.
        is_training = getattr(model, "training", True) and torch.is_grad_enabled()
        factor = fault().at_micro_batch(len(batch["label"])) if is_training else 1.0
        nats = nn.functional.cross_entropy(model(self.inputs(batch)), batch["label"][:, 0], reduction="none")[:, None]
        return Losses(nats * factor, torch.ones_like(nats, dtype=torch.bool))

    def measures(self, model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        right = model(self.inputs(batch)).argmax(dim=1, keepdim=True) == batch["label"]
        return {"nats": self.losses(model, batch).nats, "correct": right.float()}

    def hidden_matrices(self, model: nn.Module) -> tuple[str, ...]:
        return ()

    def example_input(self) -> Tensor:
        return torch.zeros(2, self.num_inputs)


class Fault:
    """What this rank is to suffer in this attempt."""

    def __init__(self, folder: Path | None, plan: Mapping[str, Any]) -> None:
        self._folder, self._plan = folder, plan
        self._num_micro_batches = 0

    def at_micro_batch(self, rows: int) -> float:
        """Do what is planned for the micro-batch that begins. Returns what its loss is multiplied by."""
        number, plan = self._num_micro_batches, self._plan
        self._num_micro_batches += 1
        if not plan or number < plan["after"]:
            return 1.0
        how = plan["how"]
        if how == "slow":
            self._note(number)
            time.sleep(plan["seconds"])
        elif how == "memory":
            if rows > plan["rows"]:
                self._note(number)
                run_out_of_memory()
        # What happens once is not to happen again after a restart, whatever number the attempt has.
        elif self._note(number):
            if how == "damage":
                checkpoints = Path(os.environ["HEADWAY_ATTEMPT_DIR"]).parents[1] / "checkpoints"
                self._note(number, flip_bit(checkpoints / plan["checkpoint"], plan["place"]))
            if how == "knock":
                self._note(number, knock())
            if how == "mute":
                mute()
            if how in ("kill", "damage"):
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "nan":
                return float("nan")
        return 1.0

    def _note(self, number: int, more: Mapping[str, Any] | None = None) -> bool:
        """Say that it happens now; returns whether nobody had."""
        assert self._folder is not None
        path = self._folder / PLANTED
        is_first = more is not None or not path.exists()
        if is_first:
            who = {"rank": int(os.environ["RANK"]), "pid": os.getpid(), "attempt": int(os.environ["HEADWAY_ATTEMPT"])}
            staging = path.with_suffix(f".{os.getpid()}")
            what = {"unix_s": time.time(), "micro_batch": number, **who, **(more or {})}
            staging.write_text(json.dumps(what))
            staging.replace(path)
        return is_first


@functools.cache
def fault() -> Fault:
    """Of this process; none where nothing is planned for it."""
    folder, attempt = os.environ.get(SANDBOX), os.environ.get("HEADWAY_ATTEMPT")
    if folder is None or attempt is None or not (path := Path(folder) / PLAN).exists():
        return Fault(None, {})
    plan = json.loads(path.read_text())
    is_mine = plan["rank"] == int(os.environ["RANK"]) and plan["attempt"] in (None, int(attempt))
    return Fault(Path(folder), plan if is_mine else {})


def run_out_of_memory() -> None:
    """Ask for more than the kernel gives. Raises torch's own error."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + SPARE_BYTES, before[1]))
    try:
        torch.empty(HUGE_BYTES, dtype=torch.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def flip_bit(folder: Path, place: float) -> dict[str, Any]:
    """Flip one bit of a checkpoint, as soon as it is complete.

    Args:
        place: from 0 to 1, which of all the bits of all its files.
    """
    deadline_s = time.monotonic() + COMPLETE_WITHIN_S
    # It is written beside the steps.
    while not (folder / "manifest.json").exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    bit = int(place * sum(8 * path.stat().st_size for path in files))
    while bit >= 8 * (size := files[0].stat().st_size):
        bit -= 8 * size
        del files[0]
    with files[0].open("r+b") as stream:
        stream.seek(bit // 8)
        byte = stream.read(1)[0] ^ 1 << bit % 8
        stream.seek(bit // 8)
        stream.write(bytes([byte]))
    return {"checkpoint": folder.name, "file": files[0].name, "bit": bit}


def mute() -> None:
    """From now on nothing that is sent to this process arrives, as beyond a cut cable: nobody is told.

    Acknowledgements are dropped, too, so that nobody hears whether what it sends arrives. Needs no rights.
    """
    program = ctypes.create_string_buffer(struct.pack("HBBI", RETURN, 0, 0, 0))
    drop_all = struct.pack("HL", 1, ctypes.addressof(program))
    for path in [*Path("/proc/self/fd").iterdir()]:
        # Those of files, and the one by which the folder was read.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as each:
            if each.family in (socket.AF_INET, socket.AF_INET6):
                each.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, drop_all)


def knock() -> dict[str, Any]:
    """Ask for a place in the gang with a key of its own, as a rank would that somebody started by hand."""
    place = AttemptFiles(Path(os.environ["HEADWAY_ATTEMPT_DIR"])).read_store()
    if place is None:
        return {"was_refused": None}
    started_s = time.monotonic()
    try:
        channel = connect(place.address, place.port, secrets.token_hex(32), within_s=0.0, once_s=REFUSED_WITHIN_S)
    except OSError:
        was_refused = True
    else:
        channel.connection.close()
        was_refused = False
    return {"was_refused": was_refused, "took_s": round(time.monotonic() - started_s, 3)}

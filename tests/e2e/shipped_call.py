"""A shipped pipeline, retrained twice by a call, in a folder whose own packages are called like Headway's folders."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from pathlib import Path

import psutil

os.environ["HEADWAY_PREFECT_RECORDS"] = "1"
import headway

(own,) = importlib.import_module("training").__path__
assert Path(own).parent == Path.cwd()
caught = signal.getsignal(signal.SIGTERM)
with contextlib.redirect_stdout(sys.stderr):
    first, second = headway.retrain("breast-cancer"), headway.retrain("breast-cancer")
assert first.is_champion and "launch" in first.stages_run and "launch" in second.stages_found
assert signal.getsignal(signal.SIGTERM) == caught
alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
servers = [child for child in alive if "prefect_api" in " ".join(child.cmdline())]
assert len(servers) == 1, "the second shares the server of the first"

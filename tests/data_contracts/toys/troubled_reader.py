"""In the place of the process that parses text tables: it does what a file's name says, and what is right otherwise."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from headway.data_contracts.tables import helper_process, text_table_process

answer = text_table_process.answer


def troubled(asked: dict[str, Any]) -> dict[str, Any]:
    name = Path(asked["path"]).stem
    if name.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[name])
    if name == "silent":
        Path(asked["path"]).with_suffix(".pid").write_text(str(os.getpid()))
        time.sleep(3600)
    if name == "exit":
        sys.exit(3)
    if name == "raises":
        raise RecursionError
    if name == "large":
        text_table_process.MEMORY_BYTES = -(8 << 24) + (160 << 20)
    return answer(asked)


text_table_process.answer = troubled
helper_process.IDLE_S = float(os.environ.get("IDLE_S", "300"))
text_table_process.main()

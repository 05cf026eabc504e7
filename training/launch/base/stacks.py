"""What a rank's stacks say, as faulthandler wrote them: where it is or crashed, and whether it waits for peers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>\S+)$', re.MULTILINE)
_THREAD = re.compile(r"\n\n|(?=^(?:Current t|T)hread )", re.MULTILINE)
_CRASH = re.compile(r"^Fatal Python error: (?P<error>.+)$", re.MULTILINE)
_WATCHES = {"_stand_watch", "_watch_fence"}
"""The rank's own watch threads, which stand in every dump and explain nothing."""
_BETWEEN = re.compile(r"-packages/torch/(?!distributed/).+\.py$|/contextlib\.py$")
"""What stands between an operation and whoever asked for it."""
_MEETING = re.compile(
    r"/torch/distributed/(?!tensor/).+\.py$"  # but not where a split tensor's operations are worked out
    r"|/training/(ranks/(communication|distributed|parameter_server)|observe/traffic"
    r"|parallel/(exact_shards|replica_sum|stage_link|metered_\w+))\.py$"
)
"""Files whose frames are innermost where a rank waits for its peers: `Work.wait` has no frame of its own."""
_MEETING_CALLS = (
    ("exchange", "/training/parallel/exact_replicas.py"),
    ("_gather", "/training/parallel/mesh_strategy.py"),
)
"""Where a rank with a GPU takes what its peers were to send: a collective there keeps no thread, only its stream."""
_OWN_WRITING = ("_end_of", "/training/checkpoint/save.py")
_OTHERS_WRITING = ("_parts_of_others", "/training/checkpoint/commit.py")


class Frame(NamedTuple):
    file: str
    line: int
    function: str

    def is_in(self, place: tuple[str, str]) -> bool:
        function, file = place
        return self.function == function and self.file.endswith(file)

    def __str__(self) -> str:
        return f"{self.function} ({PurePosixPath(self.file).name}:{self.line})"


Stack = Sequence[Frame]
"""Of one thread, innermost first."""


def innermost_frame(text: str) -> str:
    """`function (file:line)` where a rank's main thread was; empty when unknown."""
    stack = next(_threads(text), ())
    return str(stack[0]) if stack else ""


def crash_in(text: str) -> str:
    """`Segmentation fault in function (file:line)`: how and where a rank crashed; empty when it did not."""
    crashes = list(_CRASH.finditer(text))
    if not crashes:
        return ""
    crash = crashes[-1]
    blocks = [block for block in _THREAD.split(text[crash.end() :]) if _FRAME.search(block)]
    # The thread that crashed is called current; where none is, no Python code ran in it.
    current = next((block for block in blocks if block.startswith("Current thread")), "")
    where = innermost_frame(current)
    return f"{crash['error']} in {where}" if where else crash["error"]


def waits_for_peers(text: str) -> bool:
    """Whether a rank's main thread waits for other ranks, or for its own writing thread, which waits for them."""
    threads = list(_threads(text))
    if not threads:
        return False
    # Autograd, modules and context managers stand between; what matters is who called them, a collective or not.
    calls = (frame for frame in threads[0] if not _BETWEEN.search(frame.file))
    innermost = next(calls, None)
    if innermost is not None and (
        _MEETING.search(innermost.file) or any(innermost.is_in(call) for call in _MEETING_CALLS)
    ):
        return True
    # The writing thread of a rank may wait for the parts of others, and the main thread waits for it.
    waits_for_writing = any(frame.is_in(_OWN_WRITING) for frame in threads[0])
    return waits_for_writing and any(frame.is_in(_OTHERS_WRITING) for stack in threads for frame in stack)


def are_whole(text: str) -> bool:
    """Whether faulthandler has come to the end: the bottom of the main thread, which it writes last."""
    # A dump is written line by line by a process that may be killed meanwhile; half of one would point at a wrong
    # frame.
    return text.rstrip().endswith((" in <module>", " in _run_module_as_main"))


def _threads(text: str) -> Iterator[Stack]:
    """Those that explain anything, the main thread first."""
    # faulthandler writes the thread that it was called in, or the main thread, last.
    for block in reversed(_THREAD.split(text)):
        frames = [Frame(each["file"], int(each["line"]), each["function"]) for each in _FRAME.finditer(block)]
        if frames and not any(frame.function in _WATCHES for frame in frames):
            yield frames

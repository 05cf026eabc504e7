"""Where a rank stands, and whether it waits for its peers, from stacks as faulthandler writes them."""

from __future__ import annotations

import faulthandler
import threading
from pathlib import Path

import pytest

from headway.training.launch.base.stacks import are_whole, crash_in, innermost_frame, waits_for_peers

STACKS = """\
Thread 0x00007f01 (most recent call first):
  File "/code/training/launch/node/rank_process.py", line 140 in _stand_watch
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f02 (most recent call first):
  File "/site-packages/torch/distributed/distributed_c10d.py", line 2900 in all_reduce
  File "/code/training/engine/loop.py", line 57 in train
"""
NO_PEERS = {"process.py", "staging.py"}
"""Whose waits are for threads and processes of their own."""
LOOP = '  File "/run/code.zip/training/engine/loop.py", line 57 in train\n  File "<string>", line 1 in <module>\n'


def main_thread(*frames: str) -> str:
    """Innermost first, each a file and a function."""
    words = (frame.split() for frame in frames)
    return (
        "Current thread 0x1 (most recent call first):\n"
        + "".join(f'  File "{file}", line 9 in {function}\n' for file, function in words)
        + LOOP
    )


def test_the_frame_named_is_the_main_threads() -> None:
    assert innermost_frame(STACKS) == "all_reduce (distributed_c10d.py:2900)"
    assert innermost_frame("") == ""


def test_stacks_are_whole_when_the_bottom_of_the_main_thread_is_written() -> None:
    whole = (
        f'{STACKS}  File "/code/training/programs/worker.py", line 9 in main\n  File "<string>", line 1 in <module>\n'
    )
    assert are_whole(whole)
    assert not any(are_whole(whole[:size]) for size in range(len(STACKS)))
    assert not are_whole("")


def test_a_crash_is_named_by_the_thread_that_it_happened_in() -> None:
    crash = f"Fatal Python error: Segmentation fault\n\n{STACKS}\nExtension modules: numpy.core (total: 1)\n"
    assert crash_in(crash) == "Segmentation fault in all_reduce (distributed_c10d.py:2900)"
    assert crash_in(STACKS + crash) == crash_in(crash), "it was asked for its stacks before"
    assert crash_in(crash.replace("Current thread", "Thread")) == "Segmentation fault"
    assert crash_in(STACKS) == crash_in("") == ""


@pytest.mark.parametrize(
    "innermost",
    [
        "/site-packages/torch/distributed/distributed_c10d.py all_reduce",
        "/site-packages/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py foreach_reduce",
        "/run/code.zip/training/ranks/communication.py finish",
        "/run/code.zip/training/ranks/communication.py gather",
        "/run/code.zip/training/ranks/parameter_server.py _next_of",
        "/run/code.zip/training/parallel/exact_shards.py __call__",
        "/run/code.zip/training/parallel/replica_sum.py finish",
        "/run/code.zip/training/parallel/stage_link.py _receive",
        "/run/code.zip/training/observe/traffic.py ends_with",
        "/run/code.zip/training/parallel/exact_replicas.py exchange",
        "/run/code.zip/training/parallel/mesh_strategy.py _gather",
        "/site-packages/torch/distributed/_functional_collectives.py wait_tensor",
    ],
)
def test_a_rank_waits_where_the_engine_meets_its_peers(innermost: str) -> None:
    assert waits_for_peers(main_thread(innermost))
    operation = ("/site-packages/torch/_ops.py redispatch", "/site-packages/torch/_library/autograd.py autograd_impl")
    assert waits_for_peers(main_thread(*operation, innermost))
    assert not waits_for_peers(main_thread(*operation, "/home/me/torch/recipe.py oversleep", innermost))
    assert not waits_for_peers(main_thread("/home/me/recipe.py oversleep", innermost))


@pytest.mark.parametrize(
    "innermost",
    [
        "/home/me/communication.py finish",
        "/run/code.zip/training/engine/learner.py update",
        "/run/code.zip/training/parallel/exact_replicas.py backward",
        "/site-packages/torch/distributed/tensor/_dispatch.py wrap",
    ],
)
def test_a_rank_that_is_anywhere_else_does_not_wait_for_its_peers(innermost: str) -> None:
    assert not waits_for_peers(main_thread(innermost))
    assert not waits_for_peers("")


def test_a_rank_that_waits_for_its_own_writing_waits_for_peers_when_that_does() -> None:
    main = main_thread("/usr/lib/python3.11/threading.py wait", "/run/code.zip/training/checkpoint/save.py _end_of")

    def writing(*frames: str) -> str:
        return "Thread 0x2 (most recent call first):\n" + "".join(
            f'  File "{file}", line 9 in {function}\n' for file, function in (frame.split() for frame in frames)
        )

    commit = "/run/code.zip/training/checkpoint/commit.py"
    for_others = writing("/usr/lib/python3.11/threading.py wait", f"{commit} _parts_of_others", f"{commit} complete")
    own = writing("/usr/lib/python3.11/pathlib.py write", f"{commit} write_share")
    assert waits_for_peers(f"{for_others}\n{main}")
    assert not waits_for_peers(f"{own}\n{main}")
    assert not waits_for_peers(f"{for_others}\n{main_thread('/home/me/recipe.py oversleep')}"), "it trains on meanwhile"


def test_the_places_where_a_rank_waits_are_there() -> None:
    """Else a change of names would let every rank be called late."""
    training = Path(__file__).parents[4] / "training"
    assert "def exchange(" in (training / "parallel" / "exact_replicas.py").read_text()
    assert "def _gather(" in (training / "parallel" / "mesh_strategy.py").read_text()
    assert "def _end_of(" in (training / "checkpoint" / "save.py").read_text()
    assert "def _parts_of_others(" in (training / "checkpoint" / "commit.py").read_text()
    engine = [path for path in training.rglob("*.py") if "launch" not in path.parts]
    meets = [path for path in engine if ".wait()" in (text := path.read_text()) or "dist.all" in text]
    assert {path.name for path in meets if not waits_for_peers(main_thread(f"{path} call"))} == NO_PEERS


def test_what_faulthandler_writes_is_understood(tmp_path: Path) -> None:
    is_there, is_over = threading.Event(), threading.Event()

    def stand() -> None:
        is_there.set()
        is_over.wait()

    thread = threading.Thread(target=stand)
    thread.start()
    is_there.wait()
    try:
        with (tmp_path / "stacks").open("w") as stream:
            faulthandler.dump_traceback(stream, all_threads=True)
    finally:
        is_over.set()
        thread.join()
    text = (tmp_path / "stacks").read_text()
    assert innermost_frame(text).startswith("test_what_faulthandler_writes_is_understood (test_stacks.py:")
    assert are_whole(text)

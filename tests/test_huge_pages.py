"""Memory that went into huge pages is what it was, and forks have it too."""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path

import pytest

from tests.huge_pages import HUGE_BYTES, into_huge_pages

pytestmark = pytest.mark.long


def huge_bytes_of(pid: int | str) -> int:
    found = re.search(r"^AnonHugePages:\s+(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found.group(1)) << 10


@pytest.mark.process
def test_what_a_process_holds_is_huge_in_its_forks_and_reads_as_before() -> None:
    held = mmap.mmap(-1, 4 * HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    words = os.urandom(len(held))
    held.write(words)
    if not into_huge_pages():
        pytest.skip("this kernel makes no huge pages on request")
    assert held[:] == words

    fork = os.fork()
    if fork == 0:
        held[HUGE_BYTES] = held[HUGE_BYTES] ^ 1  # its own from now on
        os._exit(int(huge_bytes_of("self") < 2 * HUGE_BYTES or held[:HUGE_BYTES] != words[:HUGE_BYTES]))
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
    assert held[:] == words
    held.close()

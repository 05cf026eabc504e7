"""pytest, and what failed again by itself: `python -m tests.run_suite ARGUMENTS`.

Some thousand tests start real processes and servers beside each other on few cores, and now and then one is late. A
failure counts unless the test, with nothing beside it, passes three times in a row; those that do are named at the end,
for each is still a test or a product that cannot bear load.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

TIMES = 3
MAX_LATE = 3
"""More that fail are no coincidence."""
FAILED = 1
"""pytest's exit code where tests failed and nothing worse happened."""


def main(arguments: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that pytest ends with us
    with tempfile.TemporaryDirectory() as folder:
        # A cache of its own: the checkout's also has failures of earlier runs.
        code = _pytest(*arguments, "-o", f"cache_dir={folder}")
        failed = _failed(Path(folder))
    if code != FAILED or not 0 < len(failed) <= MAX_LATE:
        return code
    print(f"\nfailed, and run {TIMES} times by itself:\n" + "".join(f"  {each}\n" for each in failed), flush=True)
    if any(_pytest(*failed, "-p", "no:cacheprovider") for _ in range(TIMES)):
        return FAILED
    print("FLAKY: failed among others, and passed alone:\n" + "".join(f"  {each}\n" for each in failed), flush=True)
    return 0


def _pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def _failed(cache: Path) -> list[str]:
    file = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(file.read_bytes())) if file.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

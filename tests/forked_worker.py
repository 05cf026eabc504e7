"""A test process in the eyes of xdist, which reads and writes this one's streams and waits for its end.

Needs nothing but the standard library: `python -I -S tests/forked_worker.py SOCKET`; see `tests/forked_workers.py`.
"""

import contextlib
import os
import select
import socket
import sys

if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(sys.argv[1])
        socket.send_fds(line, [b"."], [0, 1, 2])
        answer = line.recv(32)
    if not answer:
        sys.exit("the process that imports the tests has ended; run with -p no:tests.forked_workers to see why")
    os.close(0)
    os.close(1)
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(int(answer))], [], [])

"""moto's S3 server on a port of its own choice, which it prints; it ends with its standard input.

A conditional put is one step here, as it is in S3. moto looks whether the object is there, then puts it: of two writers
at once, both would be told that they were first.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from moto.s3.responses import S3Response


def main() -> None:
    put_object, one_at_a_time = S3Response.put_object, threading.Lock()

    def put_atomically(self: S3Response) -> Any:
        with one_at_a_time:
            return put_object(self)

    S3Response.put_object = put_atomically
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

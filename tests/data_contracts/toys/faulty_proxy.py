"""An HTTP proxy that misbehaves on request: `python faulty_proxy.py UPSTREAM_PORT`. Prints its own port.

POST /-/faults takes a JSON list of {"fault", "method", "match", "times"}; the first rule that fits a request is
applied and used up. GET /-/log answers with what was asked, and what was done to it.
"""

from __future__ import annotations

import http.client
import json
import socket
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>key AKIAFAKE, secret hunter2</Message></Error>"
ANSWERS = {
    "500": (500, "InternalError"),
    "503": (503, "SlowDown"),
    "403": (403, "AccessDenied"),
    "signature": (403, "SignatureDoesNotMatch"),
    "409": (409, "ConditionalRequestConflict"),
}
TRICKLE_S = 0.2
lock = threading.Lock()
faults: list[dict[str, Any]] = []
log: list[list[str]] = []


class Proxy(BaseHTTPRequestHandler):
    upstream = 0
    protocol_version = "HTTP/1.1"  # or nobody would tell a client that asks first to go on with its body

    def log_message(self, *_arguments: object) -> None: ...

    def _serve(self) -> None:
        self.close_connection = True
        if self.path.startswith("/-/"):
            self._control()
        else:
            self._meddle()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

    def _meddle(self) -> None:
        fault = self._fault()
        size = int(self.headers.get("Content-Length") or 0)
        if fault == "reset":
            self._reset()
        elif fault in ("cut", "hold"):
            self._half(size, fault)
        elif fault in ANSWERS:
            self.rfile.read(size)
            status, code = ANSWERS[fault]
            self._answer(status, [], ERROR.format(code).encode())
        else:
            self._pass_on(self.rfile.read(size), fault)

    def _pass_on(self, body: bytes, fault: str) -> None:
        status, headers, data = self._forward(body)
        if fault == "lose":
            self._reset()
            return
        if fault == "flip":
            data = bytes([data[0] ^ 1]) + data[1:]
        self._answer(status, headers, data, fault)

    def _control(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        with lock:
            if self.command == "POST":
                faults[:] = json.loads(self.rfile.read(size))
                log.clear()
            answer = json.dumps(log).encode()
        self._answer(200, [], answer)

    def _fault(self) -> str:
        with lock:
            for rule in faults:
                if rule["times"] > 0 and rule["method"] in ("", self.command) and rule["match"] in self.path:
                    rule["times"] -= 1
                    log.append([self.command, self.path, rule["fault"]])
                    return str(rule["fault"])
            log.append([self.command, self.path, ""])
            return ""

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("expect", "connection"):
                connection.putheader(name, value)
        connection.endheaders(body or None)
        response = connection.getresponse()
        return response.status, response.getheaders(), response.read()

    def _half(self, size: int, fault: str) -> None:
        """Send the server half of the upload, then cut the line, or keep it open and silent."""
        head = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items() if name.lower() != "expect")
        with socket.create_connection(("127.0.0.1", self.upstream)) as server:
            server.sendall(f"{self.command} {self.path} HTTP/1.1\r\n{head}\r\n".encode())
            server.sendall(self.rfile.read(size // 2))
            while fault == "hold":
                time.sleep(0.1)
        self._reset()

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, fault: str = "") -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        told = [value for name, value in headers if name.lower() == "content-length"]
        self.send_header("Content-Length", told[0] if self.command == "HEAD" and told else str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        if fault == "slow":
            for byte in data:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(TRICKLE_S)
        elif fault == "cut-answer":
            self.wfile.write(data[: len(data) // 2])
            self._reset()
        else:
            self.wfile.write(data)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_arguments: object) -> None: ...


def main() -> None:
    Proxy.upstream = int(sys.argv[1])
    server = Server(("127.0.0.1", 0), Proxy)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()

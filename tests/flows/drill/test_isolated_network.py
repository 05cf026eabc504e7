"""A network of the sandbox's own: its link goes down and up, and nobody else's does."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from headway.flows.drill.interruptions import ISOLATED, _why_no_network
from headway.flows.drill.isolated_network import DOWN, UP
from headway.training.launch.base.ports import LOOPBACK, free_port

pytestmark = pytest.mark.process
WATCHING = """
import errno, socket, sys, time
for wanted in (errno.ECONNREFUSED, errno.EAGAIN, errno.ECONNREFUSED):
    while True:
        with socket.socket() as door:
            door.settimeout(0.5)
            if door.connect_ex(("127.0.0.1", 1)) == wanted:
                break
        time.sleep(0.01)
    print(errno.errorcode[wanted], flush=True)
sys.exit(3)
"""


def test_the_link_is_cut_and_mended_for_its_command_alone() -> None:
    if why := _why_no_network():
        pytest.skip(why)
    command = (*ISOLATED, sys.executable, "-I", "-S", "-c", WATCHING)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"ECONNREFUSED\n"
        process.stdin.write(DOWN)
        process.stdin.flush()
        assert process.stdout.readline() == b"EAGAIN\n", "nobody is told: what is sent is lost"
        with socket.create_server((LOOPBACK, port := free_port())), socket.create_connection((LOOPBACK, port)):
            pass
        process.stdin.write(UP)
        process.stdin.flush()
        assert process.stdout.readline() == b"ECONNREFUSED\n"
        assert process.wait(60) == 3, "its command's own exit code"

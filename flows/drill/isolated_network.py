"""Runs a command in a network of its own, whose link can be cut: `d` or `u` on stdin, the command as arguments.

All ranks of a local launcher meet over loopback. In a namespace of its own it can be taken down without anybody else
noticing, and what was sent is lost, as beyond a cut cable: nobody is told. Standard library only.
Sources: unshare(2), netdevice(7), user_namespaces(7).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

from headway.training.launch.base.process_tree import die_with_parent

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
DOWN, UP = b"d", b"u"
"""What stdin says."""
_REQUEST = struct.Struct("16sH14x")


def isolate() -> None:
    """Raises `OSError`: this user may make no network namespace here."""
    uid, gid = os.getuid(), os.getgid()
    _unshare(CLONE_NEWNET if uid == 0 else CLONE_NEWUSER | CLONE_NEWNET)
    if uid != 0:
        # The same numbers inside: files stay this user's.
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    set_link(is_up=True)


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def set_link(*, is_up: bool) -> None:
    """Loopback of this namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        _, flags = _REQUEST.unpack(fcntl.ioctl(any_socket, SIOCGIFFLAGS, _REQUEST.pack(b"lo", 0)))
        flags = flags | IFF_UP if is_up else flags & ~IFF_UP
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, _REQUEST.pack(b"lo", flags))


def _obey() -> None:
    # Not by `sys.stdin`, whose lock a thread would still hold when the interpreter ends.
    while word := os.read(0, 1):
        set_link(is_up=word == UP)


def main() -> int:
    try:
        isolate()
    except OSError as error:
        sys.stderr.write(f"headway: no network namespace can be made here ({error.strerror}).\n")
        return 1
    command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
    signal.signal(signal.SIGTERM, lambda *_: command.terminate())
    threading.Thread(target=_obey, daemon=True).start()
    code = command.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())

"""Ports of loopback for servers that have to be told theirs, and for servers that go away and come back."""

import contextlib
import secrets
import socket
from pathlib import Path

LOWEST = 10_000
SYSTEMS_OWN = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port on which nothing listens. It is none of those that the system hands out by itself, to servers that ask for any and to
    each connection: one of these might have it before its own server does."""
    highest = int(SYSTEMS_OWN.read_text("ascii").split()[0]) if SYSTEMS_OWN.exists() else 32_768
    while True:
        port = LOWEST + secrets.randbelow(highest - LOWEST)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port

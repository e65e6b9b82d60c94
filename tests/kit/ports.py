"""Ports for servers that are told where to listen."""

from __future__ import annotations

import socket
from random import SystemRandom

__all__ = ["free_port"]

LISTENED_ON = range(10_000, 32_000)
"""Below the ports that systems give to connections (Linux from 32768 on, others from 49152): one of those may
be taken before the server listens on it, by a process that asks for any."""


def free_port() -> int:
    """Return a port of this machine that is not in use, nor given out to one that asks for any."""
    draw = SystemRandom()  # pytest-randomly gives each process of the tests the same seed
    while True:
        port = draw.choice(LISTENED_ON)
        with socket.socket() as listener:
            try:
                listener.bind(("", port))
            except OSError:
                continue
            return port

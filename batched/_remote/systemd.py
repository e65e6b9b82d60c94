"""What systemd asks of a service: to say when it is ready."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify(state: str) -> None:
    """Tell systemd, if it listens, such as `READY=1`; what cannot be told is no reason to fail."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if not name or not hasattr(socket, "AF_UNIX"):
        return
    address = "\0" + name[1:] if name.startswith("@") else name
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.connect(address)
        told.sendall(state.encode())

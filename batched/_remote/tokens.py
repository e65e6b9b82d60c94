"""The secret that clients on tcp must know: where it is kept, and how both sides show that they know it."""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from batched._logs import log
from batched._remote.addresses import check_folder


def checked_token(token: Any) -> str | None:
    """Return a token; `TypeError` if it is no text."""
    if token is not None and not isinstance(token, str):
        raise TypeError(f"token must be a str, got {type(token).__name__}")
    return token


def token_in(file: Path) -> str:
    """Return the token in a file. One that is missing is made, readable for this user only."""
    if not file.exists():
        check_folder(file)
        _make_token(file)
    try:
        token = file.read_text("utf-8").strip()
    except UnicodeDecodeError:
        raise ValueError(f"the token file {file} is no text in UTF-8: give another file") from None
    if not token:
        raise ValueError(f"the token file {file} is empty: remove it, and a token is made")
    if os.name == "posix" and file.stat().st_mode & 0o077:
        log(logging.WARNING, "other users can read the token in %s: chmod 600 %s", file, file)
    return token


def _make_token(file: Path) -> None:
    """Write a new token, in one step: a client may read at the same time, and another server may write."""
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # with mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(secrets.token_urlsafe(32) + "\n")
        with suppress(FileExistsError):
            os.link(name, file)
    finally:
        Path(name).unlink()


def proof(token: str, side: str, port: object, *nonces: str) -> str:
    """Return what shows that `side`, `"client"` or `"server"`, knows the token.

    With the port, so that a process at another one cannot pass on what a server says.
    """
    said = " ".join([side, str(port), *nonces])
    return hmac.new(token.encode(), said.encode(), "sha256").hexdigest()


def is_same(said: str, expected: str) -> bool:
    """Whether two proofs are the same, in a time that says nothing of them."""
    return hmac.compare_digest(said.encode(), expected.encode())

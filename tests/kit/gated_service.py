"""The service of the examples with a small function, which the tests hold at a gate and watch.

The function is in the process of the service, or in the one that `EMBED_AT` names.
Its vectors are the letters of the texts, so that an answer tells whose it is. The gate is a file: while its
lock is held, every batch waits. That works from another process, also when the service takes no more
connections. Every batch is noted in another file.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from pathlib import Path
from typing import Any

from embedding_service import create_app
from fastapi import FastAPI

import batched

FOLDER = Path(os.environ["GATED_SERVICE"])


@batched.dynamically(max_queue_size=1024, isolate_errors=True, default_deadline_ms=10_000)
def embed(texts: list[str]) -> list[list[float]]:
    """Note the batch, wait at the gate, answer; raise if any text is bad."""
    with (FOLDER / "batches").open("a") as batches:
        batches.write(json.dumps(texts) + "\n")
    with (FOLDER / "gate").open() as gate:
        fcntl.flock(gate, fcntl.LOCK_SH)
    if any("bad" in text for text in texts):
        raise ValueError(f"one of these is bad: {texts}")
    return [[float(ord(letter)) for letter in text] for text in texts]


def app() -> FastAPI:
    """Return the service, and what is in its queue at `/stats`."""
    address = os.environ.get("EMBED_AT")
    function = batched.connect(address, wait_s=10.0).embed if address else embed
    service = create_app(function, stuck_after_s=0.1)

    @service.get("/stats")
    async def stats() -> dict[str, Any]:
        now = await asyncio.to_thread(getattr, function, "stats")
        counts = {name: getattr(now, name) for name in now.__slots__ if isinstance(getattr(now, name), int)}
        return counts | {"pid": os.getpid()}

    @service.post("/configure")
    async def configure(options: dict[str, Any]) -> None:
        function.configure(**options)

    return service


def used_app() -> FastAPI:
    """Return the service after its first call, as one finds it in a child of a process that has used it."""
    embed("before the fork")
    return app()

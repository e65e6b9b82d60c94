"""A deadline for a block of code holds for calls of another process, too."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

import batched
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.remote_server import serving

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs unix sockets")


def test_calls_of_another_process_share_the_deadline_of_their_block(tmp_path: Path) -> None:
    """From threads and from tasks; a sooner deadline of their own stays."""
    gate = Gate(shut=True)

    @batched.dynamically(timeout_ms=0)
    def held(items: list[int]) -> list[int]:
        gate(items)
        return items

    bind = f"unix:{tmp_path}/s"
    with serving(bind, functions={"held": held}):
        client = batched.connect(bind)

        async def call() -> None:
            with batched.deadline(50):
                await client.held.acall(1)

        with batched.deadline(50), pytest.raises(TimeoutError):
            client.held(1)
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(call(), PATIENCE_S))
        with batched.deadline(1000 * PATIENCE_S), pytest.raises(TimeoutError, match="deadline_ms=50"):
            client.held.options(deadline_ms=50)(1)
        gate.open()
        with batched.deadline(1000 * PATIENCE_S):
            assert client.held(2) == 2
        client.close()

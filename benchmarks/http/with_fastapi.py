"""The embedding service: as it is, without batching, and with the floors. `python -m ... WHICH PORT`.

All are behind the example's own `create_app`, so HTTP costs all of them the same; but for one, which has no
framework.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Self

import uvicorn
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

import batched
from benchmarks.http.bare_app import BareApp
from benchmarks.http.floors import Floor
from benchmarks.http.models import BATCH_SIZE, load
from examples.embedding_service import create_app


class Unbatched:
    """Stands where the service expects a batched function, and has no use for its options."""

    def __init__(self, acall: Callable[[str], Awaitable[list[float]]]) -> None:
        self.acall = acall

    def options(self, **_: Any) -> Self:
        """Return itself."""
        return self


def _ours() -> Any:
    from benchmarks.http.function import embed  # noqa: PLC0415  it loads the model

    return embed


def _within_half_a_second() -> Any:
    return batched.dynamically(load(), batch_size=BATCH_SIZE, max_queue_size=1_024, default_deadline_ms=500)


def _plain() -> Any:
    model = load()

    async def acall(text: str) -> list[float]:
        return (await run_in_threadpool(model, [text]))[0]

    return Unbatched(acall)


def _floor(wait_s: float = 0.0, piece: int = 32) -> Any:
    floor = Floor(load(), wait_s, piece)
    floor.start()
    return Unbatched(floor.acall)


WHICH: dict[str, Callable[[], Any]] = {
    "ours": _ours,
    "deadline": _within_half_a_second,
    "plain": _plain,
    "greedy": _floor,
    "patient": lambda: _floor(wait_s=0.005),
    "pieces": lambda: _floor(piece=4),
}


def asgi() -> BareApp:
    """Return the application without a framework, for a web server that makes it itself."""
    return BareApp(_ours().acall)


def main() -> None:
    """Serve."""
    which, port = sys.argv[1:]
    app: FastAPI | BareApp = asgi() if which == "asgi" else create_app(WHICH[which]())
    gc.collect()  # as the example does
    gc.freeze()
    lifespan = "off" if which == "asgi" else "auto"
    uvicorn.run(app, port=int(port), log_level="critical", access_log=False, lifespan=lifespan)


if __name__ == "__main__":
    main()

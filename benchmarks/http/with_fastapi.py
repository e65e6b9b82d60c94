"""FastAPI on uvicorn: without batching, with ours, and with the floors. `python -m ... WHICH PORT`."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

import batched
from benchmarks.http.floors import Floor
from benchmarks.http.models import load


class Text(BaseModel):
    """What a client sends."""

    text: str


def _app(acall: Callable[[str], Awaitable[list[float]]]) -> FastAPI:
    app = FastAPI()

    @app.post("/embed")
    async def embed(body: Text) -> list[float]:
        return await acall(body.text)

    return app


def _plain() -> FastAPI:
    model = load()
    app = FastAPI()

    @app.post("/embed")
    def embed(body: Text) -> list[float]:
        return model([body.text])[0]

    return app


def _ours() -> FastAPI:
    return _app(batched.dynamically(load(), length=len, isolate_errors=True).acall)


def _floor(gap_s: float = 0.0, piece: int = 32) -> FastAPI:
    floor = Floor(load(), gap_s, piece)
    floor.start()
    return _app(floor.acall)


APPS = {
    "plain": _plain,
    "ours": _ours,
    "floor-greedy": _floor,
    "floor-patient": lambda: _floor(gap_s=0.001),
    "floor-pieces": lambda: _floor(piece=4),
}

if __name__ == "__main__":
    uvicorn.run(APPS[sys.argv[1]](), port=int(sys.argv[2]), log_level="warning", access_log=False)

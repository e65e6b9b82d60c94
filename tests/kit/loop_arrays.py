"""Batched functions over arrays on an event loop, behind a gate."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from batched import aio
from tests.kit.gate import AsyncGate


def rows(*shape: int, value: float = 1) -> dict[str, Any]:
    """Return a call of rows of that shape."""
    return {"x": np.full(shape, float(value))}


def noted(features: dict[str, Any]) -> Any:
    """Return the rows of a batch as lists."""
    return features["x"].tolist()


def doubled(features: dict[str, Any]) -> Any:
    """Return twice the rows: a batch function."""
    return features["x"] * 2


def gated(*, shut: bool = True, **options: Any) -> tuple[AsyncGate, Any]:
    """Return a function that doubles its rows behind a gate, and its batcher."""
    gate = AsyncGate(doubled, shut=shut, note=noted)
    return gate, aio.inference.dynamically(gate, **{"timeout_ms": 0, **options})


async def held(**options: Any) -> tuple[AsyncGate, Any, asyncio.Task[Any]]:
    """Return the same with a first row in its batch, which waits at the gate."""
    gate, fn = gated(**options)
    first = asyncio.create_task(fn(rows(1, 1, value=0)))
    await gate.entered.acquire()
    return gate, fn, first


async def answers(fn: Any, items: Any) -> list[Any]:
    """Return the answers of a map, as lists."""
    return [answer.tolist() async for answer in fn.amap(items)]

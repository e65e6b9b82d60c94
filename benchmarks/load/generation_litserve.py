"""A generator that is refilled while it runs, beside LitServe's loop for the same model, without its server.

The loop runs in a thread, with a plain queue before it; its users' part is written as in its documentation.
The model, the items and the callers are those of `generation`. A call that finds no place free may wait in
LitServe for as long as others come: so the longest wait for a first piece is shown, of all items.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from importlib import import_module
from itertools import count
from logging import getLogger
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any

from benchmarks.kit.callers import run_precisely
from benchmarks.kit.own_process import Alone
from benchmarks.kit.row import SHARE, TIMES, Row
from benchmarks.kit.turns import Turns
from benchmarks.load.device import BATCH
from benchmarks.load.generation import ITEMS, MOST, Model, ask, lengths_of, of_ours

_RIVAL = "litserve"


class _Api:
    """What its users write: which items are there, and what a step does."""

    stream = True
    spec = None
    max_batch_size = BATCH
    batch_timeout = 0.0

    def __init__(self, model: Model, output: Any, status: Any) -> None:
        self._model = model
        self._output = output
        self._status = status
        self._rows: dict[str, list[int]] = {}
        self._joined = 0

    def add_request(self, uid: str, length: int) -> None:
        """Have an item join."""
        self._rows[uid] = [0, length]
        self._joined += 1

    def has_capacity(self) -> bool:
        """Whether a place is free."""
        return len(self._rows) < BATCH

    def has_active_requests(self) -> bool:
        """Whether any item is there."""
        return bool(self._rows)

    def step(self, _: object) -> list[Any]:
        """Return the next piece of each item, and which have ended."""
        rows = list(self._rows.items())
        joined, self._joined = self._joined, 0
        self._model.step(len(rows), joined)
        found = []
        for uid, row in rows:
            found.append(self._output(uid, row[0], self._status.OK))
            row[0] += 1
            if row[0] == row[1]:
                del self._rows[uid]
                found.append(self._output(uid, None, self._status.FINISH_STREAMING))
        return found

    def encode_response(self, output: Any) -> Any:
        """Return what is sent."""
        return output

    format_encoded_response = encode_response


class _Loop:
    """Its loop in a thread, and on the loop of the callers their pieces."""

    def __init__(self, model: Model) -> None:
        loops = import_module("litserve.loops.continuous_batching_loop")  # only its own process has it
        getLogger("litserve").setLevel("ERROR")  # it prints
        status = import_module("litserve.utils").LitAPIStatus
        self._ended = status.FINISH_STREAMING
        self._loop = asyncio.get_running_loop()
        self._uids = map(str, count())
        self._streams: dict[str, asyncio.Queue[Any]] = {}
        self._arrived: SimpleQueue[Any] = SimpleQueue()
        self._pieces: deque[Any] = deque()
        api = _Api(model, loops.Output, status)
        run = partial(loops.ContinuousBatchingLoop(), api, "cpu", 0, self._arrived, self, {}, None)
        Thread(target=run, daemon=True).start()  # it ends with the process

    def send(self, item: Any, consumer_id: int) -> None:  # noqa: ARG002  theirs
        """Take what the loop says of an item: a piece, or its end."""
        if not self._pieces:  # one wake-up of the callers' loop for all that it says meanwhile
            self._pieces.append(item)
            self._loop.call_soon_threadsafe(self._hand_out)
        else:
            self._pieces.append(item)

    def _hand_out(self) -> None:
        while self._pieces:
            uid, (piece, status, *_) = self._pieces.popleft()
            self._streams[uid].put_nowait(None if status == self._ended else piece)

    async def astream(self, item: int, /) -> AsyncIterator[int]:
        """Yield the pieces of an item."""
        uid = next(self._uids)
        pieces = self._streams[uid] = asyncio.Queue()
        self._arrived.put((0, uid, monotonic(), item))
        while (piece := await pieces.get()) is not None:
            yield piece
        del self._streams[uid]


def of_litserve(figure: str, items: int, most: int) -> float:
    """Return one of the figures of `generation`."""

    async def main() -> float:
        model = Model()
        return (await ask(_Loop(model), model, lengths_of(items, most)))[figure]

    return run_precisely(main())


def _turns(figure: str) -> Turns:
    arguments = (figure, ITEMS, MOST)
    contenders = {"ours": Alone(of_ours, arguments), "LitServe": Alone(of_litserve, arguments, rival=_RIVAL)}
    return Turns(contenders, rounds=3)


ROWS = (
    Row("generation / LitServe", "items a second of 64 tasks", _turns("rate"), "LitServe", SHARE),
    Row(
        "generation, longest / LitServe",
        "longest wait for a first piece",
        _turns("longest"),
        "LitServe",
        TIMES,
    ),
)

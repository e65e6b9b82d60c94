"""The least that a batcher behind a web handler can do: no errors, no cancelling, no stats."""

from __future__ import annotations

import asyncio
from queue import SimpleQueue
from threading import Thread
from typing import Any

from benchmarks.http.models import BATCH_SIZE, Model

__all__ = ["Floor"]

_Entry = tuple[str, "asyncio.Future[list[float]]"]


class Floor:
    """One list of what waits, one thread for the model.

    With `wait_s` a batch that is not full starts when as many have come as were answered last, or after so
    long; without, whenever the model is free.
    With `piece` a batch is sorted by length, run in pieces of so many and answered after each.
    """

    def __init__(self, model: Model, wait_s: float = 0.0, piece: int = BATCH_SIZE) -> None:
        self._model = model
        self._wait_s = wait_s
        self._piece = piece
        self._waiting: list[_Entry] = []
        self._busy = False
        self._awaited = 0
        self._timer: asyncio.TimerHandle | None = None
        self._batches: SimpleQueue[list[_Entry]] = SimpleQueue()

    async def acall(self, text: str) -> list[float]:
        """Answer one text."""
        loop = self._loop = asyncio.get_running_loop()
        future: asyncio.Future[list[float]] = loop.create_future()
        self._waiting.append((text, future))
        self._awaited -= 1
        if not self._busy:
            self._consider()
        return await future

    def start(self) -> None:
        """Start the thread."""
        Thread(target=self._work, daemon=True).start()

    def _consider(self) -> None:
        if not self._wait_s or self._awaited <= 0 or len(self._waiting) >= BATCH_SIZE:
            self._begin()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._wait_s, self._begin)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._busy = True
        batch = self._waiting[:BATCH_SIZE]
        del self._waiting[:BATCH_SIZE]
        self._batches.put(batch)

    def _work(self) -> None:
        while batch := self._batches.get():
            if self._piece < len(batch):
                batch.sort(key=lambda entry: len(entry[0]))
            for start in range(0, len(batch), self._piece):
                entries = batch[start : start + self._piece]
                outputs = self._model([text for text, _ in entries])
                last = start + self._piece >= len(batch)
                self._loop.call_soon_threadsafe(self._answer, entries, outputs, last)

    def _answer(self, entries: list[_Entry], outputs: list[list[float]], last: Any) -> None:
        for (_, future), output in zip(entries, outputs, strict=True):
            if not future.done():
                future.set_result(output)
        if last:
            self._busy = False
            self._awaited = len(entries)
            if self._waiting:
                self._consider()

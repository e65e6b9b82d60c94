"""The callers of a run: threads that block, and tasks on event loops."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import wait
from typing import Any

import numpy as np

from tests.differential.judge import Judge, SourceError
from tests.differential.plan import Ask, Plan, asks
from tests.differential.work import OWNER, SCRIBBLED, Item, row
from tests.kit.optional import torch


class Asked:
    """The arguments of a call; what the caller passes is gone once this is."""

    def __init__(self, ask: Ask, owner: int, plan: Plan, kept: list[weakref.ref[Any]]) -> None:
        self.ask = ask
        self._owner = owner
        self._plan = plan
        self._kept = kept
        self._arrays: list[Any] = []

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call."""
        ask = self.ask
        if self._plan.shape == "arrays":
            features = self._features(0)
            return ((), features) if ask.by_name else ((features,), {})
        items: Any = [self._item(place) for place in range(len(ask.elements))]
        seconds: Any = [number % 5 for (number,) in ask.elements]
        if not ask.many:
            items, seconds = items[0], seconds[0]
        if not ask.second:
            return (items,), {}
        return ((items,), {"y": seconds}) if ask.by_name else ((items, seconds), {})

    def sources(self) -> list[Iterator[Any]]:
        """Return the iterables of a map."""
        seconds = (number % 5 for (number, *_) in self.ask.elements)
        return (
            [self._source(), seconds]
            if self.ask.second and self._plan.shape == "columns"
            else [self._source()]
        )

    def _source(self) -> Iterator[Any]:
        for place in range(len(self.ask.elements)):
            yield self._features(place) if self._plan.shape == "arrays" else self._item(place)
            self.scribble()  # as soon as the next is wanted
        if self.ask.breaks:
            raise SourceError

    async def asynchronous_source(self) -> AsyncIterator[Any]:
        """Yield the elements of a map, now and then after a while."""
        for place, element in enumerate(self._source()):
            if place % 4 == 0 or self.ask.slow_s:
                await asyncio.sleep(self.ask.slow_s)
            yield element

    def _item(self, place: int) -> Item:
        (number,) = self.ask.elements[place]
        item = Item(number, self._owner, self._plan)
        self._kept.append(weakref.ref(item))
        return item

    def _features(self, place: int) -> dict[str, Any]:
        ask = self.ask
        rows = [row(number, ask.layout) for number in ask.elements[place]]
        same = len({len(one) for one in rows}) <= 1
        library = torch if ask.layout[0] == "torch" else np
        if not rows:
            rows = [row(0, ask.layout)]
            features = {"x": library.stack(rows)[:0]}
        elif same and not ask.by_name:
            features = {"x": library.stack(rows)}
        else:
            features = {"x": rows}
        arrays = features["x"] if isinstance(features["x"], list) else [features["x"]]
        self._kept += map(weakref.ref, arrays)
        self._arrays += arrays
        return features

    def scribble(self) -> None:
        """Change the arrays that were passed."""
        if self.ask.scribbles:
            for array in self._arrays:
                array[...] = row(SCRIBBLED, self.ask.layout)[0]
        self._arrays.clear()


class Caller:
    """One caller, which makes its calls one after another."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        number: int,
        plan: Plan,
        fns: list[Any],
        judge: Judge,
        kept: list[weakref.ref[Any]],
        until_s: float,
        requests: list[dict[Any, Any]],
    ) -> None:
        self.number = number
        self.plan = plan
        self.judge = judge
        self.doing: Any = None
        self.calls = 0
        self.done = False
        self._fns = fns
        self._kept = kept
        self._until_s = until_s
        self._requests = requests

    def asks(self, *, on_loop: bool) -> Iterator[Ask]:
        """Yield what to ask, until the time is over."""
        for ask in asks(self.plan, self.number, on_loop=on_loop):
            if time.monotonic() > self._until_s:
                return
            self.doing = ask
            self.calls += 1
            yield ask

    def _view(self, ask: Ask) -> Any:
        fn = self._fns[ask.instance]()
        options: dict[str, Any] = dict(ask.options)
        if (place := self.calls % (len(self._requests) + 1)) > 0:
            options["request_cache"] = self._requests[place - 1]
        if ask.chained:
            for name, value in options.items():
                fn = fn.options(**{name: value})
            return fn
        return fn.options(**options) if options else fn

    def run(self) -> None:
        """Make all calls from a thread."""
        OWNER.set(self.number)
        for ask in self.asks(on_loop=False):
            if ask.pause_s:
                time.sleep(ask.pause_s)
            asked = Asked(ask, self.number, self.plan, self._kept)
            began = time.monotonic()
            try:
                getattr(self, f"_{ask.way}")(ask, self._view(ask), asked)
            except BaseException as error:
                self.judge.failed(ask, error, self._whose(ask), elapsed_s=time.monotonic() - began)
            asked.scribble()
        self.done = True

    def _whose(self, ask: Ask) -> tuple[tuple[int, ...], ...]:
        """Return the elements for one of which a call may fail."""
        return ask.elements

    def _call(self, ask: Ask, fn: Any, asked: Asked) -> None:
        args, named = asked.arguments()
        self.judge.answered(ask, fn(*args, **named))

    def _submit(self, ask: Ask, fn: Any, asked: Asked) -> None:
        args, named = asked.arguments()
        told: list[Any] = []
        future = fn.submit(*args, **named)
        asked.scribble()
        future.add_done_callback(told.append)
        left = False
        if ask.cancel_s is not None:
            time.sleep(ask.cancel_s)
            left = future.cancel()
        wait([future])
        if left:
            if not future.cancelled():
                self.judge.work.violated(f"cancel was True, and the future is {future}\n    asked: {ask}")
            return
        error = None if future.cancelled() else future.exception()
        if error is not None:
            raise error
        got = future.result()
        self.judge.answered(ask, got)
        deadline = time.monotonic() + 5
        while not told and time.monotonic() < deadline:  # callbacks run after the callers that wait are woken
            time.sleep(0)
        if len(told) != 1:
            self.judge.work.violated(f"{len(told)} callbacks of one future\n    asked: {ask}")

    def _map(self, ask: Ask, fn: Any, asked: Asked) -> None:
        taken = 0
        answers = fn.map(*asked.sources())
        try:
            while ask.take is None or taken < ask.take:
                got = next(answers, END)
                if got is END:
                    break
                self.took(ask, taken, got)
                taken += 1
                time.sleep(ask.slow_s)
        except BaseException as error:
            self.map_failed(ask, error, taken)
        else:
            self.map_ended(ask, taken)
        if not ask.drops:
            answers.close()
        del answers

    def took(self, ask: Ask, place: int, got: Any) -> None:
        if place < len(ask.elements):
            self.judge.element(ask, place, got)
        else:
            self.judge.work.violated(f"answer {place} of {len(ask.elements)}\n    asked: {ask}")

    def map_failed(self, ask: Ask, error: BaseException, taken: int, *, left: bool = False) -> None:
        """Only what belongs to the first place that has no answer may be raised."""
        at_end = taken == len(ask.elements)
        if isinstance(error, SourceError) and not at_end:
            self.judge.work.violated(f"the source's error comes after {taken}\n    asked: {ask}")
        self.judge.failed(ask, error, ask.elements[taken : taken + 1], left=left)

    def map_ended(self, ask: Ask, taken: int) -> None:
        wanted = len(ask.elements) if ask.take is None else min(ask.take, len(ask.elements))
        if taken != wanted or (ask.breaks and ask.take is None):
            self.judge.work.violated(f"a map ended after {taken} of {wanted}\n    asked: {ask}")

    def _stream(self, ask: Ask, fn: Any, asked: Asked) -> None:
        args, named = asked.arguments()
        pieces: list[Any] = []
        stream = fn.stream(*args, **named)
        del args, named
        ended = False
        try:
            while ask.take is None or len(pieces) < ask.take:
                piece = next(stream, END)
                if piece is END:
                    ended = True
                    break
                pieces.append(piece)
        finally:
            if not ask.drops:
                stream.close()
            self.judge.pieces(ask, pieces, ended=ended)


END = object()


def describe(callers: list[Caller]) -> str:
    """Return what those do that have not done all."""
    return "\n".join(f"caller {each.number}: {each.doing}" for each in callers if not each.done)


def threads_of(callers: list[Caller]) -> list[threading.Thread]:
    """Return the threads that run the callers, not started."""
    return [threading.Thread(target=each.run, name=f"caller {each.number}", daemon=True) for each in callers]

"""The callers of a run that are tasks of event loops."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.differential.callers import END, Asked, Caller
from tests.differential.plan import Ask
from tests.differential.work import OWNER


class Task(Caller):
    """The same on an event loop."""

    async def run_async(self) -> None:
        """Make all calls from a task."""
        OWNER.set(self.number)
        for ask in self.asks(on_loop=True):
            if ask.pause_s:
                await asyncio.sleep(ask.pause_s)
            if ask.cancel_s is None:
                await self._ask(ask, left=[])
                continue
            left: list[bool] = []
            task = asyncio.create_task(self._ask(ask, left))
            await asyncio.sleep(ask.cancel_s)
            left.append(True)
            task.cancel()
            await asyncio.wait([task])
        self.done = True

    async def _ask(self, ask: Ask, left: list[bool]) -> None:
        asked = Asked(ask, self.number, self.plan, self._kept)
        began = time.monotonic()
        try:
            await getattr(self, f"_{ask.way}")(ask, self._view(ask), asked, left)
        except GeneratorExit:  # the loop is gone
            raise
        except BaseException as error:
            leaves = bool(left) or asyncio.get_running_loop() in self.judge.left_loops
            elapsed_s = time.monotonic() - began
            self.judge.failed(ask, error, ask.elements, elapsed_s=elapsed_s, left=leaves, on_loop=True)
            if isinstance(error, asyncio.CancelledError) and leaves:
                raise
        finally:
            asked.scribble()

    async def _acall(self, ask: Ask, fn: Any, asked: Asked, left: list[bool]) -> None:
        args, named = asked.arguments()
        self.judge.answered(ask, await fn.acall(*args, **named))

    async def _call(self, ask: Ask, fn: Any, asked: Asked, left: list[bool]) -> None:  # type: ignore[override]
        args, named = asked.arguments()
        self.judge.answered(ask, await fn(*args, **named))

    async def _amap(self, ask: Ask, fn: Any, asked: Asked, left: list[bool]) -> None:  # noqa: C901
        taken = 0
        sources: list[Any] = asked.sources()
        if not ask.by_name:
            sources[0] = asked.asynchronous_source()
        answers = fn.amap(*sources)
        try:
            while ask.take is None or taken < ask.take:
                got = await anext(answers, END)
                if got is END:
                    break
                self.took(ask, taken, got)
                taken += 1
                if ask.slow_s:
                    await asyncio.sleep(ask.slow_s)
        except GeneratorExit:
            raise
        except asyncio.CancelledError:
            if not left and asyncio.get_running_loop() not in self.judge.left_loops:
                self.map_failed(ask, asyncio.CancelledError(), taken)
            else:
                raise
        except BaseException as error:
            self.map_failed(ask, error, taken)
        else:
            self.map_ended(ask, taken)
        if not ask.drops:
            await answers.aclose()

    async def _astream(self, ask: Ask, fn: Any, asked: Asked, left: list[bool]) -> None:
        args, named = asked.arguments()
        pieces: list[Any] = []
        stream = fn.astream(*args, **named)
        del args, named
        ended = False
        try:
            while ask.take is None or len(pieces) < ask.take:
                piece = await anext(stream, END)
                if piece is END:
                    ended = True
                    break
                pieces.append(piece)
        finally:
            if not ask.drops:
                stream.close()
            self.judge.pieces(ask, pieces, ended=ended)

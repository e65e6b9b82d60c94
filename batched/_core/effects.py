"""What a driver does after a step of a batcher, without the lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from batched._core.call import Call
from batched._policy.chains import forget_variables


class Effects:
    """What follows from a step: a batcher collects it here, and a driver takes it and leaves a new one.

    To do any of it twice does no harm.
    """

    __slots__ = ("answered", "gone", "has_moved", "landed", "let_in", "released")

    def __init__(self) -> None:
        self.answered: list[Call] = []
        """Calls that have their answer, and streams that have a new piece: their callers are to be woken."""
        self.let_in: list[Call] = []
        """Calls that have waited for room and now are in the queue. Their callers are told with the lock."""
        self.released: list[Call] = []
        """Calls that have ended: their inputs are to be released."""
        self.gone: list[Call | BaseException | Callable[[], object]] = []
        """What is kept until the lock is free: calls, as the finalizer of an item may call the batcher,
        errors of batches that run again, and what is to be called."""
        self.landed: list[Any] = []
        """Results to be stored in the cache, before their callers are woken."""
        self.has_moved: bool = False
        """Whether calls have left the inbox since `wake_after` was set, so that it is too many."""

    def put_back(self, others: Effects) -> None:
        """Have what an error has broken off be done after the next step."""
        self.answered[:0] = others.answered
        self.let_in[:0] = others.let_in
        self.released[:0] = others.released
        self.gone[:0] = others.gone
        self.landed[:0] = others.landed
        self.has_moved = True


def let_go(gone: Iterable[object]) -> None:
    """Call what is to be called, and have the errors that a batcher drops hold nothing of the function's.

    Not under a lock: a handler of the log, or the finalizer of a variable, may call the batcher.
    """
    for each in gone:
        with suppress(Exception):  # of such a handler: callers wait for their answers
            if isinstance(each, BaseException):
                forget_variables(each)
            elif callable(each):
                each()

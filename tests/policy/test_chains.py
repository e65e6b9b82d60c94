"""What the frames of errors hold is let go, and nothing that still runs or rests is ended."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any
from weakref import ref

from batched._policy.chains import forget_variables


class Held:
    """What a function has in a variable."""


def test_what_the_frames_of_an_error_hold_is_let_go() -> None:
    """Also of the errors that led to it, hidden or not, and of coroutines that have ended."""
    held: list[ref[Held]] = []

    def hold() -> Held:
        mine = Held()
        held.append(ref(mine))
        return mine

    def inner() -> None:
        mine = hold()
        raise KeyError(repr(mine))

    async def outer() -> None:
        mine = hold()
        try:
            inner()
        except KeyError:
            raise ValueError(repr(mine)) from None

    error = raised_by(lambda: outer().send(None))
    assert [each() is not None for each in held] == [True, True]
    forget_variables(error)
    assert [each() for each in held] == [None, None]
    assert error.__traceback__ is not None  # it still says where it was raised


def raised_by(function: Callable[[], object]) -> Exception:
    """Return what `function` raises."""
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError


def test_what_has_caught_the_error_and_rests_goes_on() -> None:
    """A function may raise anew the error of a task in the background."""

    def resting(known: list[Exception]) -> Generator[str, None, None]:
        mine = "kept"
        while True:
            try:
                yield mine
                raise ValueError(mine)
            except ValueError as error:
                known.append(error)

    @coroutine
    def pause() -> Generator[str, None, None]:
        yield "paused"

    async def waiting(known: list[Exception]) -> None:
        mine = "kept"
        while True:
            try:
                await pause()
                raise ValueError(mine)
            except ValueError as error:
                known.append(error)

    for make in (resting, waiting):
        known: list[Exception] = []
        rests: Generator[Any, Any, Any] | Coroutine[Any, Any, Any] = make(known)
        rests.send(None)
        rests.send(None)
        forget_variables(known[0])
        assert rests.send(None) in {"kept", "paused"}
        assert str(known[1]) == "kept"
        rests.close()

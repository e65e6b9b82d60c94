"""Elements that fail later, sources that fail, and a batcher that ends under a map."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import batched
from batched import BatchError, ClosedError
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.maps import BAD, noted, picky, read, slowly
from tests.kit.threads import together


def test_an_element_that_is_late_fails_at_its_place(flavour: Flavour) -> None:
    """A deadline holds for each element, so its error is one of the element's own."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0)
    running = flavour.start(fn, 0)
    gate.wait_for_batch()
    answers, error = read(flavour, fn.options(deadline_ms=1, return_exceptions=True), range(5))
    assert (error, [type(answer) for answer in answers]) == (None, [TimeoutError] * 5)
    answers, error = read(flavour, fn.options(deadline_ms=1), range(5))
    assert (answers, type(error)) == ([], TimeoutError)
    gate.open()
    assert running.result(PATIENCE_S) == 0


@pytest.mark.parametrize("wrong", [7, None, len])
def test_a_source_that_is_no_iterable_is_named_with_the_map(flavour: Flavour, wrong: Any) -> None:
    fn = flavour.decorate(lambda items: items, name="embed")
    for sources in ((wrong,), ([1], wrong)):
        with pytest.raises(TypeError, match=r"^embed.a?map takes a list of items, or another iterable, got "):
            flavour.map(fn, *sources)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"return_exceptions": True}, r"an option of calls: fn\.options\(return_exceptions=\.\.\.\)$"),
        ({"timeout": 5}, r"did you mean 'deadline_ms'\?\), which is an option of calls: "),
        ({"items": [1]}, r", got items=\[1\]$"),
    ],
)
def test_what_a_map_does_not_take_is_told_with_the_remedy(
    flavour: Flavour, named: dict[str, Any], message: str
) -> None:
    """With or without a source: never with the name of a class that users do not know."""
    fn: Any = flavour.decorate(lambda items: items, name="embed")
    for way in {"map", "amap"} & {*dir(fn)}:
        for sources in ((), ([1],)):
            with pytest.raises(TypeError, match=rf"^embed\.{way} takes .*{message}"):
                getattr(fn, way)(*sources, **named)
        with pytest.raises(TypeError, match=rf"^embed\.{way} takes .*, got nothing$"):
            getattr(fn, way)()


def test_an_error_of_a_source_as_it_begins_stays_its_own(flavour: Flavour) -> None:
    class Failing:
        def __iter__(self) -> Any:
            raise TypeError("its own")

    fn = flavour.decorate(lambda items: items)
    with pytest.raises(TypeError, match=r"^its own$"):
        flavour.map(fn, Failing())


def test_an_asynchronous_source_of_a_map_is_told_of_amap() -> None:
    async def source() -> AsyncIterator[int]:
        yield 1

    fn: Any = batched.dynamically(lambda items: items)
    with pytest.raises(TypeError, match="an asynchronous one is for amap"):
        fn.map(source())


def test_errors_of_the_source_are_raised_even_if_errors_are_returned(flavour: Flavour) -> None:
    """After the answers before them."""

    def source() -> Iterator[Any]:
        yield from [1, BAD, 3]
        raise OSError("no more")

    fn = flavour.decorate(lambda items: items, timeout_ms=0, length=picky)
    answers, error = read(flavour, fn.options(return_exceptions=True), source())
    assert [type(answer) for answer in answers] == [int, BatchError, int]
    assert isinstance(error, OSError)
    answers, error = read(flavour, fn, source())
    assert (answers, type(error)) == ([1], BatchError)


@pytest.mark.parametrize("view", [{}, {"return_exceptions": True}])
def test_what_is_read_after_the_end_is_refused_after_the_answers_before_it(
    flavour: Flavour, view: dict[str, Any]
) -> None:
    """What has been read by then is answered, and nothing more is read."""
    fn = flavour.decorate(Gate(), batch_size=2, timeout_ms=0)
    seen: list[int] = []
    answers: list[Any] = []
    at_close: list[int] = []

    async def consume() -> None:
        async for answer in fn.options(**view).amap(noted(range(100), seen)):
            if not answers:
                await fn.aclose()
                at_close.extend(seen)
            answers.append(answer)

    def consume_here() -> None:
        for answer in fn.options(**view).map(noted(range(100), seen)):
            if not answers:
                flavour.close(fn)
                at_close.extend(seen)
            answers.append(answer)

    with pytest.raises(ClosedError):  # noqa: PT012
        if flavour.in_tasks:
            flavour.run(consume())
        else:
            consume_here()
    assert answers == at_close
    assert len(seen) <= len(at_close) + 2


def test_the_end_of_the_batcher_is_no_error_of_an_element(flavour: Flavour) -> None:
    """Not even if it comes while an element is taken: it is raised, and not returned in a place."""
    flavour.needs_threads()

    def measure(item: int) -> int:
        if item == 3:
            fn.shutdown(wait=False)
        return 1

    fn = flavour.decorate(Gate(), batch_size=1, timeout_ms=0, length=measure)
    items = slowly(range(6)) if flavour.in_tasks else range(6)
    answers, error = read(flavour, fn.options(return_exceptions=True), items)
    assert answers in ([0, 1, 2], [0, 1, 2, 3])  # the last one, if the worker had not ended yet
    assert isinstance(error, ClosedError)


def test_the_error_of_a_source_keeps_nothing_alive_once_it_is_dropped(flavour: Flavour) -> None:
    """Its traceback leads to what was read, but not to itself."""

    class Thing:
        pass

    things: list[weakref.ref[Thing]] = []

    def source() -> Iterator[int]:
        thing = Thing()
        things.append(weakref.ref(thing))
        yield 1
        raise OSError("no more")

    fn = flavour.decorate(lambda items: items, timeout_ms=0)

    async def consume() -> None:
        with contextlib.suppress(OSError):
            async for _ in fn.amap(source()):
                pass

    gc.disable()
    try:
        if flavour.in_tasks:
            flavour.run(consume())
        else:
            with contextlib.suppress(OSError):
                for _ in fn.map(source()):
                    pass
        until(lambda: things[0]() is None)
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
@pytest.mark.parametrize("return_exceptions", [False, True])
def test_an_error_that_would_seem_the_end_comes_as_another(
    flavour: Flavour, return_exceptions: bool, kind: type[Exception]
) -> None:
    """In a loop over the answers. It says which item it belongs to, as any other does."""

    def function(items: list[int]) -> list[Any]:
        return [kind("of the function") for _ in items]

    fn = flavour.decorate(function, batch_size=1, timeout_ms=0)
    if return_exceptions:
        (error,) = flavour.map(fn.options(return_exceptions=True), [1])
        assert isinstance(error, kind)
    else:
        answers, raised = read(flavour, fn, [1])
        assert answers == []
        assert isinstance(raised, BatchError)
        assert isinstance(raised.__cause__, kind)
        assert raised.__notes__[0].startswith("item 1 of a map of ")


def test_a_map_near_the_recursion_limit_is_whole_or_raises() -> None:
    """Wherever the error comes: it is not taken for the end of the source."""
    fn = batched.dynamically(lambda items: items, timeout_ms=0)
    list(fn.map(range(3)))
    answered: list[list[int]] = []

    def descend() -> None:
        with contextlib.suppress(RecursionError):
            descend()
        with contextlib.suppress(RecursionError, BatchError):
            answered.append(list(fn.map(range(3))))

    together(1, lambda _: descend())
    assert answered
    assert all(answer == [0, 1, 2] for answer in answered)

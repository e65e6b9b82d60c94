"""How far a map reads ahead, how long it is, and that it is an iterator."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

import pytest
import tqdm
import tqdm.asyncio

import batched
from batched import BatchError
from tests.kit.flavours import Flavour
from tests.kit.gate import Gate
from tests.kit.maps import BAD, noted, picky, read

# -- how far it reads ahead -----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"max_queue_size": 10}, {"max_queue_size": 5, "on_full": "wait"}])
@pytest.mark.parametrize("sizes", [(4, 4), (32, 2), (2, 32), (7, 3)])
def test_it_reads_three_batches_ahead_also_after_configure(
    flavour: Flavour, sizes: tuple[int, int], options: dict[str, Any]
) -> None:
    """Of the size that holds by then; a map that has begun follows, too."""
    before, after = sizes
    fn = flavour.decorate(lambda items: items, batch_size=before, timeout_ms=0, **options)
    seen: list[int] = []
    most = 3 * before
    changed_at = 40
    ahead: list[tuple[int, int]] = []  # how many are read and not answered, and how many may be

    def note(answer: int) -> None:
        nonlocal most
        if answer == changed_at:
            fn.configure(batch_size=after)
            most = 3 * max(sizes)
        if answer >= changed_at + 3 * before:  # what had been read is answered by now
            most = 3 * after
        ahead.append((len(seen) - answer, most))

    async def consume() -> None:
        async for answer in fn.amap(noted(range(300), seen)):
            note(answer)

    if flavour.in_tasks:
        flavour.run(consume())
    else:
        for answer in fn.map(noted(range(300), seen)):
            note(answer)
    assert len(ahead) == 300
    assert all(items <= bound for items, bound in ahead), ahead
    seen.clear()
    most = 3 * after
    changed_at = -1
    ahead.clear()
    if flavour.in_tasks:
        flavour.run(consume())
    else:
        for answer in fn.map(noted(range(300), seen)):
            note(answer)
    assert all(items <= 3 * after for items, _ in ahead)


# -- how long it is -------------------------------------------------------------------------------------


class Unwilling:
    """A source whose length cannot be asked."""

    def __len__(self) -> int:
        raise ZeroDivisionError

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


def made(flavour: Flavour, fn: Any, *sources: Any) -> Any:
    """Return an unread `map` or `amap`."""
    return fn.amap(*sources) if flavour.in_tasks else fn.map(*sources)


def test_the_answers_are_as_many_as_the_source_has_elements(flavour: Flavour) -> None:
    """Of several sources the shortest; none are said where a source does not say its own."""
    fn = flavour.decorate(lambda items: items, timeout_ms=0)
    for source in (range(7), [1] * 7, iter([1] * 7), dict.fromkeys(range(7))):
        answers = made(flavour, fn, source)
        assert (len(answers), operator.length_hint(answers)) == (7, 7)
    for unknown in ((x for x in range(7)), Unwilling(), range(10**30)):
        answers = made(flavour, fn, unknown)
        assert operator.length_hint(answers, 99) == 99
    pair = flavour.decorate(lambda xs, ys: xs, timeout_ms=0)
    assert len(made(flavour, pair, range(7), [1, 2])) == 2
    assert operator.length_hint(made(flavour, pair, range(7), (x for x in range(9))), 99) == 99
    assert read(flavour, fn, Unwilling()) == ([1, 2], None)


def test_the_length_is_of_what_is_still_to_come(flavour: Flavour) -> None:
    """It is 0 after the end, be that an error or the consumer's leaving."""
    fn = flavour.decorate(lambda items: items, batch_size=2, timeout_ms=0, length=picky)

    async def lengths(items: list[Any], leave_at: int) -> list[int]:
        answers = fn.amap(items)
        found = [len(answers)]
        with contextlib.suppress(BatchError):
            async for answer in answers:
                found.append(len(answers))
                if answer == leave_at:
                    await answers.aclose()
        return [*found, len(answers)]

    def lengths_here(items: list[Any], leave_at: int) -> list[int]:
        answers = fn.map(items)
        found = [len(answers)]
        with contextlib.suppress(BatchError):
            for answer in answers:
                found.append(len(answers))
                if answer == leave_at:
                    answers.close()
        return [*found, len(answers)]

    for items, leave_at, expected in [
        ([1, 2, 3], 0, [3, 2, 1, 0, 0]),
        ([1, BAD, 3], 0, [3, 2, 0]),
        ([1, 2, 3], 1, [3, 2, 0]),
    ]:
        found = flavour.run(lengths(items, leave_at)) if flavour.in_tasks else lengths_here(items, leave_at)
        assert found == expected


def test_tqdm_shows_a_bar(flavour: Flavour) -> None:
    """It knows the total, and ends at it."""
    fn = flavour.decorate(lambda items: items, timeout_ms=0)

    async def consume() -> tuple[Any, int]:
        bar = tqdm.asyncio.tqdm(fn.amap(range(50)), file=Silent())
        answers = [answer async for answer in bar]
        assert answers == list(range(50))
        return bar.total, bar.n

    if flavour.in_tasks:
        assert flavour.run(consume()) == (50, 50)
        return
    bar = tqdm.tqdm(fn.map(range(50)), file=Silent())
    assert list(bar) == list(range(50))
    assert (bar.total, bar.n) == (50, 50)


class Silent:
    """A file that forgets."""

    def write(self, _: str) -> None:
        """Forget a text."""

    def flush(self) -> None:
        """Do nothing."""


def test_a_map_is_an_iterator_whatever_its_source() -> None:
    """It can be asked for one answer, read on, and closed."""
    gate = Gate()
    with batched.dynamically(gate, batch_size=2, timeout_ms=0) as fn:
        for source in (range(20), iter(range(20)), (x for x in range(20))):
            answers: Any = fn.map(source)
            assert iter(answers) is answers
            assert next(answers) == 0
            assert [next(answers) for _ in range(3)] == [1, 2, 3]
            answers.close()
            assert list(answers) == []

"""`map` and `amap`: every element is answered in order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kit.errors import OwnError
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate


def test_map_answers_every_item_in_order(flavour: Flavour) -> None:
    """Each element is one item, even a list; any iterable will do."""
    fn = flavour.decorate(Gate(), batch_size=4, timeout_ms=0)
    assert flavour.map(fn, range(50)) == list(range(50))
    assert flavour.map(fn, iter([[1], [2, 3], None])) == [[1], [2, 3], None]
    assert flavour.map(fn, []) == []
    assert flavour.map(fn.options(deadline_ms=20_000), range(50)) == list(range(50))


def test_a_failing_item_of_map_raises_at_its_place(flavour: Flavour) -> None:
    """What comes before it is there, and with `return_exceptions` what comes after it too."""
    fn = flavour.decorate(lambda xs: [OwnError(x) if x == 5 else x for x in xs], batch_size=4, timeout_ms=0)
    seen = []

    def source() -> Any:
        for item in range(20):
            seen.append(item)
            yield item

    with pytest.raises(OwnError, match="code 5"):
        flavour.map(fn, source())
    assert len(seen) < 20
    rows = flavour.map(fn.options(return_exceptions=True), range(8))
    assert [type(row) is OwnError for row in rows] == [row == 5 for row in range(8)]


def test_an_error_of_the_source_comes_after_the_answers_before_it(flavour: Flavour) -> None:
    """As with the builtin map."""

    def source() -> Any:
        yield from range(6)
        raise OSError("no more")

    fn = flavour.decorate(Gate(), batch_size=4, timeout_ms=0)
    if flavour.in_tasks:
        with pytest.raises(OSError, match="no more"):
            flavour.map(fn, source())
        return
    answers = fn.map(source())
    assert [next(answers) for _ in range(6)] == list(range(6))
    with pytest.raises(OSError, match="no more"):
        next(answers)


def test_an_async_source_may_be_cancelled_from_inside(flavour: Flavour) -> None:
    """Whatever it raises reaches the consumer after the answers before it; nothing waits for ever."""
    if not flavour.in_tasks:
        pytest.skip("only `amap` has one")
    fn = flavour.decorate(Gate(), timeout_ms=0)

    async def consume(error: BaseException) -> list[Any]:
        async def source() -> Any:
            yield 1
            raise error

        seen: list[Any] = []
        try:
            async for answer in fn.amap(source()):
                seen.append(answer)
        except BaseException as caught:
            seen.append(type(caught))
        return seen

    for error in (asyncio.CancelledError(), BaseException("x"), GeneratorExit(), OSError()):
        seen = asyncio.run(asyncio.wait_for(consume(error), PATIENCE_S))
        assert seen == [1, type(error)]

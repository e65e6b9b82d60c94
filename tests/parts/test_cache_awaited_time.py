"""Caches that callers await: how long they take, and callers that leave meanwhile."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from batched._parts.in_flight import Watch
from tests.kit.gate import turns, turns_until
from tests.kit.kept import driver_of, kept_by
from tests.kit.remote import Model, Remote, check_counts


async def whether_it_listens_or_not(check: Any) -> None:
    """Check a cache that listens to a cancel, and one that does not, at once: each waits for its deadline."""
    await asyncio.gather(check(listens=True), check(listens=False))


def test_the_time_of_a_get_counts_into_the_deadline(run: Any, decorate: Any) -> None:
    """Of one that never answers, even if it does not listen to a cancel; the call counts as expired."""

    async def check(*, listens: bool) -> None:
        remote, model = Remote({"a": "A"}), Model()
        remote.held |= {("get", "b"), ("get", "e")}
        remote.listens = listens
        fn = decorate(model, remote)
        hasty = fn.options(deadline_ms=30)
        with pytest.raises(TimeoutError, match="f did not answer within deadline_ms=30"):
            await hasty("b")
        with pytest.raises(TimeoutError):
            await fn.options(deadline_ms=250)(["a", "b", "c"])  # time enough for "a", on a busy machine
        with pytest.raises(TimeoutError):
            await hasty.options(return_exceptions=True)("b")
        patient = fn.options(deadline_ms=500)

        async def raised() -> None:
            answers = patient.amap(["a", "b", "c"])
            assert await anext(answers) == "A"
            with pytest.raises(TimeoutError):
                await anext(answers)

        async def returned() -> None:
            view = patient.options(return_exceptions=True)
            assert [type(answer) async for answer in view.amap(["a", "e", "a"])] == [str, TimeoutError, str]

        await asyncio.gather(raised(), returned())  # at once: each waits for its deadline
        assert not {"b", "e"} & {*model.ran}
        await turns_until(lambda: fn.stats.total_expired == 1 + 2 + 1 + 1 + 1)
        assert await fn("d") == ("out", "d")
        remote.opened.set()
        await turns()
        check_counts(fn, expired=6)
        await fn.aclose()

    run(whether_it_listens_or_not(check))


def test_a_set_does_not_delay_the_answer_beyond_the_deadline(run: Any, decorate: Any) -> None:
    """The answer is there, and is given; only the cache does without."""

    async def check(*, listens: bool) -> None:
        remote, model = Remote(), Model()
        remote.held |= {("set", number) for number in range(4)}
        remote.listens = listens
        fn = decorate(model, remote)
        hasty = fn.options(deadline_ms=1000)

        async def mapped() -> list[Any]:
            return [answer async for answer in hasty.amap(["b", 2])]

        # At once: each waits for its deadline.
        calls = hasty(0), hasty(["a", 1]), mapped(), hasty([3, "bad"])
        *answers, failed = await asyncio.gather(*calls, return_exceptions=True)
        assert answers == [("out", 0), [("out", "a"), ("out", 1)], [("out", "b"), ("out", 2)]]
        assert isinstance(failed, KeyError)
        assert remote.kept == {"a": ("out", "a"), "b": ("out", "b")}
        check_counts(fn, expired=0)
        remote.opened.set()
        await turns()
        await fn.aclose()

    run(whether_it_listens_or_not(check))


def watched(fn: Any) -> list[Any]:
    """Return what the cache of `fn` knows of results that have landed, or that callers are asking for."""
    references = kept_by(driver_of(fn).collator, weakref.ref)
    return [each for each in references if isinstance(each(), Watch)]


def test_a_caller_may_leave_while_its_result_is_stored(run: Any, decorate: Any) -> None:
    """At once; the next asks and runs as if nothing had been."""

    async def main() -> None:
        remote, model = Remote(), Model()
        remote.held |= {("set", "a")}
        fn = decorate(model, remote)
        leaving = asyncio.create_task(fn("a"))
        await remote.until_asked("set", "a")
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        # The worker may be about to forget the call: until then its result is found there.
        await turns_until(lambda: not watched(fn))
        remote.opened.set()
        assert await fn("a") == ("out", "a")
        assert (model.ran, remote.kept) == (["a", "a"], {"a": ("out", "a")})
        await fn.aclose()

    run(main())


def test_a_consumer_that_leaves_a_map_leaves_no_error_behind(run: Any, decorate: Any) -> None:
    """Elements that were late before the consumer came to them are no fault to be logged."""

    async def main() -> None:
        faults: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        remote = Remote({"a": "A"})
        remote.held |= {("get", key) for key in "bcd"}
        fn = decorate(Model(), remote)
        answers = fn.options(deadline_ms=500).amap("abcd")
        assert await anext(answers) == "A"
        await turns_until(lambda: fn.stats.total_expired == 3)
        await answers.aclose()
        del answers
        await turns()
        gc.collect()
        assert not faults
        await fn.aclose()

    run(main())

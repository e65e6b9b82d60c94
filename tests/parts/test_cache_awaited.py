"""Caches that callers await: what `get` and `set` return, what lands meanwhile, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from batched import ClosedError, QueueFullError, aio
from tests.kit.gate import turns_until
from tests.kit.remote import Model, Remote, check_counts

# -- what may be awaited --------------------------------------------------------------------------------


class Returning(Remote):
    """Its functions are plain, and return what can be awaited; `[]` raises: so are clients of Redis."""

    def get(self, key: Any) -> Any:
        return super().get(key)

    def set(self, key: Any, value: Any) -> Any:
        return super().set(key, value)

    def __getitem__(self, key: Any) -> Any:
        raise TypeError("not supported")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("not supported")


class Futures(Remote):
    """Its functions are plain, and return tasks."""

    def get(self, key: Any) -> Any:
        return asyncio.ensure_future(super().get(key))

    def set(self, key: Any, value: Any) -> Any:
        return asyncio.ensure_future(super().set(key, value))


class Tiered(Remote):
    """What it has at hand it returns, what it has not it returns a coroutine for."""

    def get(self, key: Any) -> Any:
        return self.kept[key] if key in self.kept else super().get(key)

    def set(self, key: Any, value: Any) -> Any:
        self.kept[key] = value


@pytest.mark.parametrize("kind", [Remote, Returning, Futures, Tiered])
def test_what_get_and_set_return_is_awaited_if_it_can_be(run: Any, decorate: Any, kind: Any) -> None:
    """Whatever kind of functions they are; what they know does not run, what they do not is kept."""

    async def main() -> None:
        remote, model = kind({"b": "B"}), Model()
        fn = decorate(model, remote)
        assert await fn(["a", "b", "a"]) == [("out", "a"), "B", ("out", "a")]
        assert remote.kept == {"a": ("out", "a"), "b": "B"}
        assert await fn("a") == ("out", "a")
        assert [answer async for answer in fn.amap(["b", "c", "a"])] == ["B", ("out", "c"), ("out", "a")]
        assert model.ran == ["a", "c"]
        check_counts(fn, accepted=2, cached=5)
        await fn.aclose()

    run(main())


# -- what lands meanwhile -------------------------------------------------------------------------------


@pytest.mark.parametrize("by_map", [False, True])
def test_what_lands_while_a_caller_asks_for_other_items_does_not_run_twice(
    run: Any, decorate: Any, by_map: bool
) -> None:
    """It has asked for the one item, and still asks for the other."""

    async def main() -> None:
        remote, model = Remote(), Model()
        remote.held |= {("get", "b")}
        fn = decorate(model, remote)

        async def ask() -> Any:
            return [answer async for answer in fn.amap("ab")] if by_map else await fn(["a", "b"])

        slow = asyncio.create_task(ask())
        await remote.until_asked("get", "b")
        assert await fn(["a", "c"]) == [("out", "a"), ("out", "c")]
        remote.opened.set()
        assert await slow == [("out", "a"), ("out", "b")]
        assert sorted(model.ran) == ["a", "b", "c"]
        check_counts(fn, accepted=3, cached=1)
        await fn.aclose()

    run(main())


def test_what_has_landed_and_is_being_stored_does_not_run_again(run: Any, decorate: Any) -> None:
    """A caller that comes meanwhile is answered at once, though the cache does not know yet."""

    async def main() -> None:
        remote, model = Remote(), Model()
        remote.held |= {("set", "a")}
        fn = decorate(model, remote)
        first = asyncio.create_task(fn("a"))
        await remote.until_asked("set", "a")
        assert await fn("a") == ("out", "a")
        assert await fn(["b", "a"]) == [("out", "b"), ("out", "a")]
        assert model.ran == ["a", "b"]
        remote.opened.set()
        assert await first == ("out", "a")
        assert remote.kept.keys() == {"a", "b"}
        await fn.aclose()

    run(main())


def test_results_are_remembered_no_longer_than_a_caller_asks_for_them(run: Any, decorate: Any) -> None:
    """What the cache has forgotten since runs again: after an answer, a cancel, an error that is kept."""

    async def main() -> None:
        remote, model = Remote(), Model()
        fn = decorate(model, remote)
        await fn(["a", "b"])
        with pytest.raises(KeyError) as kept:
            await fn(["c", "bad"])
        remote.held |= {("set", "d")}
        leaving = asyncio.create_task(fn("d"))
        await remote.until_asked("set", "d")
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        remote.opened.set()
        for item in "abcd":
            remote.kept.clear()
            await fn(item)
        assert model.ran == ["a", "b", "c", "bad", "d", "a", "b", "c", "d"]
        assert kept.value.__traceback__ is not None
        await fn.aclose()

    run(main())


# -- what a cache refuses -------------------------------------------------------------------------------


def test_a_key_and_a_result_that_the_cache_refuses_concern_no_other(
    run: Any, decorate: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are looked up and kept; one line is logged for each call."""

    async def main() -> None:
        remote, model = Remote({"b": "B"}), Model()
        remote.refused |= {"a", "c"}
        fn = decorate(model, remote)
        assert await fn(["a", "b", "c", "d"]) == [("out", "a"), "B", ("out", "c"), ("out", "d")]
        assert remote.kept == {"b": "B", "d": ("out", "d")}
        assert model.ran == ["a", "c", "d"]
        await fn.aclose()

    run(main())
    assert [record.getMessage() for record in caplog.records if record.name == "batched"] == [
        "f: the cache failed for 2 key(s)",
        "f: the cache failed for 2 result(s), which were not stored",
    ]


def test_what_has_worked_is_kept_though_its_caller_gets_an_error(run: Any, decorate: Any) -> None:
    """A list with one item that fails."""

    async def main() -> None:
        remote, model = Remote(), Model()
        fn = decorate(model, remote)
        with pytest.raises(KeyError):
            await fn(["a", "bad", "b"])
        assert await fn.options(return_exceptions=True)(["c", "bad"]) != []
        assert remote.kept.keys() <= {"a", "b", "c"}
        assert "c" in remote.kept
        assert "a" in remote.kept
        await fn.aclose()

    run(main())


# -- at the door ----------------------------------------------------------------------------------------


def test_a_cache_is_not_asked_for_a_call_that_is_refused(run: Any, decorate: Any) -> None:
    """After `aclose`."""

    async def main() -> None:
        remote = Remote()
        fn = decorate(Model(), remote)
        assert await fn("a") == ("out", "a")
        await fn.aclose()
        remote.asked.clear()
        for call in (fn("b"), fn(["a", "b"])):
            with pytest.raises(ClosedError):
                await call
        assert remote.asked == []

    run(main())


def test_a_full_queue_refuses_what_the_cache_does_not_know(run: Any) -> None:
    """What it knows is answered all the same, and a later caller is let in."""

    async def main() -> None:
        opened = asyncio.Event()

        async def function(items: list[Any]) -> list[Any]:
            await opened.wait()
            return items

        remote = Remote({"known": "K"})
        fn = aio.dynamically(function, batch_size=1, timeout_ms=0, cache=remote, max_queue_size=1)
        tasks = [asyncio.create_task(fn("a"))]
        await turns_until(lambda: fn.stats.running_items)
        tasks.append(asyncio.create_task(fn("b")))
        await turns_until(lambda: fn.stats.queue_size)
        with pytest.raises(QueueFullError):
            await fn("c")
        assert await fn("known") == "K"
        opened.set()
        assert await asyncio.gather(*tasks, fn("a")) == ["a", "b", "a"]

    run(main())

"""Lists, maps and callers that leave, with a cache that callers await."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from batched import aio
from tests.kit.gate import AsyncGate, turns


class Remote:
    """A cache whose answers wait at a gate."""

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}
        self.asked = asyncio.Semaphore(0)
        self.opened = asyncio.Event()
        self.opened.set()

    async def get(self, key: Any) -> Any:
        self.asked.release()
        await self.opened.wait()
        return self.kept.get(key)

    async def set(self, key: Any, value: Any) -> None:
        self.kept[key] = value


def test_lists_run_only_what_an_asynchronous_cache_does_not_know(run: Any) -> None:
    """In order; failures are not kept; equal items in flight run once."""

    async def main() -> None:
        remote = Remote()
        remote.kept["b"] = "B"
        gate = AsyncGate(lambda items: [OSError(x) if x == "bad" else x.upper() for x in items], shut=False)
        fn = aio.dynamically(gate, timeout_ms=0, cache=remote)
        assert await asyncio.gather(fn(["a", "b", "c"]), fn("c")) == [["A", "B", "C"], "C"]
        assert sorted(sum(gate.batches, [])) == ["a", "c"]
        with pytest.raises(OSError, match="bad"):
            await fn("bad")
        assert remote.kept == {"a": "A", "b": "B", "c": "C"}
        assert fn.stats.total_cached == 2

    run(main())


def test_a_map_asks_an_asynchronous_cache_and_keeps_what_it_did_not_know(run: Any) -> None:
    """Answers come in order; failures are raised at their place, and not kept."""

    async def main() -> None:
        remote = Remote()
        remote.kept.update({1: "one", 4: "four"})
        gate = AsyncGate(lambda items: [OSError(str(x)) if x == 7 else f"{x}" for x in items], shut=False)
        fn = aio.dynamically(gate, batch_size=3, timeout_ms=0, cache=remote)
        answers = []

        async def read() -> None:
            async for answer in fn.amap(range(9)):
                answers.append(answer)

        with pytest.raises(OSError, match="7"):
            await read()
        assert answers == ["0", "one", "2", "3", "four", "5", "6"]
        assert remote.kept.keys() >= {0, 1, 2, 3, 4, 5}
        assert 7 not in remote.kept
        ran = [item for batch in gate.batches for item in batch]
        assert not {1, 4} & set(ran)
        assert fn.stats.total_cached == 2
        assert [answer async for answer in fn.amap([4, 0, 1, 5])] == ["four", "0", "one", "5"]
        assert [item for batch in gate.batches for item in batch] == ran

    run(main())


def test_a_map_that_is_left_while_the_cache_is_asked_runs_nothing(run: Any) -> None:
    """Nothing of it is queued."""

    async def main() -> None:
        remote = Remote()
        remote.opened.clear()
        gate = AsyncGate(shut=False)
        fn = aio.dynamically(gate, batch_size=2, timeout_ms=0, cache=remote)
        answers = fn.amap(range(4))
        first = asyncio.ensure_future(anext(answers))
        await remote.asked.acquire()
        first.cancel()
        await turns()
        remote.opened.set()
        assert await fn(9) == 9
        assert gate.batches == [[9]]
        assert fn.stats.total_accepted == 1

    run(main())


def test_a_caller_that_leaves_while_the_cache_is_asked_never_runs(run: Any) -> None:
    """Nothing of it is queued; the next caller is answered."""

    async def main() -> None:
        remote = Remote()
        remote.opened.clear()
        gate = AsyncGate(shut=False)
        fn = aio.dynamically(gate, timeout_ms=0, cache=remote)
        gone = asyncio.create_task(fn(1))
        await remote.asked.acquire()
        gone.cancel()
        await turns()
        assert gone.cancelled()
        remote.opened.set()
        assert await fn(2) == 2
        assert gate.batches == [[2]]
        assert fn.stats.total_accepted == 1

    run(main())


@pytest.mark.parametrize("is_view", [False, True])
@pytest.mark.parametrize("leaver", [0, 1])
def test_a_result_is_kept_by_the_caller_that_still_waits_for_it(run: Any, leaver: int, is_view: bool) -> None:
    """Also if the caller that sent the item off has left, and others share the run; and of one request."""

    async def main() -> None:
        remote = Remote()
        gate = AsyncGate(lambda items: [item.upper() for item in items])
        fn: Any = aio.dynamically(gate, timeout_ms=0, cache=remote)
        if is_view:
            fn = fn.options(request_cache={})
        callers = [asyncio.create_task(fn("a"))]
        await gate.entered.acquire()
        callers.append(asyncio.create_task(fn("a")))
        await turns()
        callers[leaver].cancel()
        await turns()
        gate.opened.set()
        assert await callers[1 - leaver] == "A"
        assert remote.kept == {"a": "A"}
        assert gate.batches == [["a"]]

    run(main())


@pytest.mark.parametrize("late", ["new", None])
@pytest.mark.parametrize("other", ["run", "get"])
def test_a_request_sees_one_value_however_long_a_get_takes(run: Any, other: str, late: Any) -> None:
    """What another of its calls has got meanwhile counts, from a run or from the cache of the decorator."""

    async def main() -> None:
        held = asyncio.Event()
        answers: list[Any] = ["old" if other == "get" else None, late]

        class Shared:
            async def get(self, key: str) -> Any:
                if key == "held":
                    await held.wait()
                    return None
                return answers.pop(0)

            async def set(self, key: str, result: str) -> None:
                pass

        runs = iter([["old"], ["old", "other"]] if other == "run" else [["old", "other"]])
        gate = AsyncGate(lambda items: next(runs)[: len(items)])
        gate.opened.set()
        kept: dict[str, Any] = {}
        fn: Any = aio.dynamically(gate, timeout_ms=0, cache=Shared())
        view = fn.options(request_cache=kept)
        slow = asyncio.create_task(view(["held", "a"]))
        await turns()
        assert await view("a") == "old"
        held.set()
        assert await slow == ["old", "old"]
        assert kept["a"] == "old"

    run(main())

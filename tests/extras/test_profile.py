"""`batched.profile`: costs that are known are recovered, and the advice follows from them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import batched
import batched.inference
from batched import aio
from batched.profile import profile
from batched.testing import assert_independent


class Costly:
    """A batch function, and a clock that it turns on by what a batch costs, give or take a part."""

    def __init__(self, fixed: float, each: float, per_length: float = 0.0, noise: float = 0.0) -> None:
        self.costs = fixed, each, per_length
        self.noise = noise
        self.now = 0.0
        self.runs = 0

    def __call__(self, items: list[Any]) -> list[Any]:
        """Take as long as a batch does."""
        fixed, each, per_length = self.costs
        longest = max(map(len, items))
        self.runs += 1
        slower = 1 + self.noise * (self.runs % 3)
        self.now += (fixed + (each + per_length * longest) * len(items)) * slower
        return items

    def clock(self) -> float:
        """Return the time."""
        return self.now


TEXTS = ["x" * length for length in range(1, 65)]


@pytest.mark.parametrize(
    ("fixed", "each", "per_length"),
    [
        (0.004, 0.0001, 0.0),
        (0.02, 0.0001, 0.0),
        (0.001, 0.002, 0.0),
        (0.002, 0.0001, 0.00005),
        (0.0, 0.001, 0.0),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_known_costs_are_recovered(fixed: float, each: float, per_length: float, noise: float) -> None:
    """Within 5 %, though two of three runs take longer."""
    function = Costly(fixed, each, per_length, noise)
    found = profile(function, TEXTS, clock=function.clock)
    assert found.batch_ms == pytest.approx(fixed * 1000, rel=0.05, abs=1e-6)
    assert found.item_ms == pytest.approx(each * 1000, rel=0.05, abs=1e-6)
    assert found.length_ms == pytest.approx(per_length * 1000, rel=0.05, abs=1e-6)


@pytest.mark.parametrize("per_length", [0.0, 0.00005])
@pytest.mark.parametrize("late", range(3))
def test_few_items_are_enough_to_know_whether_length_matters(per_length: float, late: int) -> None:
    """Though one of the three batches of a size always takes a little longer."""
    function = Costly(0.004, 0.0002, per_length)
    looks = itertools.count()

    def clock() -> float:
        run = next(looks) // 2  # there are five of each batch
        function.now += 0.0001 * (run // 5 % 3 == late)
        return function.now

    found = profile(function, ["x" * 13, "x" * 27, "x" * 44], clock=clock)
    assert found.length_ms == pytest.approx(per_length * 1000, rel=0.05)
    assert ("Length matters" in found.advice()[-1]) is bool(per_length)


def test_the_advice_follows_from_the_costs() -> None:
    """The smallest size with which items are nearly as fast as they can be; and what callers can expect."""
    function = Costly(0.004, 0.0001)
    found = profile(function, TEXTS, clock=function.clock)
    assert found.pays
    assert found.batch_size == 128
    assert [each.size for each in found.measured] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert f"batch_size={found.batch_size}" in found.advice()[1]
    assert found.advice()[1].endswith("larger batches were not tried.")
    lone, *_, many = found.expected
    assert lone.latency_ms == pytest.approx(4.1, rel=0.05)
    assert many.items_per_s > 10 * many.alone_per_s
    assert many.batch > 32
    assert json.loads(json.dumps(found.as_dict()))["pays"]


@pytest.mark.parametrize("costs", [(0.004, 0.0002), (0.0005, 0.0001), (0.02, 0.001)])
def test_what_callers_can_expect_is_of_one_time(costs: tuple[float, float]) -> None:
    """Callers that never pause get as many items as their waits allow: neither counts the time before."""
    function = Costly(*costs)
    for each in profile(function, TEXTS, clock=function.clock).expected:
        assert each.items_per_s * each.latency_ms / 1000 == pytest.approx(each.callers, rel=0.02), each


@pytest.mark.parametrize(("length", "pays"), [("auto", True), (None, False)])
def test_batches_of_items_of_similar_length_may_pay_where_others_do_not(length: Any, pays: bool) -> None:
    """As the scheduler forms them, unless it is told not to."""
    function = Costly(0.002, 0.0001, 0.00002)
    texts = ["x" * ((at * 37 + 99) % 200 + 1) for at in range(200)]
    decorated = batched.dynamically(function, length=length, name="costly")
    found = profile(decorated, texts, sizes=[1, 2, 4, 8, 16, 32], clock=function.clock)
    assert found.pays is pays
    assert found.advice()[0].startswith("Do not batch") is not pays
    if pays:
        assert found.batch_size == 8
        assert found.gain == pytest.approx(4.11 / 2.36, rel=0.05)
        assert "items of similar length are" in found.advice()[1]


def test_lengths_are_those_that_the_option_measures() -> None:
    """Of items that have none themselves, and of some columns."""
    function = Costly(0.002, 0.0001, 0.00005)

    @batched.dynamically(length=lambda number: number)
    def one(numbers: list[int]) -> list[Any]:
        return function(["x" * number for number in numbers])

    @batched.dynamically(length=lambda text, number: number)
    def two(texts: list[str], numbers: list[int]) -> list[Any]:
        return function(["x" * number for number in numbers])

    sizes = range(1, 65)
    for decorated, items in ((one, list(sizes)), (two, [("same", number) for number in sizes])):
        found = profile(decorated, items, clock=function.clock)
        assert found.length_ms == pytest.approx(0.05, rel=0.05)


def test_larger_batches_that_take_far_longer_say_nothing_of_those_to_take() -> None:
    """As where they no longer fit into a cache: callers can expect what batches up to that size give."""
    function = Costly(0.003, 0.0005)

    def bends(items: list[Any]) -> list[Any]:
        function.costs = (0.003, 0.0005, 0.0) if len(items) <= 8 else (0.0, 0.005, 0.0)
        return function(items)

    found = profile(bends, ["same"], clock=function.clock)
    assert found.batch_size == 8
    assert found.advice()[1].endswith("larger batches gain little.")
    assert (found.batch_ms, found.item_ms) == pytest.approx((3, 0.5), rel=0.05)
    *_, many = found.expected
    assert many.alone_per_s == pytest.approx(1000 / 3.5, rel=0.05)
    assert many.items_per_s == pytest.approx(found.gain * many.alone_per_s, rel=0.1)


def test_what_gains_nothing_is_not_to_be_batched() -> None:
    """It is said in so many words."""
    function = Costly(0.0, 0.001)
    found = profile(function, TEXTS, clock=function.clock)
    assert not found.pays
    assert found.batch_size == 1
    assert found.advice()[0].startswith("Do not batch")


def test_what_takes_less_than_a_call_does_is_not_to_be_batched() -> None:
    """However much faster the function itself is on lists."""
    function = Costly(0.000005, 0.0000001)
    found = profile(function, TEXTS, clock=function.clock)
    assert found.gain > 10
    assert not found.pays
    (advice,) = found.advice()
    assert advice.endswith(
        "an item takes 0.0051 ms alone, and at best 0.000139 ms in a batch, to which a call adds 0.01 ms."
    )


def test_what_callers_can_expect_counts_their_calls() -> None:
    """A batch of many takes the time of many calls besides, as these are made one after another."""
    function = Costly(0.001, 0.00001)
    *_, many = profile(function, TEXTS, clock=function.clock).expected
    assert many.latency_ms == pytest.approx(1 + 128 * (0.01 + 0.01), rel=0.02)


def test_columns_coroutine_functions_and_decorated_ones() -> None:
    """Each is run as it is; sizes end at twice its `batch_size`."""
    sizes: list[int] = []

    @batched.dynamically(batch_size=4)
    async def pairs(lefts: list[str], rights: list[int]) -> list[str]:
        sizes.append(len(rights))
        return lefts

    steps: list[tuple[int, int]] = []
    found = profile(pairs, [("a", 1), ("b", 2)], repeats=1, progress=lambda *step: steps.append(step))
    assert [each.size for each in found.measured] == [1, 2, 4, 8]
    assert sizes == [1, 1, 2, 4, 8]
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
    ("items", "options", "error", "says"),
    [
        ([], {}, ValueError, "at least one"),
        (3, {}, TypeError, "must be a list of items, got 3"),
        (["a"], {"sizes": [0]}, ValueError, "at least 1"),
        (["a"], {"sizes": [1]}, ValueError, "one above 1"),
    ],
)
def test_what_cannot_be_tried_is_refused(
    items: list[str], options: dict[str, Any], error: type[Exception], says: str
) -> None:
    """At the door."""
    with pytest.raises(error, match=says):
        profile(list, items, **options)


def test_known_costs_of_arrays_are_recovered() -> None:
    """Within 5 %, of what is padded: the rows of all calls, of many or of one each."""
    now = 0.0

    @batched.inference.dynamically(batch_size=16)
    def costly(features: dict[str, Any]) -> Any:
        nonlocal now
        rows, longest = features["ids"].shape
        now += 0.002 + (0.0001 + 0.00005 * longest) * rows
        return features["ids"].sum(1)

    one_each = [{"ids": np.ones((1, length))} for length in range(1, 65)]
    several = [{"ids": np.ones((4, length))} for length in range(1, 65, 4)]
    for items in (one_each, several):
        found = profile(costly, items, clock=lambda: now)
        assert [each.size for each in found.measured] == [1, 2, 4, 8, 16, 32]
        assert found.batch_ms == pytest.approx(2, rel=0.05)
        assert found.item_ms == pytest.approx(0.1, rel=0.05)
        assert found.length_ms == pytest.approx(0.05, rel=0.05)


def test_arrays_that_share_no_batch_are_refused() -> None:
    """The first of them is named, by its place among the rows of all items."""

    @batched.inference.dynamically
    def arrays(features: dict[str, Any]) -> Any:
        return features["x"]

    with pytest.raises(ValueError, match="arrays: row 4 of the items has other features than the first"):
        profile(arrays, [{"x": np.ones((3, 1))}, {"y": np.ones((1, 1))}])


def test_items_of_unlike_keys_are_refused() -> None:
    """No service would run a batch of them, and its time would say nothing."""

    @batched.dynamically(group_by=len)
    def texts(items: list[str]) -> list[str]:
        return items

    with pytest.raises(ValueError, match="texts: item 3 of the items has another key of group_by, or other"):
        profile(texts, ["a", "b", "longer"])
    profile(texts, ["a", "b"], sizes=[2], repeats=1)

    @batched.dynamically
    def columns(lefts: list[str], rights: list[str] | None = None) -> list[str]:
        return lefts

    with pytest.raises(ValueError, match="columns: item 2 .* or other parameters, than the first"):
        profile(columns, [["a"], ["a", "b"]])

    @batched.inference.dynamically(group_by=lambda features: features["x"].shape)
    def arrays(features: dict[str, Any]) -> Any:
        return features["x"]

    with pytest.raises(ValueError, match="arrays: row 2 .* or another key of group_by: they share no batch"):
        profile(arrays, [{"x": np.ones((1, 1))}, {"x": np.ones((1, 2))}])


def test_fixed_sizes_are_the_only_ones_that_run() -> None:
    """By default these are tried; another one is filled up, as a batch of it would be."""
    sizes: list[int] = []

    @batched.dynamically(batch_sizes=(2, 8))
    def sized(items: list[str]) -> list[str]:
        sizes.append(len(items))
        return items

    found = profile(sized, ["a", "b"], repeats=1)
    assert [each.size for each in found.measured] == [1, 2, 8]
    assert set(sizes) == {2, 8}
    profile(sized, ["a", "b"], sizes=[3], repeats=1)
    assert set(sizes) == {2, 8}


@pytest.mark.parametrize("options", [{}, {"batch_sizes": (32,)}, {"batch_sizes": (8, 32)}])
def test_what_one_size_gains_is_known_however_few_are_tried(options: dict[str, Any]) -> None:
    """It is compared with an item alone, which is not guessed: of fixed sizes, alone in the smallest."""
    function = Costly(0.004, 0.0001)
    decorated = batched.dynamically(function, **options)
    found = profile(decorated, ["same"] * 32, sizes=[32], clock=function.clock)
    smallest = options.get("batch_sizes", (1,))[0]
    assert found.gain == pytest.approx(32 * (4 + 0.1 * smallest) / (4 + 0.1 * 32), rel=0.01)
    assert found.pays


@pytest.mark.parametrize("is_async", [False, True])
def test_all_stages_of_a_batch_count(is_async: bool) -> None:
    """What is prepared and finished takes its time, too; the function is given what is prepared."""
    now = 0.0

    def take(seconds: float) -> None:
        nonlocal now
        now += seconds

    def prepare(items: list[str]) -> int:
        take(0.001 * len(items))
        return len(items)

    def run(count: int) -> int:
        take(0.004)
        return count

    async def arun(count: int) -> int:
        return run(count)

    def finish(count: int) -> list[int]:
        take(0.002 * count)
        return [count] * count

    decorate = aio.dynamically if is_async else batched.dynamically
    function: Any = arun if is_async else run
    found = profile(
        decorate(function, prepare=prepare, finish=finish, batch_size=8), TEXTS, clock=lambda: now
    )
    assert found.batch_ms == pytest.approx(4, rel=0.05)
    assert found.item_ms == pytest.approx(3, rel=0.05)


def test_columns_with_other_options_and_streams_run_as_they_would() -> None:
    """Also where something is between: keys, a cache, a budget; a stream runs to its end."""

    @batched.dynamically(batch_size=2, cache={}, group_by=lambda left, right: right, max_batch_length=100)
    def pairs(lefts: list[str], rights: list[int]) -> list[str]:
        return lefts

    pieces: list[list[str]] = []

    def stream(items: list[str]) -> Iterator[list[str]]:
        for _ in range(3):
            pieces.append(items)
            assert (yield items) is None

    found = profile(pairs, [["a", 1], ["b", 1]], repeats=1)
    assert [each.size for each in found.measured] == [1, 2, 4]
    profile(stream, ["a"], sizes=[2], repeats=1)
    assert pieces == [["a"]] * 6 + [["a", "a"]] * 3


def test_a_function_of_another_process_is_refused() -> None:
    """It cannot run in this one, neither for a profile nor for other trials of its batches."""
    remote = batched.connect("unix:/tmp/there is no server.sock").embed
    with pytest.raises(TypeError, match="embed runs in its server, so no batch of it can be run here"):
        profile(remote, ["a"])
    with pytest.raises(TypeError, match="embed runs in its server, so no batch of it can be run here"):
        assert_independent(remote, ["a", "b"])


def test_errors_of_the_function_are_raised() -> None:
    """They are the user's to see."""

    def fail(items: list[str]) -> list[str]:
        raise KeyError(items[0])

    with pytest.raises(KeyError):
        profile(fail, ["a"])


def test_an_error_says_which_size_of_batch_has_failed() -> None:
    """And which have worked: of a model that has no memory for larger ones, these can be measured."""

    def small(items: list[str]) -> list[str]:
        if len(items) > 2:
            raise MemoryError("no room")
        return items

    with pytest.raises(MemoryError) as raised:
        profile(small, ["a"])
    assert raised.value.__notes__ == ["small was given a batch of 4, and worked for 1, 2"]


def test_a_function_may_change_its_items() -> None:
    """Each batch has copies, as each call has an item of its own in a service."""

    def taken_out(rows: list[dict[str, str]]) -> list[int]:
        return [len(row.pop("text")) for row in rows]

    items = [{"text": "a"}, {"text": "bb"}]
    profile(taken_out, items, sizes=(1, 2), repeats=2)
    assert items == [{"text": "a"}, {"text": "bb"}]


def test_a_function_that_is_refilled_is_told_which_items_have_ended() -> None:
    """And closed when none is left, as with callers: it need not end by itself."""
    live: list[int] = []

    @batched.dynamically(continuous=True)
    def count(items: list[int]) -> Iterator[list[Any]]:
        left = list(items)
        while True:
            live.append(len(left))
            change = yield [more or batched.DONE for more in left]
            left = [more - 1 for at, more in enumerate(left) if at not in change.left]

    profile(count, [2, 1], sizes=[2], repeats=1)
    assert live[-3:] == [2, 2, 1]


def test_a_plain_stream_is_closed_once_all_of_its_items_have_ended() -> None:
    """As with callers: it need not end by itself."""
    closed: list[bool] = []

    @batched.dynamically
    def count(items: list[int]) -> Iterator[list[Any]]:
        try:
            for step in range(100):
                yield [step if step < item else batched.DONE for item in items]
            closed.append(False)
        except GeneratorExit:
            closed.append(True)

    profile(count, [2, 1], sizes=[2], repeats=1)
    assert set(closed) == {True}


def test_a_function_that_answers_with_exceptions_only_is_not_measured() -> None:
    """What exceptions take says nothing of batches; where any item works, that is advice."""
    with pytest.raises(ValueError, match=r"answered each item with an exception, at last KeyError\('b'\)"):
        profile(lambda items: [KeyError(item) for item in items], ["b"])
    some = profile(lambda items: [KeyError(item) if item == "b" else item for item in items], ["b", "c"])
    assert some.measured

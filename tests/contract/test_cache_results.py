"""A caller may change its result and its items, and no other caller meets the change."""

from __future__ import annotations

import io
from array import array
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.kit.company import Readable
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until


def test_results_belong_to_their_caller(flavour: Flavour) -> None:
    """What a caller does to an array, a list or a dict reaches neither the cache nor another caller."""
    gate = Gate(lambda items: [{"a": np.zeros(2), "l": [1.0, [2]], "s": {1}} for _ in items])
    fn = flavour.decorate(gate, timeout_ms=0, cache={})
    for _ in range(3):
        answer = flavour.call(fn, "x")
        assert (answer["a"].tolist(), answer["l"], answer["s"]) == ([0, 0], [1.0, [2]], {1})
        answer["a"][:] = 1
        answer["l"].append(3)
        answer["l"][1].append(3)
        answer["s"].add(2)
        answer["b"] = 1
    first, second = flavour.call(fn, ["y", "y"])
    assert first["a"] is not second["a"]
    assert len(gate.batches) == 2


class Pair(NamedTuple):
    """Two results."""

    first: Any
    second: Any


class Boxes(list[Any]):
    """A list of a class of its own."""


CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "named tuple": lambda x: Pair(x, x + 1),
    "ordered dict": lambda x: OrderedDict(y=x),
    "mapping": lambda x: UserDict(y=x),
    "list of a class": lambda x: Boxes([x]),
    "nested": lambda x: {"y": Pair(x, [x])},
}


def array_in(answer: Any) -> Any:
    """Return the first array in an answer."""
    while not isinstance(answer, np.ndarray):
        answer = answer["y"] if isinstance(answer, Mapping) else answer[0]
    return answer


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("kind", ["arrays", "lists"])
def test_arrays_belong_to_their_caller_in_a_container_of_any_class(
    flavour: Flavour, container: str, kind: str
) -> None:
    """Also where the cache has the result of the call that found it."""
    make = CONTAINERS[container]
    if kind == "arrays":
        fn = flavour.decorate_arrays(
            lambda features: make(features["x"] * 2), timeout_ms=0, cache={}, cache_key=lambda _: "key"
        )
    else:
        fn = flavour.decorate(lambda items: [make(item["x"] * 2) for item in items], cache={}, cache_key=len)
    for _ in range(3):
        answer = flavour.call(fn, {"x": np.ones((1, 2))})
        assert type(answer) is type(make(1))
        assert array_in(answer).tolist() == [[2, 2]]
        array_in(answer)[:] = 9
    assert fn.stats.total_cached == 2


def test_a_standard_container_of_numbers_belongs_to_its_caller(flavour: Flavour) -> None:
    """As a dict of them does."""
    fn = flavour.decorate(
        lambda items: [[Counter(a=1), deque([1]), defaultdict(int, a=1)] for _ in items], cache={}
    )
    for _ in range(3):
        counter, queue, numbers = flavour.call(fn, "x")
        assert (counter, queue, numbers) == (Counter(a=1), deque([1]), {"a": 1})
        counter["a"] = numbers["b"] = 9
        queue.append(2)


def test_all_that_is_in_a_standard_container_belongs_to_its_caller(flavour: Flavour) -> None:
    """A list in a `deque` as one in a list, an `array` and a row with fields as an array of numpy."""

    def results(items: list[str]) -> list[Any]:
        row = np.array([(1, 2.0)], dtype=[("a", int), ("b", float)])[0]
        return [[deque([[1]], maxlen=3), UserList([[1]]), array("i", [1]), row] for _ in items]

    fn = flavour.decorate(results, timeout_ms=0, cache={})
    for _ in range(3):
        queue, users, numbers, row = flavour.call(fn, "x")
        assert (queue, queue.maxlen, users, numbers) == (deque([[1]]), 3, UserList([[1]]), array("i", [1]))
        assert row.tolist() == (1, 2.0)
        for each in (queue[0], queue, users[0], users, numbers):
            each.append(2)
        row["a"] = 9


@pytest.mark.parametrize("option", ["cache", "request_cache"])
@pytest.mark.parametrize("make", [lambda: io.BytesIO(b"png"), lambda: {"text": io.StringIO("text")}])
def test_each_caller_reads_a_file_in_memory_from_its_start(flavour: Flavour, make: Any, option: str) -> None:
    """Callers of equal items that are in flight together, and later ones: one would leave it empty."""
    gate = Gate(lambda items: [make() for _ in items], shut=True)
    if option == "cache":
        fn = asked = flavour.decorate(gate, cache={}, timeout_ms=0)
    else:
        fn = flavour.decorate(gate, timeout_ms=0)
        asked = fn.options(request_cache={})
    futures = [flavour.start(asked, 1) for _ in range(3)]
    gate.open()
    answers = [*(future.result(PATIENCE_S) for future in futures), flavour.call(asked, 1)]
    read = [(answer["text"] if isinstance(answer, dict) else answer).read() for answer in answers]
    assert set(read) <= {b"png", "text"}
    assert len(set(read)) == 1
    assert gate.batches == [[1]]


@pytest.mark.libraries
def test_an_image_belongs_to_its_caller(flavour: Flavour) -> None:
    """Callers draw on it."""
    image = pytest.importorskip("PIL.Image")
    fn = flavour.decorate(lambda xs: [image.new("L", (2, 2)) for _ in xs], timeout_ms=0, cache={})
    for _ in range(3):
        answer = flavour.call(fn, 1)
        assert answer.getpixel((0, 0)) == 0
        answer.putpixel((0, 0), 9)


@pytest.mark.libraries
def test_a_frame_of_pandas_belongs_to_its_caller(flavour: Flavour) -> None:
    """Callers add columns to it, and write to its cells."""
    pandas = pytest.importorskip("pandas")
    fn = flavour.decorate(
        lambda xs: [{"table": pandas.DataFrame({"x": [x]}), "column": pandas.Series([x])} for x in xs],
        timeout_ms=0,
        cache={},
    )
    for _ in range(3):
        answer = flavour.call(fn, 1)
        assert answer["table"].to_dict("list") == {"x": [1]}
        assert answer["column"].tolist() == [1]
        answer["table"]["y"] = 2
        answer["table"].loc[0, "x"] = answer["column"][0] = 9


@pytest.mark.libraries
@pytest.mark.parametrize("name", ["csr_matrix", "csr_array", "coo_array", "csc_matrix"])
def test_a_sparse_matrix_belongs_to_its_caller(flavour: Flavour, name: str) -> None:
    """Also one that two items of a batch have, without a cache."""
    sparse = pytest.importorskip("scipy.sparse")
    make = getattr(sparse, name)

    def doubled(answer: Any) -> list[Any]:
        before = answer.toarray().tolist()
        answer.data *= 2
        return before  # type: ignore[no-any-return]

    fn = flavour.decorate(lambda items: [make([[1.0, 0.0]]) for _ in items], timeout_ms=0, cache={})
    assert [doubled(flavour.call(fn, "a")) for _ in range(3)] == [[[1.0, 0.0]]] * 3
    assert [*map(doubled, flavour.call(fn, ["b", "b"]))] == [[[1.0, 0.0]]] * 2
    one = make([[1.0, 0.0]])
    same = flavour.decorate(lambda items: [one for _ in items], timeout_ms=0)
    assert [*map(doubled, flavour.call(same, ["a", "b"]))] == [[[1.0, 0.0]]] * 2


def test_memory_belongs_to_its_caller(flavour: Flavour) -> None:
    """What a view of a cache shows is another caller's."""
    fn = flavour.decorate(lambda items: [memoryview(bytearray(b"ab")) for _ in items], timeout_ms=0, cache={})
    for _ in range(3):
        answer = flavour.call(fn, "a")
        assert bytes(answer) == b"ab"
        answer[0] = 0


def test_items_and_results_with_arrays_keep_their_class(flavour: Flavour) -> None:
    """Also one that cannot be made again from what is in it."""

    def function(items: list[Any]) -> list[Any]:
        return [Readable(y=item["x"]) if type(item) is Readable else None for item in items]

    fn = flavour.decorate(function, timeout_ms=0, cache={}, cache_key=len)
    for _ in range(2):
        answer = flavour.call(fn, Readable(x=np.ones(2)))
        assert type(answer) is Readable
        assert answer["y"].tolist() == [1, 1]


@pytest.mark.parametrize("option", ["cache", "request_cache"])
def test_a_result_that_cannot_be_copied_is_an_answer_like_others(
    flavour: Flavour, option: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One that contains itself, say: it is kept, and all others of its batch have their answers, too."""

    def results(items: list[str]) -> list[Any]:
        loop: dict[str, Any] = {}
        loop["itself"] = loop
        return [loop if item == "loop" else item for item in items]

    gate = Gate(results, shut=True)
    fn = flavour.decorate(gate, timeout_ms=0, **({"cache": {}} if option == "cache" else {}))
    view = fn.options(request_cache={}) if option == "request_cache" else fn
    busy = flavour.start(view, "busy")
    gate.wait_for_batch()
    one = flavour.start(view, "loop")
    others = [flavour.start(view, "a"), flavour.start(view, ["b", "loop"])]
    gate.open()
    assert busy.result(PATIENCE_S) == "busy"
    assert one.result(PATIENCE_S)["itself"]["itself"].keys() == {"itself"}
    assert others[0].result(PATIENCE_S) == "a"
    assert others[1].result(PATIENCE_S)[0] == "b"
    assert flavour.call(view, "loop").keys() == {"itself"}
    assert gate.batches == [["busy"], ["loop", "a", "b"]]
    assert not caplog.records
    flavour.close(fn)


class Large(np.ndarray[Any, Any]):
    """An array of which there is memory for so many copies."""

    copies = 0

    def copy(self, order: Any = "C") -> Any:
        """Return a copy."""
        if not Large.copies:
            raise MemoryError
        Large.copies -= 1
        return super().copy(order)


@pytest.mark.parametrize("option", ["cache", "request_cache"])
def test_where_memory_is_short_no_two_callers_have_the_same_array(
    flavour: Flavour, option: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller for which there is no copy gets the error, and what cannot be kept or looked up runs again."""
    gate = Gate(lambda items: [Large((1,)) for _ in items])
    fn = flavour.decorate(gate, timeout_ms=0, **({"cache": {}} if option == "cache" else {}))
    view = fn.options(return_exceptions=True, **({"request_cache": {}} if option == "request_cache" else {}))
    for copies, kinds in [(0, [MemoryError, MemoryError]), (1, [Large, MemoryError]), (2, [Large, Large])]:
        Large.copies = copies
        first, second = flavour.call(view, ["x", "x"])  # in flight, or a hit and a miss
        assert [type(first), type(second)] == kinds
        assert first is not second
    Large.copies = 3  # for both callers, and one to keep
    flavour.call(view, ["x", "x"])
    runs = len(gate.batches)
    assert type(flavour.call(view, "x")) is MemoryError
    assert len(gate.batches) == runs + 1
    Large.copies = 1
    assert type(flavour.call(view, "x")) is Large
    assert len(gate.batches) == runs + 1
    assert "were not stored" in caplog.text
    flavour.close(fn)


def test_without_memory_for_a_copy_of_what_it_asks_for_a_call_is_refused(flavour: Flavour) -> None:
    """Its caller could change it, for another call that waits for the same."""
    Large.copies = 0
    gate = Gate()
    fn = flavour.decorate(gate, timeout_ms=0, cache={}, cache_key=len)
    with pytest.raises(MemoryError):
        flavour.call(fn, Large((1,)))
    assert not gate.batches
    flavour.close(fn)


def content(value: Any) -> bytes:
    """A key of arrays, however they are passed."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return b"|".join(map(content, value.values() if isinstance(value, dict) else value))


def zeros() -> np.ndarray[Any, Any]:
    return np.zeros((1, 2))


def doubled_features(features: dict[str, Any]) -> Any:
    return features["x"] * 2


CHANGEABLE: list[Any] = [
    # what is asked for, how it is changed in place, and what the function makes of one item
    pytest.param(lambda: {"x": zeros()}, lambda asked: asked["x"].fill(9), None, id="features"),
    pytest.param(
        lambda: {"x": [np.zeros(2), np.zeros(1)]}, lambda asked: asked["x"][0].fill(9), None, id="rows"
    ),
    pytest.param(zeros, lambda asked: asked.fill(9), lambda item: item * 2, id="array"),
    pytest.param(lambda: [zeros()], lambda asked: asked[0].fill(9), lambda item: item * 2, id="arrays"),
    pytest.param(
        lambda: {"x": zeros()},
        lambda asked: asked.update(x=zeros() + 9),
        lambda item: item["x"] * 2,
        id="dict",
    ),
]


@pytest.mark.parametrize(("make", "change", "function"), CHANGEABLE)
def test_a_caller_that_has_left_may_change_what_it_has_asked_for(
    flavour: Flavour, make: Any, change: Any, function: Any
) -> None:
    """Whether cancelled or late: an equal call that joined it, and the cache, get the answer of the key."""
    cache: dict[Any, Any] = {}
    options: dict[str, Any] = {"batch_size": 2, "timeout_ms": 0, "cache": cache, "cache_key": content}
    ones: Any = {"x": zeros() + 1} if isinstance(make(), dict) else zeros() + 1
    if function is None:
        gate = Gate(doubled_features, shut=True)
        fn = flavour.decorate_arrays(gate, **options)
    else:
        gate = Gate(lambda items: [function(item) for item in items], shut=True)
        fn = flavour.decorate(gate, **options)
    busy = flavour.start(fn, ones)
    gate.wait_for_batch()

    mine = make()
    first = flavour.start(fn if flavour.cancels else fn.options(deadline_ms=1000), mine)
    with ThreadPoolExecutor(1) as pool:
        second: Any = pool.submit(flavour.call, fn, make())
        until(lambda: fn.stats.total_cached)
        if flavour.cancels:
            flavour.cancel(first)
        else:
            assert isinstance(first.exception(PATIENCE_S), TimeoutError)
        change(mine)
        gate.open()
        assert not np.any(second.result(PATIENCE_S))
    busy.result(PATIENCE_S)
    assert not any(np.any(result) for key, result in cache.items() if key != content(ones))
    flavour.close(fn)


def test_instances_do_not_share_results_unless_cache_key_says_so(flavour: Flavour) -> None:
    """One mapping for all of a class; with a key that names the model they do."""
    shared: dict[Any, Any] = {}
    by_key: dict[Any, Any] = {}
    decorate = partial(flavour.decorate, timeout_ms=0)

    class Model:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        @partial(decorate, cache=shared)
        def own(self, items: list[int]) -> list[int]:
            return [item * self.factor for item in items]

        @partial(decorate, cache=by_key, cache_key=lambda item: item)
        def common(self, items: list[int]) -> list[int]:
            return [item * self.factor for item in items]

    two, three = Model(2), Model(3)
    assert [flavour.call(model.own, 1) for model in (two, three, two)] == [2, 3, 2]
    assert [flavour.call(model.common, 1) for model in (two, three)] == [2, 2]


def test_arrays_need_a_key_and_are_cached_by_call(flavour: Flavour) -> None:
    """Hits count their rows."""
    with pytest.raises(TypeError, match="a cache for arrays needs a cache_key"):
        flavour.decorate_arrays(doubled_features, cache={})
    runs = []

    def double(features: dict[str, Any]) -> Any:
        runs.append(len(features["x"]))
        return features["x"] * 2

    fn = flavour.decorate_arrays(
        double, timeout_ms=0, cache={}, cache_key=lambda features: features["x"].tobytes()
    )
    x = np.arange(6).reshape(3, 2)
    first = flavour.call(fn, x=x)
    first[:] = -1
    assert np.array_equal(flavour.call(fn, x=x), x * 2)
    assert np.array_equal(flavour.map(fn, [{"x": x}])[0], x * 2)
    assert runs == [3]
    assert fn.stats.total_cached == 6

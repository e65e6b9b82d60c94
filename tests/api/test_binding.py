"""How a batched function binds: as a function does, with a batcher for every instance."""

from __future__ import annotations

import abc
import asyncio
import functools
import gc
import inspect
import pydoc
import threading
import types
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import attrgetter
from typing import Any
from unittest import mock

import pytest

import batched
from batched import aio, inference
from tests.kit.gate import PATIENCE_S, until


class Embedder:
    """Remembers which instance ran which batch."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.batches: list[list[int]] = []

    @batched.dynamically(timeout_ms=0)
    def embed(self, numbers: list[int]) -> list[int]:
        """Embed numbers."""
        self.batches.append(numbers)
        return [number + self.offset for number in numbers]

    @batched.dynamically(timeout_ms=0)
    @classmethod
    def of_class(cls, numbers: list[int]) -> list[str]:
        return [f"{cls.__name__} {number}" for number in numbers]

    @staticmethod
    @batched.dynamically(timeout_ms=0)
    def static(numbers: list[int]) -> list[int]:
        return [-number for number in numbers]

    @batched.dynamically(timeout_ms=0)
    @staticmethod
    def static_too(numbers: list[int]) -> list[int]:
        return [-number for number in numbers]


class Louder(Embedder):
    @batched.dynamically(timeout_ms=0)
    def embed(self, numbers: list[int]) -> list[int]:
        return [10 * number for number in super().embed(numbers)]


def test_every_instance_has_its_own_batcher() -> None:
    """Two instances never mix, nor do their stats."""
    one, two = Embedder(1), Embedder(2)
    assert (one.embed(1), two.embed(1), one.embed([5, 6])) == (2, 3, [6, 7])
    assert (one.batches, two.batches) == ([[1], [5, 6]], [[1]])
    assert (one.embed.stats.total_processed, two.embed.stats.total_processed) == (3, 1)
    assert set(vars(one)) == {"offset", "batches"}


def test_fifty_threads_on_a_fresh_instance_share_one_worker() -> None:
    """The first calls of all come together."""
    threads = set()

    class Model:
        @batched.dynamically(timeout_ms=0)
        def run(self, items: list[int]) -> list[int]:
            threads.add(threading.get_ident())
            return items

    model = Model()
    barrier = threading.Barrier(50)

    def call(item: int) -> int:
        barrier.wait(PATIENCE_S)
        return model.run(item)

    with ThreadPoolExecutor(50) as pool:
        assert list(pool.map(call, range(50))) == list(range(50))
    assert len(threads) == 1
    assert model.run.stats.total_processed == 50


def test_class_methods_and_static_methods() -> None:
    """A class method has a batcher for each class, a static method, in either order, one for all."""
    assert Embedder.of_class([1, 2]) == ["Embedder 1", "Embedder 2"]
    assert Embedder(0).of_class(1) == "Embedder 1"
    assert Louder(0).of_class(1) == "Louder 1"
    assert Louder.of_class([1]) == ["Louder 1"]
    assert (
        Embedder.static(1) == Embedder(0).static(1) == Embedder.static_too(1) == Louder(0).static_too(1) == -1
    )


@pytest.mark.parametrize("decorator", [batched.dynamically, aio.dynamically])
def test_above_the_decorator_of_a_method_other_decorators_are_refused_at_first_use(decorator: Any) -> None:
    """They call it with the instance, which would be an item."""

    def around(function: Any) -> Any:
        return lambda *args: function(*args)

    class Model:
        @around
        @decorator
        def embed(self, texts: list[str]) -> list[str]:
            return texts

    with pytest.raises(TypeError, match=r"Model\.embed: write @dynamically above its other decorators"):
        asyncio.run(Model().embed("a")) if decorator is aio.dynamically else Model().embed("a")


@pytest.mark.parametrize(
    "decorator",
    [batched.dynamically, inference.dynamically, aio.dynamically, aio.inference.dynamically],
    ids=["lists", "arrays", "aio", "aio-arrays"],
)
def test_above_the_decorator_classmethod_is_refused_at_first_use(decorator: Any) -> None:
    """From Python 3.13 on the class would be an item; up to 3.12 `classmethod` has what it wraps bind."""

    class Model:
        @classmethod
        @decorator(timeout_ms=0)
        def embed(cls, items: Any) -> Any:
            return items

    as_from_3_13 = types.MethodType(vars(Model)["embed"].__func__, Model)
    uses: list[Callable[[], Any]] = [
        lambda: ended(Model.embed([1])),
        lambda: ended(Model().embed(1)),
        lambda: Model.embed.stats,
        lambda: as_from_3_13.options(deadline_ms=1000).amap([1]),
        lambda: as_from_3_13.stats,
        lambda: as_from_3_13.configure(batch_size=1),
        lambda: ended(as_from_3_13([1])),
        lambda: ended(as_from_3_13.acall(1)),
    ]
    if hasattr(as_from_3_13, "submit"):
        uses += [lambda: as_from_3_13.submit([1]), lambda: as_from_3_13.map([1])]
    for use in uses:
        with pytest.raises(TypeError, match=r"Model\.embed: write @dynamically above @classmethod"):
            use()


def ended(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def test_a_metaclass_may_have_batched_methods() -> None:
    """Their first parameter is a class too, and each class has a batcher of its own."""

    class Meta(type):
        @batched.dynamically(timeout_ms=0)
        def named(cls, items: list[int]) -> list[str]:
            return [f"{cls.__name__} {item}" for item in items]

    class One(metaclass=Meta):
        pass

    class Two(One):
        pass

    assert (One.named(1), Two.named([2]), Meta.named(Two, 3)) == ("One 1", ["Two 2"], "Two 3")


def test_super_reaches_the_batcher_of_the_parent_class() -> None:
    """An overridden method and its parent's are two functions with two batchers."""
    louder = Louder(1)
    assert louder.embed([1, 2]) == [20, 30]
    assert louder.batches == [[1, 2]]


def test_two_methods_of_one_function_do_not_mix() -> None:
    """The name of the function is nothing that a batcher is found by."""

    def make(factor: int) -> Callable[[Any, list[int]], list[int]]:
        def method(self: Any, items: list[int]) -> list[int]:
            return [factor * item for item in items]

        return method

    class Model:
        double = batched.dynamically(make(2), timeout_ms=0)
        triple = batched.dynamically(make(3), timeout_ms=0)

    model = Model()
    assert (model.double(1), model.triple(1)) == (2, 3)


def test_callables_that_do_not_bind_are_shared() -> None:
    """A callable object, a bound method, a partial and a builtin stay what they are, in a class too."""

    class Adder:
        def __call__(self, items: list[int]) -> list[int]:
            return [item + 1 for item in items]

        def add(self, items: list[int]) -> list[int]:
            return [item + 2 for item in items]

    class Service:
        one = batched.dynamically(Adder(), timeout_ms=0)
        two = batched.dynamically(Adder().add, batch_size=64, timeout_ms=0)
        sort = batched.dynamically(sorted, timeout_ms=0)

    assert (Service().one(1), Service.one(1), Service().two([1])) == (2, 2, [3])
    assert Service.one.stats.total_processed == 2
    assert Service().sort([3, 1]) == [1, 3]
    assert batched.dynamically(functools.partial(pow_all, 2), timeout_ms=0)([2, 3]) == [4, 9]


def pow_all(exponent: int, items: list[int]) -> list[int]:
    return [item**exponent for item in items]


def test_through_the_class_a_method_takes_the_instance_first() -> None:
    """As every function does; what belongs to an instance says so."""
    embedder = Embedder(1)
    assert Embedder.embed(embedder, 1) == 2
    assert Embedder.embed(embedder, numbers=[1]) == [2]
    assert Embedder.embed.submit(embedder, 1).result(PATIENCE_S) == 2
    assert list(Embedder.embed.map(embedder, [1, 2])) == [2, 3]
    for name in ("options", "stats", "explain", "shutdown"):
        assert not hasattr(Embedder.embed, name)
        with pytest.raises(AttributeError, match=rf"its own Embedder.embed.{name}: use it on an instance"):
            getattr(Embedder.embed, name)
    with pytest.raises(AttributeError):
        Embedder.embed.nothing  # noqa: B018


@batched.dynamically(timeout_ms=0)
def double(numbers: list[int]) -> list[int]:
    return [2 * number for number in numbers]


@aio.dynamically(timeout_ms=0)
async def double_on_loops(numbers: list[int]) -> list[int]:
    return [2 * number for number in numbers]


@pytest.mark.parametrize("slots", [False, True])
def test_it_may_be_the_default_of_a_field_as_a_function_may(slots: bool) -> None:
    """`dataclass` reads defaults through the class."""

    @dataclass(slots=slots)
    class Settings:
        run: Any = double
        run_on_loops: Any = double_on_loops
        triple: Any = batched.dynamically(lambda numbers: [3 * number for number in numbers])  # noqa: RUF009

    settings = Settings()
    assert settings.run is double
    assert (settings.run(1), settings.run([1, 2]), settings.triple(1)) == (2, [2, 4], 3)
    assert asyncio.run(settings.run_on_loops(1)) == 2


def test_a_method_that_a_class_gets_later_takes_the_instance_first_through_it_too() -> None:
    """It says that it takes one: its first parameter is `self`."""

    class Model:
        factor = 3

    def run(self: Any, numbers: list[int]) -> list[int]:
        return [self.factor * number for number in numbers]

    Model.run = batched.dynamically(run, timeout_ms=0)  # type: ignore[attr-defined]
    model: Any = Model()
    assert (model.run(2), Model.run(model, 2)) == (6, 6)  # type: ignore[attr-defined]


def test_a_batched_function_looks_like_its_function() -> None:
    """Name, docstring, signature and `__wrapped__`, on the function, the class and the instance."""
    embedder = Embedder(1)
    for found in (Embedder.embed, embedder.embed):
        assert (found.__name__, found.__doc__) == ("embed", "Embed numbers.")
        assert found.__qualname__ == "Embedder.embed"
        assert found.__module__ == __name__
    assert list(inspect.signature(Embedder.embed).parameters) == ["self", "numbers"]
    assert list(inspect.signature(embedder.embed).parameters) == ["numbers"]
    assert inspect.iscoroutinefunction(embedder.embed.acall)
    assert embedder.embed.__wrapped__([1]) == [2]
    assert Embedder.embed.__wrapped__(embedder, [1]) == [2]
    assert "Embedder.embed" in repr(embedder.embed)
    assert "batch_size=64" in repr(Embedder.embed)
    assert repr(embedder.embed.options(deadline_ms=5, priority="bulk")).endswith(
        ", deadline_ms=5, priority='bulk'>"
    )
    assert embedder.embed == embedder.embed
    assert embedder.embed != Embedder(1).embed
    assert len({embedder.embed, embedder.embed, embedder.embed.options(deadline_ms=1)}) == 2
    assert "Embed numbers" in pydoc.render_doc(Embedder)


def test_an_attribute_of_a_callable_object_hides_no_method() -> None:
    """Others can be read, as those of a function can."""

    class Model:
        def __init__(self) -> None:
            self.map, self.options, self._ask, self._open, self.size = 1, 2, 3, 4, 5

        def __call__(self, items: list[int]) -> list[int]:
            return items

    fn = batched.dynamically(Model(), timeout_ms=0)
    assert (fn(1), list(fn.map([2])), fn.options(priority="bulk")(3), fn.size) == (1, [2], 3, 5)


@pytest.mark.parametrize("found", [Embedder(1).embed, Embedder.embed], ids=["instance", "class"])
def test_an_object_of_its_class_without_a_state_has_no_attributes(found: Any) -> None:
    """`torch.compile` makes one to look at it; no attribute is looked for endlessly."""
    empty = object.__new__(type(found))
    for name in ("_shared", "_key", "batched_function", "nothing"):
        assert not hasattr(empty, name)


def test_a_class_with_batched_methods_can_be_inspected_and_mocked() -> None:
    """By `inspect`, `mock.create_autospec` and abstract base classes."""
    assert "embed" in dict(inspect.getmembers(Embedder))
    fake = mock.create_autospec(Embedder, instance=True)
    fake.embed.return_value = 3
    assert fake.embed([1]) == 3
    fake.embed.acall.return_value = 4
    assert asyncio.run(fake.embed.acall([1])) == 4
    fake.embed.map.return_value = iter([5])
    assert list(fake.embed.map([1])) == [5]

    class Base(abc.ABC):
        @batched.dynamically
        @abc.abstractmethod
        def run(self, items: list[int]) -> list[int]: ...

    with pytest.raises(TypeError, match="abstract"):
        Base()  # type: ignore[abstract]


def test_views_with_options_share_the_batcher() -> None:
    """`options` makes no new queue, on a function as on an instance, before the first use and after."""
    fn = batched.dynamically(lambda xs: xs, timeout_ms=0)
    assert fn.options(deadline_ms=9000)(1) == fn(1) == fn.options(priority="bulk").options()(1) == 1
    assert fn.stats.total_processed == 3
    embedder = Embedder(0)
    embedder.embed.options(priority="bulk")(1)
    embedder.embed(1)
    assert embedder.embed.stats.total_processed == 2


def test_what_is_shared_by_the_accesses_of_an_instance_is_what_a_caller_sees() -> None:
    """One batcher, one configuration; options of single calls belong to their view alone."""
    one, two = Embedder(1), Embedder(2)
    for embedder in (one, two):
        embedder.embed(1)
    hurried = one.embed.options(deadline_ms=PATIENCE_S * 1000)
    one.embed.configure(batch_size=5)
    assert "batch_size=5" in repr(one.embed)
    assert "batch_size=64" in repr(two.embed)
    assert (hurried(1), one.embed(1), two.embed(1)) == (2, 2, 3)
    assert one.embed == one.embed != hurried
    assert one.embed.__wrapped__.__self__ is hurried.__wrapped__.__self__ is one
    assert not hasattr(batched.BatchedFunction, "__wrapped__")
    assert list(inspect.signature(batched.BatchedFunction).parameters) == ["func", "options"]


def test_its_repr_does_not_hold_what_a_cache_does() -> None:
    """A debugger or a log would have all results."""
    cache = {number: number for number in range(100)}
    fn = batched.dynamically(list, cache=cache)
    view = fn.options(request_cache=dict.fromkeys(range(50)))
    assert "cache=<dict of 100>" in repr(fn)
    assert repr(view).endswith(", request_cache=<dict of 50>>")
    fn.shutdown()


def test_views_made_for_each_call_share_what_was_made_once() -> None:
    """Of functions and instances. What is wrong is refused each time; a request has a cache of its own."""

    class Model:
        @batched.dynamically(timeout_ms=0)
        def double(self, items: list[int]) -> list[int]:
            return [2 * item for item in items]

    state: Any = attrgetter("_shared")
    model = Model()
    fn = batched.dynamically(lambda items: items, timeout_ms=0)  # type: ignore[misc]
    Model().double.options(return_exceptions=True)  # of another instance
    for view in (fn, model.double, fn.options(priority="bulk")):
        assert view.options(priority="interactive")(1) == view(1)
        made = [view.options(return_exceptions=True, deadline_ms=1000) for _ in range(2)]
        assert state(made[0]) is state(made[1]) is not state(view)
        assert state(model.double.options(deadline_ms=9)) is state(model.double.options(deadline_ms=9))
        assert made[0]([1, 2]) == view([1, 2])
        assert state(view.options(deadline_ms=1000)) is not state(made[0])
        with pytest.raises(TypeError, match="return_exceptions"):
            view.options(return_exceptions=1, deadline_ms=1000)
        with pytest.raises(TypeError, match="deadline_ms"):
            view.options(deadline_ms=[1])
        caches: list[dict[Any, Any]] = [{}, {}]
        for cache in caches:
            view.options(request_cache=cache)(3)
        assert [len(cache) for cache in caches] == [1, 1]
        for ms in range(1, 1000):
            view.options(deadline_ms=ms)
        assert len(state(view).of_options) < 100


def test_a_function_with_views_of_calls_ends_with_its_last_reference() -> None:
    """Nothing that is kept of views leads back to it."""
    fn = batched.dynamically(lambda items: items, timeout_ms=0)  # type: ignore[misc]
    assert fn.options(return_exceptions=True)(1) == 1
    assert fn.options(return_exceptions=False)(1) == 1
    gone = weakref.ref(fn)
    gc.disable()
    try:
        del fn
        until(lambda: gone() is None)
    finally:
        gc.enable()

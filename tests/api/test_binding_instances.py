"""Instances with batched methods: of any kind, and their batchers end with them."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import gc
import sys
import traceback
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import batched
from batched import aio
from tests.kit.gate import IS_FREE_THREADED, PATIENCE_S, until
from tests.kit.kept import driver_of
from tests.kit.threads import until_asleep


class Embedder:
    """Adds what an instance has."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    @batched.dynamically(timeout_ms=0)
    def embed(self, numbers: list[int]) -> list[int]:
        return [number + self.offset for number in numbers]


def test_a_batched_bound_method_kept_by_its_instance_is_collected_with_it() -> None:
    """`self.embed = batched.dynamically(self._embed)` makes no leak."""

    class Model:
        def __init__(self) -> None:
            self.run = batched.dynamically(self._run, timeout_ms=0)

        def _run(self, items: list[int]) -> list[int]:
            return items

    model = Model()
    assert model.run(1) == 1
    thread = driver_of(model.run).workers.threads[0]
    reference = weakref.ref(model)
    del model
    until(lambda: gc.collect() is not None and reference() is None)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@dataclasses.dataclass(frozen=True, eq=True)
class Frozen:
    values: list[int]  # unhashable

    @batched.dynamically(timeout_ms=0)
    def run(self, items: list[int]) -> list[int]:
        return [item + self.values[0] for item in items]


class SlotsWeak:
    __slots__ = ("__weakref__", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset

    @batched.dynamically(timeout_ms=0)
    def run(self, items: list[int]) -> list[int]:
        return [item + self.offset for item in items]


class SlotsDict:
    __slots__ = ("__dict__",)

    @batched.dynamically
    def run(self, items: list[int]) -> list[int]:
        return items


class SlotsOnly:
    __slots__ = ()

    @batched.dynamically
    def run(self, items: list[int]) -> list[int]:
        return items


@pytest.mark.parametrize("make", [lambda n: Frozen([n]), SlotsWeak])
def test_instances_of_any_kind_work_and_end(make: Callable[[int], Any]) -> None:
    """Frozen, unhashable, slotted: each has its own batcher, whose thread ends with the instance."""
    one, two = make(1), make(2)
    assert (one.run(1), two.run(1), one.run.stats.total_processed) == (2, 3, 1)
    thread = driver_of(one.run).workers.threads[0]
    twin = copy.copy(one)
    assert twin.run([1, 1]) == [2, 2]
    assert twin.run.stats.total_processed == 2
    assert one.run.stats.total_processed == 1
    del one
    gc.collect()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert (two.run(1), twin.run(1)) == (3, 2)


@pytest.mark.parametrize("kind", [SlotsOnly, SlotsDict])
def test_an_instance_that_cannot_be_referred_to_weakly_is_refused(kind: Any) -> None:
    """The error says what is missing."""
    with pytest.raises(TypeError, match=rf"{kind.__name__} .* must include '__weakref__' .*weakref_slot"):
        kind().run(1)


def test_a_struct_of_msgspec_needs_what_the_error_says() -> None:
    """It has no `__slots__` of its own that could be written."""
    msgspec = pytest.importorskip("msgspec", exc_type=ImportError)

    @batched.dynamically
    def run(self: Any, items: list[int]) -> list[int]:
        return items

    with pytest.raises(TypeError, match=r"Plain .*of a msgspec\.Struct: weakref=True"):
        msgspec.defstruct("Plain", [], namespace={"run": run})().run(1)
    weak = msgspec.defstruct("Weak", [], namespace={"run": run}, weakref=True)()
    assert weak.run([1, 2]) == [1, 2]


class Pair(NamedTuple):
    one: int
    other: int

    @batched.dynamically
    def run(self, items: list[int]) -> list[int]:
        return [item + self.one for item in items]


class Number(int):
    @batched.dynamically
    def run(self, items: list[int]) -> list[int]:
        return [item + self for item in items]


@pytest.mark.parametrize(("instance", "base"), [(Pair(1, 2), "tuple"), (Number(1), "int")])
def test_an_instance_of_a_class_that_can_have_no_weak_references_says_what_to_do(
    instance: Any, base: str
) -> None:
    """No `__slots__` would help."""
    with pytest.raises(TypeError, match=f"cannot be a subclass of {base}: keep the {base} in an attribute"):
        instance.run(1)


def test_an_error_whose_frames_were_cleared_keeps_no_instance_alive() -> None:
    """As `unittest` clears them; nothing of ours on the way to the function leads there either."""

    class Model:
        @batched.dynamically(timeout_ms=0)
        def fail(self, items: list[int]) -> list[int]:
            raise ZeroDivisionError

    model = Model()
    with pytest.raises(ZeroDivisionError) as caught:
        model.fail(1)
    traceback.clear_frames(caught.value.__traceback__)
    until_asleep(model.fail)
    reference = weakref.ref(model)
    del model
    assert reference() is None


def test_an_idle_instance_is_collected_and_its_thread_ends() -> None:
    """Nothing of the library keeps it, by any way it was called."""
    embedder = Embedder(1)
    embedder.embed(1)
    embedder.embed.submit(1).result(PATIENCE_S)
    list(embedder.embed.map([1, 2]))
    embedder.embed.options(deadline_ms=50_000)(1)
    thread = driver_of(embedder.embed).workers.threads[0]
    until_asleep(embedder.embed)
    reference = weakref.ref(embedder)
    del embedder
    assert reference() is None
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_an_instance_lives_until_its_calls_are_answered() -> None:
    """Also when the future is all that is left of them."""
    assert Embedder(1).embed.submit([1, 2]).result(PATIENCE_S) == [2, 3]
    assert batched.dynamically(lambda xs: xs, timeout_ms=1).submit(1).result(PATIENCE_S) == 1


@pytest.mark.skipif(
    IS_FREE_THREADED and sys.version_info < (3, 14),
    reason="3.13t keeps each class, with what is in it",
)
def test_a_bound_method_keeps_its_instance_and_its_instance_does_not_keep_it() -> None:
    """As Python's own do, at the first access as at every other; it stays bound where it is put."""
    method = Embedder(1).embed
    again = method.__wrapped__.__self__.embed
    for bound in (method, again):
        gc.collect()
        assert bound([1, 2]) == [2, 3]
        assert bound.__wrapped__([1]) == [2]

    class Service:
        first = method
        second = again

    assert (Service().first(1), Service.second(1), Service().second([3])) == (2, 2, [4])
    reference = weakref.ref(method.__wrapped__.__self__)
    until_asleep(again)
    del method, again, bound, Service
    until(lambda: gc.collect() is not None and reference() is None)


def test_an_instance_in_the_place_of_a_dead_one_has_a_batcher_of_its_own() -> None:
    """Python gives the ids of dead instances to new ones."""
    ids = set()
    for offset in range(300):
        embedder = Embedder(offset)
        ids.add(id(embedder))
        assert [embedder.embed(1), embedder.embed(1), *embedder.embed([1])] == [offset + 1] * 3
        assert embedder.embed.stats.total_processed == 3
    assert len(ids) < 300


@pytest.mark.libraries
@pytest.mark.parametrize("dynamically", [batched.dynamically, aio.dynamically])
def test_a_method_of_a_class_that_attrs_makes_anew_finds_its_base(dynamically: Any) -> None:
    """With slots it is another class than the one in which `super()` was written."""
    attrs = pytest.importorskip("attrs")

    class Base:
        def scale(self) -> int:
            return 10

    @attrs.define  # type: ignore[untyped-decorator, unused-ignore]
    class Model(Base):
        offset: int = 1

        @dynamically
        def scaled(self, items: list[int]) -> list[int]:
            by = super().scale()
            return [by * item + self.offset for item in items]

    model = Model()
    answer = model.scaled([1, 2]) if dynamically is batched.dynamically else asyncio.run(model.scaled([1, 2]))
    assert answer == [11, 21]

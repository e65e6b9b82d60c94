"""Errors: those of a batch, those of an item, and what a caller sees of them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import traceback
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pydantic
import pytest

from batched import BatchError, RestartWorker
from tests.kit.errors import OwnError
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until


def broken(items: list[Any]) -> list[Any]:
    """Raise an error with everything an error can have."""
    try:
        {}["missing"]
    except KeyError as cause:
        error = OwnError(7)
        error.add_note("note")
        raise error from cause
    return items


def test_an_error_comes_as_it_was_and_to_each_caller_its_own(flavour: Flavour) -> None:
    """Type, message, attributes, notes, cause and the traceback into the function are kept."""
    gate = Gate(broken, shut=True)
    fn = flavour.decorate(gate, batch_size=3, timeout_ms=60_000)
    futures = [flavour.start(fn, index) for index in range(3)]
    gate.open()
    errors = [future.exception(PATIENCE_S) for future in futures]
    assert len({id(error) for error in errors}) == 3
    for error in errors:
        assert isinstance(error, OwnError)
        assert (str(error), error.code, error.__notes__) == ("code 7", 7, ["note"])
        assert isinstance(error.__cause__, KeyError)
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert frames[-2:] == ["__call__", "broken"]
        assert not {"_run", "_work"} & set(frames)


def test_a_failing_batch_fails_only_its_own_callers(flavour: Flavour) -> None:
    """The next batch on the same worker is untouched, a hundred times over."""

    def positive(items: list[int]) -> list[int]:
        if min(items) < 0:
            raise ValueError("negative")
        return items

    fn = flavour.decorate(positive, timeout_ms=0)
    for item in range(100):
        with pytest.raises(ValueError, match="^negative$"):
            flavour.call(fn, -1)
        assert flavour.call(fn, item) == item


def test_an_exception_as_a_result_fails_its_own_item(flavour: Flavour) -> None:
    """The neighbours in the batch get their results."""
    gate = Gate(lambda xs: [OwnError(x) if x < 0 else x for x in xs], shut=True)
    fn = flavour.decorate(gate, batch_size=3, timeout_ms=60_000)
    futures = [flavour.start(fn, item) for item in (1, -2, 3)]
    gate.open()
    assert futures[0].result(PATIENCE_S) == 1
    with pytest.raises(OwnError, match="^code -2$"):
        futures[1].result(PATIENCE_S)
    assert futures[2].result(PATIENCE_S) == 3
    assert fn.stats.total_failed == 1


def test_a_list_fails_with_its_first_failing_item_and_the_rest_is_dropped(flavour: Flavour) -> None:
    """What of it has not started never runs."""
    gate = Gate(lambda xs: [OwnError(x) if x in (3, 4) else x for x in xs])
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=0)
    with pytest.raises(OwnError, match=r"^code 3\b"):
        flavour.call(fn, list(range(12)))
    assert flavour.call(fn, 5) == 5
    assert gate.batches == [[0, 1, 2, 3], [5]]
    assert fn.stats.total_cancelled == 8


def test_return_exceptions_leaves_them_in_their_places(flavour: Flavour) -> None:
    """As `asyncio.gather` does: failing items, failing batches, and a failing single."""

    def picky(items: list[int]) -> list[Any]:
        if 5 in items:
            raise ValueError("five")
        return [OwnError(item) if item == 1 else item for item in items]

    fn = flavour.decorate(picky, batch_size=2, timeout_ms=0).options(return_exceptions=True)
    answer = flavour.call(fn, [0, 1, 2, 3, 4, 5, 6])
    assert [0, OwnError, 2, 3, 4, ValueError, 6] == [
        type(row) if isinstance(row, Exception) else row for row in answer
    ]
    assert isinstance(flavour.call(fn, 1), OwnError)
    assert isinstance(flavour.call(fn, 5), ValueError)
    assert flavour.call(fn, [1])[0].code == 1


def test_errors_that_are_returned_are_each_callers_own(flavour: Flavour) -> None:
    """As those that are raised: of a failing batch, a failing item, a list, two equal items of a cache."""
    found = ValueError("found"), KeyError("raised")

    def picky(items: list[str]) -> list[Any]:
        if "raise" in items or "raise too" in items:
            raise found[1]
        return [found[0]] * len(items)

    for options in ({}, {"cache": {}}):
        gate = Gate(picky, shut=True)
        fn = flavour.decorate(gate, batch_size=5, timeout_ms=0, **options)
        view = fn.options(return_exceptions=True)
        first = flavour.start(view, "first")
        gate.wait_for_batch()
        futures = [flavour.start(view, asked) for asked in ("a", "d", ["b", "c", "b"])]
        gate.let_through(2)
        errors: list[Any] = [first.result(PATIENCE_S), *found]
        for future in futures:
            answer = future.result(PATIENCE_S)
            errors += answer if isinstance(answer, list) else [answer]
        futures = [flavour.start(view, asked) for asked in ("raise", "raise too")]
        gate.open()
        errors += [future.result(PATIENCE_S) for future in futures]
        assert list(map(type, errors)) == [ValueError] * 2 + [KeyError] + [ValueError] * 5 + [KeyError] * 2
        assert len(set(map(id, errors))) == len(errors)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, BaseException])
def test_whatever_is_raised_reaches_the_caller_and_not_the_worker(
    flavour: Flavour, kind: type[BaseException]
) -> None:
    """A task is spared what would break its event loop: it gets a BatchError from it."""

    def fatal(items: list[int]) -> list[int]:
        if 0 in items:
            raise kind("stop")
        return items

    fn = flavour.decorate(fatal, timeout_ms=0)
    if kind is StopIteration and flavour.name == "aio":
        kind = RuntimeError  # Python's own doing, for a coroutine that raises it
    error = flavour.start(fn, 0).exception(PATIENCE_S)
    if flavour.in_tasks and kind is not RuntimeError:
        assert isinstance(error, BatchError)
        error = error.__cause__
    assert type(error) is kind
    assert flavour.call(fn, 1) == 1


class Stubborn(Exception):
    """It cannot be copied."""

    __dict__ = None  # type: ignore[assignment]


def stubborn(items: list[Any]) -> list[Any]:
    """Raise what cannot be copied."""
    raise Stubborn(len(items))


def test_callers_of_a_function_that_has_its_worker_restarted_get_the_cause(flavour: Flavour) -> None:
    """Also where no worker has a state, or batches run on an event loop; the batch runs once more."""
    gate = Gate(lost)
    fn = flavour.decorate(gate)
    with pytest.raises(KeyError, match="lost"):
        flavour.call(fn, 1)
    assert gate.batches == [[1], [1]]
    flavour.close(fn)


def lost(items: list[Any]) -> list[Any]:
    """Say that the worker is broken."""
    raise RestartWorker from KeyError("lost")


def test_an_error_that_cannot_be_copied_arrives_at_several_callers_as_a_batch_error(flavour: Flavour) -> None:
    """The original is its cause."""
    gate = Gate(stubborn, shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=60_000, isolate_errors=False)
    futures = [flavour.start(fn, item) for item in range(2)]
    gate.open()
    errors = [future.exception(PATIENCE_S) for future in futures]
    assert errors[0] is not errors[1]
    for error in errors:
        assert isinstance(error, BatchError)
        assert isinstance(error.__cause__, Stubborn)


@pytest.mark.parametrize("asked", [1, [1, 2], [1, 2, 3]])
def test_an_error_that_cannot_be_copied_arrives_itself_at_its_only_caller(
    flavour: Flavour, asked: Any
) -> None:
    """For an item, and for a list of one batch or of two."""
    fn = flavour.decorate(stubborn, batch_size=2, timeout_ms=0)
    error = flavour.start(fn, asked).exception(PATIENCE_S)
    assert type(error) is Stubborn
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert "stubborn" in frames
    if asked == 1:
        assert type(flavour.call(fn.options(return_exceptions=True), asked)) is Stubborn


def fails_with_stubborn(items: list[Any]) -> list[Any]:
    """Return an error that cannot be copied for each item but the first one of a list."""
    return [item if item == 0 else Stubborn(item) for item in items]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"group_by": lambda item: item % 2},
        {"cache": {}},
        {"cache": {}, "group_by": lambda item: item % 2},
        {"fair_by": lambda item: item % 2},
        {"length": lambda item: item + 1},
    ],
    ids=["plain", "group_by", "cache", "cache-group_by", "fair_by", "length"],
)
@pytest.mark.parametrize("function", [stubborn, fails_with_stubborn])
def test_an_error_that_cannot_be_copied_arrives_itself_wherever_there_is_one_caller(
    flavour: Flavour, function: Any, options: dict[str, Any]
) -> None:
    """Alone, in a list, kept in its place, in a `map`; with keys, with a cache."""
    fn = flavour.decorate(
        function, batch_size=2, timeout_ms=0, **copy.deepcopy(options)
    )  # a cache of its own
    kept = fn.options(return_exceptions=True)
    for asked in (1, [1, 2, 3, 4, 5]):
        assert type(flavour.start(fn, asked).exception(PATIENCE_S)) is Stubborn
    assert type(flavour.call(kept, 1)) is Stubborn
    assert {type(answer) for answer in flavour.call(kept, [1, 2, 3, 4, 5])} == {Stubborn}
    assert {type(answer) for answer in flavour.map(kept, [1, 2, 3, 4, 5])} == {Stubborn}
    with pytest.raises(Stubborn):
        flavour.map(fn, [1, 2, 3])


@pytest.mark.parametrize("options", [{}, {"cache": {}}], ids=["plain", "cache"])
def test_an_error_that_cannot_be_copied_is_not_shared_with_a_list(
    flavour: Flavour, options: dict[str, Any]
) -> None:
    """Of two lists that keep their errors and get the same object, and of two that ask for the same item."""
    error = Stubborn("one")
    gate = Gate(lambda items: [error for _ in items], shut=True)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000, **copy.deepcopy(options))
    kept = fn.options(return_exceptions=True)
    futures = [flavour.start(kept, [1, 2]), flavour.start(kept, [3, 4] if not options else [1, 2])]
    futures += [flavour.start(kept, [5, 6])] if options else []
    gate.open()
    answers = [answer for future in futures for answer in future.result(PATIENCE_S)]
    assert {type(answer) for answer in answers} == {BatchError}
    assert {id(answer.__cause__) for answer in answers} == {id(error)}


def test_an_error_that_cannot_be_copied_and_is_returned_for_one_item_arrives_itself(flavour: Flavour) -> None:
    """An object that is returned for two items is no error of one caller."""
    for is_shared in (False, True):
        error = Stubborn("one")
        gate = Gate(lambda xs: [error] * 2 if is_shared else [error, 5], shut=True)
        fn = flavour.decorate(gate, batch_size=2, timeout_ms=60_000)
        futures = [flavour.start(fn, item) for item in range(2)]
        gate.open()
        found = futures[0].exception(PATIENCE_S)
        assert (type(found), error in (found, found.__cause__)) == (
            BatchError if is_shared else Stubborn,
            True,
        )
        futures[1].exception(PATIENCE_S)


def axis_error(items: list[Any]) -> Any:
    """Ask numpy for an axis that is not there."""
    return np.sum(np.zeros(len(items)), axis=4)


def message_of_axes(items: list[Any]) -> Any:
    """Raise an error of numpy, of which two slots hold None."""
    raise getattr(np, "exceptions", np).AxisError(f"no axis: {len(items)}")


def wrong_field(items: list[Any]) -> Any:
    """Have pydantic refuse a field."""
    return pydantic.create_model("Text", length=(int, ...))(length=f"not a number {len(items)}")


def copied_or_none(error: BaseException) -> BaseException | None:
    """Return what `copy.copy` makes of an error; errors of numpy need not be copied by it."""
    if not isinstance(error, pydantic.ValidationError):
        return error
    try:
        return copy.copy(error)
    except Exception:
        return None


@pytest.mark.parametrize("function", [axis_error, message_of_axes, wrong_field])
@pytest.mark.parametrize("callers", [1, 2])
def test_the_errors_of_numpy_and_pydantic_come_as_they_were(
    flavour: Flavour, function: Callable[[list[Any]], Any], callers: int
) -> None:
    """Their classes have slots that hold None, or a memory that only their own copy reaches."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011  compared below
        function([0] * callers)
    if callers > 1 and str(copied_or_none(caught.value)) != str(caught.value):
        pytest.skip("this version of pydantic copies no errors")
    gate = Gate(function, shut=True)
    fn = flavour.decorate(gate, batch_size=callers, timeout_ms=60_000, isolate_errors=False)
    futures = [flavour.start(fn, item) for item in range(callers)]
    gate.open()
    for future in futures:
        error: Any = future.exception(PATIENCE_S)
        assert (type(error), str(error), error.args) == (caught.type, str(caught.value), caught.value.args)
        for name in ("axis", "ndim", "title", "error_count"):
            value, expected = getattr(error, name, "none"), getattr(caught.value, name, "none")
            assert (value() if callable(value) else value) == (expected() if callable(expected) else expected)


def test_an_error_keeps_its_own_context_even_where_another_is_handled(flavour: Flavour) -> None:
    """Calling from an `except` block must not overwrite what the function was handling."""

    def fail(items: list[Any]) -> list[Any]:
        try:
            raise KeyError("inner")
        except KeyError:
            raise OwnError(1)  # noqa: B904

    fn = flavour.decorate(fail, timeout_ms=0)

    async def awaiting() -> BaseException | None:
        try:
            raise OSError("outer")
        except OSError:
            try:
                await fn.acall(1)
            except OwnError as error:
                return error.__context__
        return None

    def blocking() -> BaseException | None:
        try:
            raise OSError("outer")
        except OSError:
            try:
                fn(1)
            except OwnError as error:
                return error.__context__
        return None

    assert isinstance(asyncio.run(awaiting()) if flavour.in_tasks else blocking(), KeyError)


@pytest.mark.parametrize("awaits", [False, True])
def test_an_error_keeps_nothing_alive_once_its_caller_has_dropped_it(flavour: Flavour, awaits: bool) -> None:
    """No cycle through its traceback: a failing batch's tensors are free at once, without the collector."""

    class Tensor:
        pass

    tensors: list[weakref.ref[Tensor]] = []

    def fail(items: list[Any]) -> list[Any]:
        tensor = Tensor()
        tensors.append(weakref.ref(tensor))
        raise ValueError(items)

    async def fail_too(items: list[Any]) -> list[Any]:
        return fail(items)

    fn = flavour.decorate(fail_too if awaits else fail, timeout_ms=0)

    async def handle() -> None:
        with contextlib.suppress(ValueError):
            await fn.acall(1)

    gc.disable()
    try:
        for _ in range(3):
            if flavour.in_tasks:
                asyncio.run(handle())
            else:
                with contextlib.suppress(ValueError):
                    fn(1)
        until(lambda: [tensor() for tensor in tensors] == [None, None, None])
    finally:
        gc.enable()


def failed(item: Any) -> Exception:
    """Return an error that has been raised."""
    try:
        raise ValueError(item)
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    "made_by", ["function", "async function", "function with stages", "finish", "async generator"]
)
def test_an_error_that_is_returned_keeps_nothing_alive_either(flavour: Flavour, made_by: str) -> None:
    """Its traceback leads to the frame that has the results, by way of the function's."""

    class Tensor:
        pass

    tensors: list[weakref.ref[Tensor]] = []

    def fail(items: list[Any]) -> list[Any]:
        return [failed(item) for item in items]

    async def fail_too(items: list[Any]) -> list[Any]:
        return fail(items)

    async def fail_stepwise(items: list[Any]) -> AsyncIterator[list[Any]]:
        yield fail(items)

    def same(items: list[Any]) -> list[Any]:
        return items

    functions: dict[str, Callable[[list[Any]], Any]] = {
        "async function": fail_too,
        "finish": same,
        "async generator": fail_stepwise,
    }
    stages = {"function with stages": {"prepare": same}, "finish": {"finish": fail}}
    function = functions.get(made_by, fail)
    fn = flavour.decorate(function, timeout_ms=0, batch_size=2, **stages.get(made_by, {}))

    def some(count: int) -> list[Tensor]:
        made = [Tensor() for _ in range(count)]
        tensors.extend(map(weakref.ref, made))
        return made

    async def handle(count: int) -> None:
        with contextlib.suppress(ValueError):
            await fn.acall(some(count))

    gc.disable()
    try:
        for count in (1, 2, 5):
            if flavour.in_tasks:
                asyncio.run(handle(count))
            else:
                with contextlib.suppress(ValueError):
                    fn(some(count))
        until(lambda: {tensor() for tensor in tensors} == {None})
    finally:
        gc.enable()

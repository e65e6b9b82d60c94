"""Whether the answer of an item depends on the other items of its batch."""

from __future__ import annotations

import cmath
import random
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from numbers import Integral, Number
from typing import Any, NamedTuple

from batched._api.function import DecoratedFunction
from batched._api.map import iterator_over
from batched._collate.item_length import has_fields
from batched._collate.nested import attributes
from batched._collate.plain import PLAIN
from batched._core.call import Call
from batched.errors import BatchError, is_error
from batched.testing.trial import Trial, decorated, that_share

__all__ = ["assert_independent"]

_SEED = 0
_SHUFFLES = 3
_MOST_PAIRS = 200
_OF_ANY_WIDTH = "USMm"  # of texts and times, the width and the unit follow from the values of an array
_OF_SEVERAL = "OVMm"  # arrays of objects, and rows with fields, may have numbers; a time may be none, as NaT
_KEEPS = "the function keeps something from batch to batch, or draws random numbers"

Items = Sequence[Any]


def assert_independent(
    function: Callable[..., Any] | DecoratedFunction[Any],
    items: Items,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-6,
) -> None:
    """Raise `AssertionError` if the answer of an item depends on its batch.

    It finds batch normalization in training mode, a softmax or mean over the batch, padding that has no mask,
    results in another order or of another number, state that is kept from batch to batch, and a function that
    works on single items only; answers that have another type beside others, or share a list or dict with
    them; and items that the function changes, as batches run again after an error, unless
    `isolate_errors=False`. An item that fails alone has to fail in every batch.

    The function runs in this thread, many times, with copies of the items: alone with each, with all of them
    in several orders, with pairs, and with the same item twice. Batches have at most `batch_size` items, and
    only items of one key, if there is a `group_by`; each item should fit into one with any other.

    Args:
        function: A decorated function, or a plain one that takes a list. It may be `async def`.
        items: Some items, better of unlike lengths. For a function of several parameters, tuples of one value
            for each, in their order; for one over arrays, the features of single calls.
        rtol: The relative difference that numbers may have, as models give other last digits with another
            size of batch.
        atol: The absolute difference that they may have.

    Raises:
        AssertionError: An answer differs. The message names the item, both answers, and a likely cause.
        ValueError: There are fewer than two items.
        TypeError: The function streams, its answers cannot be compared, or its items can only be used once.

    """
    items = list(iterator_over(items, "assert_independent"))
    if len(items) < 2:  # noqa: PLR2004
        raise ValueError(f"items must be at least 2, got {len(items)}: one item has no others in its batch")
    trial = _Comparison(decorated(function, "assert_independent"), items, rtol, atol)
    for batch in trial.batches():
        trial.compare(batch)
    for at in range(len(items)):
        trial.repeat(at)


class _Failed(NamedTuple):
    """Stands for the answer of an item for which the function has raised, or returned, an error."""

    kind: type[BaseException]
    text: str

    def __repr__(self) -> str:
        return f"{self.kind.__name__}({self.text})"


class _Comparison:
    """A function, and the batches that it is tried with."""

    def __init__(self, function: DecoratedFunction[Any], items: list[Any], rtol: float, atol: float) -> None:
        self._trial = trial = Trial(function)
        if function._shared.settings.streams:  # noqa: SLF001
            raise TypeError(f"{trial.name} streams: assert_independent is for functions that return results")
        self._items = items
        self._isolates = trial.options.isolate_errors
        self._room = trial.options.batch_size
        self._rtol = rtol
        self._atol = atol
        self._alone = alone = [
            self._run([trial.call(item)], f"items[{at}] alone")[0] for at, item in enumerate(items)
        ]
        if all(isinstance(each, _Failed) for each in alone):
            raise AssertionError(
                f"every item fails alone, {self.named(0)} with {alone[0]}: nothing can be compared. Does the "
                f"function take a list?"
            )
        # They are in the answers of each batch, not of one.
        self._kept = {id(part): part for answer in alone for part in _changeable(answer)}

    def batches(self) -> Iterator[list[int]]:
        """Yield the items of each batch to try, the most telling first."""
        for places in that_share([self._trial.call(item) for item in self._items]):
            yield from self._batches_of(places)

    def _batches_of(self, everything: list[int]) -> Iterator[list[int]]:
        """Yield the batches of items that may share one."""
        count = len(everything)
        chance = random.Random(_SEED)  # noqa: S311
        orders = [everything, everything[::-1]]
        orders += [chance.sample(everything, count) for _ in range(_SHUFFLES)]
        for order in orders:
            for start in range(0, count, self._room):
                yield order[start : start + self._room]
        if self._room < 2:  # noqa: PLR2004
            return
        pairs = [(one, other) for one in everything for other in everything]
        for pair in pairs if len(pairs) <= _MOST_PAIRS else chance.sample(pairs, _MOST_PAIRS):
            yield list(pair)

    def named(self, at: int) -> str:
        """Return how messages name an item."""
        return f"items[{at}], {_short(self._items[at])},"

    def _run(self, calls: list[Call], what: str) -> list[Any]:
        """Return the answer of each call of a batch."""
        try:
            found = self._trial.run(calls)
        except BatchError as error:
            raise AssertionError(f"with {what}: {error}") from error
        except Exception as error:  # noqa: BLE001  of the function: the answer of all items
            return [_Failed(type(error), str(error))] * len(calls)
        return [_Failed(type(each), str(each)) if is_error(each) else each for each in found]

    def compare(self, batch: list[int]) -> None:
        """Raise if an item of a batch has not the answer that it has alone."""
        alone = self._alone
        what = f"the batch of {', '.join(f'items[{at}]' for at in batch)}"
        found = self._run([self._trial.call(self._items[at]) for at in batch], what)
        has_bad = self._isolates and any(isinstance(alone[at], _Failed) for at in batch)
        if has_bad and all(isinstance(each, _Failed) for each in found):
            return  # one that fails alone has failed them all: the batch runs again without it
        for at, answer in zip(batch, found, strict=True):
            if not self.alike(answer, alone[at]):
                texts = f"{_short(alone[at])} alone, and {_short(answer)}"  # before the function changes them
                # If it has another answer alone as well by now, the others are not to blame.
                again = self._run([self._trial.call(self._items[at])], f"items[{at}] alone")[0]
                why = self._why(batch, found, at) if self.alike(again, alone[at]) else _KEEPS
                raise AssertionError(f"{self.named(at)} has the answer {texts} in {what}: {why}")

        met: dict[int, tuple[int, Any]] = {}
        for at, answer in zip(batch, found, strict=True):
            for part in (mine := _changeable(answer)):
                if id(part) in met and id(part) not in self._kept:
                    raise AssertionError(
                        f"{self.named(met[id(part)][0])} and items[{at}] have the same object, "
                        f"{_short(part)}, in their answers in {what}: if one caller changes it, so it does "
                        f"for the other"
                    )
            met |= {id(part): (at, part) for part in mine}

    def repeat(self, at: int) -> None:
        """Raise if an item has another answer alone by now, or if it runs once more."""
        before = self._alone[at]
        calls = [self._trial.call(self._items[at])]
        again = self._run(calls, f"items[{at}] alone")[0]
        if not self.alike(again, before):
            raise AssertionError(
                f"{self.named(at)} alone has the answer {_short(again)} after other batches, and had "
                f"{_short(before)} before: {_KEEPS}"
            )
        if not self._isolates or not self._trial.can_repeat(calls):
            return
        twice = self._run(calls, f"items[{at}] alone")[0]
        if not self.alike(twice, before):
            raise AssertionError(
                f"{self.named(at)} has the answer {_short(twice)} if it runs once more, and {_short(before)} "
                f"before: the function changes its items, and a batch runs again if one of them fails. Have "
                f"it change copies, or set isolate_errors=False"
            )

    def _why(self, batch: list[int], found: list[Any], at: int) -> str:  # noqa: PLR0911
        """Return what may be the cause of another answer of an item."""
        alone, first = self._alone, found[0]
        if isinstance(found[batch.index(at)], _Failed):
            if all(isinstance(each, _Failed) for each in found) and not isinstance(alone[at], _Failed):
                return "the function does not take these items together"
            return "it fails only beside others"
        if isinstance(alone[at], _Failed):
            return "it fails only alone"
        rest = list(found)
        for each in batch:
            same = next((place for place, row in enumerate(rest) if self.alike(row, alone[each])), None)
            if same is None:
                break
            del rest[same]
        else:
            return "the results are in another order than the items"
        if all(self.alike(each, first) for each in found) and len(set(batch)) > 1:
            return "all items of the batch have one answer"
        before, now = _type_of(alone[at]), _type_of(found[batch.index(at)])
        if before != now:
            return f"it is of type {before} alone, and of type {now} beside others"
        unpads = ", or outputs as long as the padding, which `unpad_outputs` cuts off"
        return (
            "it depends on the other items, as with batch normalization in training mode, a softmax or mean "
            f"over the batch, or padding without a mask{unpads if self._trial.is_of_arrays else ''}"
        )

    def alike(self, one: Any, other: Any) -> bool:
        """Whether two answers are the same, up to the last digits of numbers."""
        return _alike(one, other, self._rtol, self._atol)


def _alike(one: Any, other: Any, rtol: float, atol: float) -> bool:  # noqa: PLR0911  one kind after another
    if one is other:
        return True
    if _type_of(one) != _type_of(other):
        return False
    if isinstance(one, _Failed):
        return bool(one == other)
    if _is_array(one):
        return _are_arrays_alike(one, other, rtol, atol)
    if isinstance(one, Number):
        return _are_numbers_alike(one, other, rtol, atol)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_alike(one[key], other[key], rtol, atol) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(lambda a, b: _alike(a, b, rtol, atol), one, other))
    is_by_identity = getattr(type(one), "__eq__", None) is object.__eq__
    if is_by_identity or has_fields(type(one)):
        return _are_attributes_alike(one, other, rtol, atol, may_have_none=not is_by_identity)
    return _are_equal(one, other)


def _type_of(answer: Any) -> str:
    """Return the name of the type of an answer, and of an array, as an item can have that of its neighbors.

    By name, as a data frame makes a class for the tuples of its rows each time.
    """
    kind = type(answer)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    dtype = getattr(answer, "dtype", None) if _is_array(answer) else None
    if dtype is None or f"numpy.{dtype}" == name:
        return name
    width = getattr(dtype, "kind", "")
    return f"{name} of {width if width and width in _OF_ANY_WIDTH else dtype}"


def _changeable(answer: Any) -> list[Any]:
    """Return the lists, dicts and other objects in an answer that could be changed in place, itself first.

    What can be, and is compared by its value, has no hash.
    """
    found: dict[int, Any] = {}
    parts = [answer]
    while parts:
        part = parts.pop()
        if id(part) in found or isinstance(part, _Failed):
            continue
        if type(part).__hash__ is None or isinstance(part, tuple):
            found[id(part)] = part
            parts += [each for each in _parts(part) if type(each) not in PLAIN]
    return [part for part in found.values() if type(part).__hash__ is None]


def _parts(answer: Any) -> Iterable[Any]:
    if isinstance(answer, Mapping):
        return answer.values()
    if isinstance(answer, list | tuple | AbstractSet):
        return answer
    return attributes(answer).values() if has_fields(type(answer)) else ()


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception as error:
        raise _incomparable(one, f"== fails with {type(error).__name__}: {error}") from error


def _are_attributes_alike(one: Any, other: Any, rtol: float, atol: float, *, may_have_none: bool) -> bool:
    its, others = attributes(one), attributes(other)
    if not its and not others and not may_have_none:
        raise _incomparable(one, "it equals only itself, and has no attributes")
    try:
        return _alike(its, others, rtol, atol)
    except RecursionError as error:
        raise _incomparable(one, "it leads back to itself") from error


def _incomparable(answer: Any, why: str) -> TypeError:
    return TypeError(
        f"an answer of type {type(answer).__qualname__} cannot be compared: {why}. Give a function that "
        f"returns what matters of it, as numbers, text or a dict"
    )


def _are_numbers_alike(one: Any, other: Any, rtol: float, atol: float) -> bool:
    if isinstance(one, Integral):  # labels, tokens: near is not the same
        return bool(one == other)
    if cmath.isnan(one) or cmath.isnan(other):
        return cmath.isnan(one) and cmath.isnan(other)
    return cmath.isclose(one, other, rel_tol=rtol, abs_tol=atol)


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") or hasattr(type(value), "toarray")  # the sparse ones of scipy have


def _are_arrays_alike(one: Any, other: Any, rtol: float, atol: float) -> bool:
    try:
        import numpy as np  # noqa: PLC0415  nothing else needs it
    except ModuleNotFoundError:  # tensors may be there without it
        return _alike(_read(one, _listed), _read(other, _listed), rtol, atol)
    left, right = _read(one, np.asarray), _read(other, np.asarray)
    if left.shape != right.shape:
        return False
    if left.dtype.kind in "iub" and right.dtype.kind in "iub":
        return bool(np.array_equal(left, right))
    if left.dtype.kind in "fciub" and right.dtype.kind in "fciub":
        return bool(np.allclose(left, right, rtol=rtol, atol=atol, equal_nan=True))
    if left.dtype.kind in _OF_SEVERAL or right.dtype.kind in _OF_SEVERAL:
        return _alike(left.tolist(), right.tolist(), rtol, atol)
    return bool(np.array_equal(left, right))


def _read(array: Any, how: Callable[[Any], Any]) -> Any:
    try:
        return how(_on_cpu(array))
    except Exception as error:  # a tensor on the device "meta" has no values, and numpy knows no float8
        raise _incomparable(array, f"its values cannot be read, {type(error).__name__}: {error}") from error


def _listed(array: Any) -> Any:
    return array.tolist() if hasattr(array, "tolist") else array


def _on_cpu(array: Any) -> Any:
    """Return a tensor, or a sparse matrix, as numpy can read it, anything else as it is."""
    if hasattr(type(array), "toarray"):
        return array.toarray()
    detach = getattr(array, "detach", None)
    if detach is None:
        return array
    tensor = detach().cpu()
    if "sparse" in str(getattr(tensor, "layout", "")):
        tensor = tensor.to_dense()
    return tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor


def _short(value: Any) -> str:
    return reprlib.repr(value)

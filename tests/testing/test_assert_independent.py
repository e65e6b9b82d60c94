"""`assert_independent` finds each planted fault, says what it is, and lets good functions pass."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections import namedtuple
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from io import BytesIO
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import batched
import batched.inference
from batched.profile import profile
from batched.testing import assert_independent, manual_clock
from tests.kit.optional import needs_torch, torch

TEXTS = ["one", "a longer text", "x", "some more words here"]


def lengths(texts: list[str]) -> list[float]:
    """Return a result for each text, whatever is beside it."""
    return [float(len(text)) for text in texts]


async def in_a_task(texts: list[str]) -> list[float]:
    """Return the same, after a wait."""
    await asyncio.sleep(0)
    return lengths(texts)


def some_fail(texts: list[str]) -> list[Any]:
    """Return an error for one item, wherever it is."""
    return [ValueError("short") if len(text) < 2 else len(text) for text in texts]


def rows(texts: list[str]) -> Any:
    """Return rows of an array, with other last digits for each size."""
    return np.array([[len(text), 1.0] for text in texts]) * (1 + 1e-7 * len(texts))


@pytest.mark.parametrize("function", [lengths, in_a_task, some_fail, rows, batched.dynamically(lengths)])
def test_a_function_that_treats_items_alike_passes(function: Callable[..., Any]) -> None:
    """Plain or decorated, `async def`, with errors in the place of results, up to the last digits."""
    assert_independent(function, TEXTS)


def test_columns_and_small_batches_pass() -> None:
    """Items of several columns are tuples; no batch has more than `batch_size` items."""
    sizes: list[int] = []

    @batched.dynamically(batch_size=2)
    def joined(lefts: list[str], rights: list[int]) -> list[str]:
        sizes.append(len(lefts))
        return [f"{left}{right}" for left, right in zip(lefts, rights, strict=True)]

    assert_independent(joined, [("a", 1), ("b", 2), ("c", 3)])
    assert max(sizes) == 2


def test_fixed_sizes_are_the_only_ones_that_run() -> None:
    """Batches are filled up with copies, as they would be, of lists and of arrays."""
    sizes: list[int] = []

    @batched.dynamically(batch_sizes=(2, 4))
    def sized(texts: list[str]) -> list[float]:
        sizes.append(len(texts))
        return lengths(texts)

    @batched.inference.dynamically(batch_sizes=(2, 4))
    def summed(features: dict[str, Any]) -> Any:
        sizes.append(len(features["x"]))
        return features["x"].sum(axis=1)

    assert_independent(sized, TEXTS)
    assert_independent(summed, [{"x": np.ones((1, size))} for size in (2, 5, 3)])
    assert set(sizes) == {2, 4}
    with pytest.raises(AssertionError, match="depends on the other items"):
        assert_independent(batched.dynamically(centered, batch_sizes=(2, 4)), TEXTS)


def test_batches_pass_their_stages() -> None:
    """A fault in any of them is found, also with several columns."""

    def joined(lefts: list[str], rights: list[int]) -> list[str]:
        return [f"{left}{right}" for left, right in zip(lefts, rights, strict=True)]

    def backwards(results: list[float]) -> list[float]:
        return results[::-1]

    options: dict[str, Any] = {"prepare": joined, "batch_sizes": (1, 3)}
    items = [("a", 1), ("bc", 20), ("d", 300)]
    assert_independent(batched.dynamically(lengths, **options), items)
    with pytest.raises(AssertionError, match="in another order"):
        assert_independent(batched.dynamically(lengths, finish=backwards, **options), items)


def test_a_function_may_ask_for_its_batch() -> None:
    """In a thread, and in a coroutine function."""

    def asks(texts: list[str]) -> list[float]:
        assert batched.current_batch().size == len(texts)
        return lengths(texts)

    async def aasks(texts: list[str]) -> list[float]:
        return asks(texts)

    assert_independent(asks, TEXTS)
    assert_independent(aasks, TEXTS)


def test_a_function_finds_the_context_of_the_test() -> None:
    """As `current_batch` has it; the variables themselves are not set, as in a service."""
    factor: ContextVar[float] = ContextVar("factor")

    def times(texts: list[str]) -> list[float]:
        contexts = batched.current_batch().contexts
        return [len(text) * context[factor] for text, context in zip(texts, contexts, strict=True)]

    def check() -> None:
        factor.set(2.0)
        assert_independent(times, TEXTS)

    copy_context().run(check)


def centered(texts: list[str]) -> Any:
    values = np.array(lengths(texts))
    return values - values.mean()


def padded(texts: list[str]) -> list[float]:
    longest = max(map(len, texts))
    return [sum(map(ord, text.ljust(longest))) / longest for text in texts]


def in_order_of_length(texts: list[str]) -> list[float]:
    return lengths(sorted(texts))


def one_less(texts: list[str]) -> list[float]:
    return lengths(texts)[: max(len(texts) - 1, 1)]


def without_equal_items(texts: list[str]) -> list[float]:
    return lengths(list(dict.fromkeys(texts)))


def of_the_first(texts: list[str]) -> list[float]:
    return [float(len(texts[0]))] * len(texts)


def only_alike(texts: list[str]) -> list[float]:
    if len({*map(len, texts)}) > 1:
        raise ValueError("rows differ")
    return lengths(texts)


def counting() -> Callable[[list[str]], list[float]]:
    calls = itertools.count()
    return lambda texts: [len(text) + next(calls) * 0.5 for text in texts]


def drawing() -> Callable[[list[str]], list[float]]:
    chance = random.Random(1)
    return lambda texts: [len(text) + chance.random() for text in texts]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (centered, "depends on the other items"),
        (padded, "padding without a mask"),
        (in_order_of_length, "in another order"),
        (one_less, "returned 3 results for a batch of 4 items"),
        (without_equal_items, "returned 1 result for a batch of 2 items"),
        (of_the_first, "all items of the batch have one answer"),
        (only_alike, "does not take these items together"),
        (counting(), r"items\[0\].* keeps something from batch to batch"),
        (drawing(), r"items\[0\].* draws random numbers"),
    ],
)
def test_each_planted_fault_is_found(function: Callable[..., Any], says: str) -> None:
    """The message names an item, and what may be the cause."""
    with pytest.raises(AssertionError, match=says):
        assert_independent(function, TEXTS)


def test_items_are_named_by_their_places_in_the_list_that_was_given() -> None:
    """Not by those in a batch, as an index; so is the first that differs, in batches of another order."""

    def longest_wins(texts: list[str]) -> list[int]:
        return [max(map(len, texts)) if text == "x" else len(text) for text in texts]

    with pytest.raises(AssertionError) as raised:
        assert_independent(batched.dynamically(longest_wins, batch_size=2), TEXTS)
    assert str(raised.value).startswith(
        "items[2], 'x', has the answer 1 alone, and 20 in the batch of items[2], items[3]: all"
    )


def test_state_that_is_kept_from_batch_to_batch_is_found() -> None:
    """Also if batches of several items show nothing of it."""
    seen: set[str] = set()

    def first_time(texts: list[str]) -> list[bool]:
        if len(texts) > 1:
            return [True] * len(texts)
        is_new = texts[0] not in seen
        seen.update(texts)
        return [is_new]

    with pytest.raises(AssertionError, match="keeps something from batch to batch"):
        assert_independent(first_time, TEXTS)


def test_batch_normalization_in_training_mode_is_found() -> None:
    """And the same model passes in evaluation mode."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))

    def run(rows: list[Any]) -> Any:
        with torch.inference_mode():
            return model(torch.stack(rows))

    items = [torch.randn(3) for _ in range(4)]
    with pytest.raises(AssertionError, match=r"items\[0\]"):
        assert_independent(run, items)
    model.eval()
    assert_independent(run, items)


@needs_torch
def test_tensors_are_compared_without_numpy_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of floating point and whole numbers, also beside plain ones."""
    items = [torch.tensor([number, 2.0]) for number in range(3)]
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert_independent(lambda rows: torch.stack(rows) * 2, items)
    assert_independent(lambda rows: [(row > 1).sum() for row in rows], items)
    with pytest.raises(AssertionError, match="depends on the other items"):
        assert_independent(lambda rows: torch.stack(rows) * len(rows), items)
    with pytest.raises(AssertionError, match="Tensor of torch.float32 alone, and of type list beside others"):
        assert_independent(lambda rows: [row if len(rows) == 1 else row.tolist()[:1] for row in rows], items)


PROMOTED: dict[str, tuple[Callable[[list[Any]], Any], list[Any], str]] = {
    "a list by an array": (
        lambda xs: np.array(xs).tolist(),
        [1, 2.5],
        "of type int alone, and of type float",
    ),
    "numbers": (lambda xs: np.array(xs), [1, 2.5], "numpy.int64 alone, and of type numpy.float64"),
    "truth": (lambda xs: np.array(xs).tolist(), [True, 2], "of type bool alone, and of type int"),
    "rows": (
        lambda xs: [*np.stack(xs)],
        [np.float32([1, 2]), np.float64([3, 4])],
        "ndarray of float32 alone, and of type numpy.ndarray of float64",
    ),
    "a part of a row": (
        lambda xs: [{"score": x} for x in np.array(xs).tolist()],
        [1, 2.5],
        r"\{'score': 1\} alone, and \{'score': 1.0\}",
    ),
    "a container": (
        lambda xs: [(x,) if len(xs) > 1 else [x] for x in xs],
        [1, 2],
        "list alone, and of type tuple",
    ),
}


@pytest.mark.parametrize("what", PROMOTED)
def test_a_type_that_an_item_has_of_its_neighbors_is_found(what: str) -> None:
    """The same number of another type is another answer: another text in JSON, another width in memory."""
    function, items, says = PROMOTED[what]
    with pytest.raises(AssertionError, match=says):
        assert_independent(function, items)


@needs_torch
def test_tensors_that_are_widened_by_others_are_found() -> None:
    """Also where all values are the same."""
    items = [torch.zeros(2), torch.ones(2, dtype=torch.float64)]
    with pytest.raises(AssertionError, match=r"torch.float32 alone, and of type .*torch.float64"):
        assert_independent(lambda rows: [*torch.stack([row.to(max_type(rows)) for row in rows])], items)


def max_type(rows: list[Any]) -> Any:
    return torch.float64 if any(row.dtype == torch.float64 for row in rows) else torch.float32


def test_texts_of_an_array_may_have_the_width_of_the_longest() -> None:
    """That is how numpy keeps them; the text is the same."""
    assert_independent(lambda texts: [np.array(texts)[at : at + 1] for at in range(len(texts))], TEXTS)


def test_tuples_of_a_class_that_is_made_anew_pass() -> None:
    """A data frame makes one each time that it is asked for its rows."""
    assert_independent(lambda texts: [namedtuple("Row", "size")(len(text)) for text in texts], TEXTS)  # noqa: PYI024


def equal_items_once(texts: list[str]) -> list[list[int]]:
    found = {text: [len(text)] for text in texts}
    return [found[text] for text in texts]


def one_header(texts: list[str]) -> list[dict[str, Any]]:
    header: dict[str, str] = {}
    return [{"size": len(text), "header": (1, header)} for text in texts]


@dataclass
class Answer:
    """An answer that can be changed."""

    size: int


def one_object(texts: list[str]) -> list[Answer]:
    found = {len(text) // 2: Answer(len(text) // 2) for text in texts}
    return [found[len(text) // 2] for text in texts]


@pytest.mark.parametrize("function", [one_header, one_object])
def test_answers_that_share_what_can_be_changed_are_found(function: Callable[..., Any]) -> None:
    """What one caller changes in its answer would change for another, of the same batch only."""
    with pytest.raises(
        AssertionError, match=r"items\[\d\] have the same object, .* if one caller changes it"
    ):
        assert_independent(function, TEXTS)


def test_answers_may_share_what_all_batches_share() -> None:
    """A table of the function is no part of a batch; what cannot be changed hurts no caller."""
    labels = {True: {"label": "long"}, False: {"label": "short"}}
    kept: dict[str, list[int]] = {}
    assert_independent(lambda texts: [labels[len(text) > 3] for text in texts], TEXTS)
    assert_independent(lambda texts: [kept.setdefault(text, [len(text)]) for text in texts], TEXTS)
    assert_independent(lambda texts: [("one", frozenset({1}))] * len(texts), TEXTS)
    # Callers get copies of these:
    assert_independent(lambda texts: [np.ones(2)] * len(texts), TEXTS)
    assert_independent(equal_items_once, TEXTS)


def test_items_that_the_function_changes_are_found() -> None:
    """A batch runs again if one of its items fails: each of the others would have been changed twice."""

    def less_one(rows: list[Any]) -> list[Any]:
        for row in rows:
            row -= 1.0  # noqa: PLW2901
        return [row.sum() for row in rows]

    def taken_out(rows: list[dict[str, str]]) -> list[int]:
        return [len(row.pop("text")) for row in rows]

    def noted(rows: list[dict[str, Any]]) -> list[int]:
        for row in rows:
            row["size"] = len(row["text"])
        return [row["size"] for row in rows]

    arrays, dicts = [np.ones(2), np.zeros(2)], [{"text": "a"}, {"text": "bb"}]
    for function, items in ((less_one, arrays), (taken_out, dicts)):
        with pytest.raises(AssertionError, match="if it runs once more.*the function changes its items"):
            assert_independent(function, items)
        assert_independent(batched.dynamically(function, isolate_errors=False), items)  # type: ignore[call-overload]
    assert_independent(noted, dicts)
    assert_independent(lambda files: [len(file.read()) for file in files], [BytesIO(b"a"), BytesIO(b"bb")])
    assert arrays[0].sum() == 2.0
    assert dicts[0] == {"text": "a"}


def test_items_that_cannot_be_copied_are_used_as_they_are() -> None:
    """But for those that a run uses up, as there is no second run."""
    assert_independent(lambda locks: [lock.locked() for lock in locks], [Lock(), Lock()])
    with pytest.raises(TypeError, match="<generator .* can only be used once, as it cannot be copied"):
        assert_independent(lambda rows: [sum(row) for row in rows], [(n for n in range(3)), [1]])


def test_padding_of_arrays_that_leaks_into_one_column_is_found() -> None:
    """However many other columns are right."""

    def columns(rows: list[Any]) -> Any:
        width = max(map(len, rows))
        values = np.stack([np.pad(row, (0, width - len(row))) for row in rows])
        return np.stack([values.sum(1), values.mean(1) / 1000, values.max(1)], axis=1)

    with pytest.raises(AssertionError, match="padding without a mask"):
        assert_independent(columns, [np.ones(2), np.ones(5)])


def test_padding_of_arrays_that_leaks_is_found() -> None:
    """A mean over the padded axis depends on the longest row; with the mask it does not."""

    @batched.inference.dynamically
    def leaking(features: dict[str, Any]) -> Any:
        return features["x"].mean(axis=1)

    @batched.inference.dynamically
    def masked(features: dict[str, Any]) -> Any:
        mask = features["mask"]
        return (features["x"] * mask).sum(axis=1) / mask.sum(axis=1)

    items = [{"x": np.ones((1, size)), "mask": np.ones((1, size))} for size in (2, 5, 3)]
    with pytest.raises(AssertionError, match="padding without a mask"):
        assert_independent(leaking, items)
    assert_independent(masked, items)

    with pytest.raises(AssertionError, match="which `unpad_outputs` cuts off"):
        assert_independent(batched.inference.dynamically(lambda features: features["x"] * 2), items)
    unpadded = batched.inference.dynamically(lambda features: features["x"] * 2, unpad_outputs=True)
    assert_independent(unpadded, items)


@needs_torch
def test_features_need_not_have_deep_copies() -> None:
    """As a tensor of a graph has none; the function is given copies in any case."""

    @batched.inference.dynamically
    def doubled(features: dict[str, Any]) -> Any:
        return features["x"].mul(2)

    leaf = torch.ones((1, 2), requires_grad=True)
    assert_independent(doubled, [{"x": leaf * number} for number in range(3)])


def test_columns_by_name_only_have_their_values_too() -> None:
    """A tuple has a value for each parameter but settings, in their order, however these are passed."""

    def joined(lefts: list[str], loud: bool = False, *, rights: list[int]) -> list[str]:
        return [f"{left}{right}{loud}" for left, right in zip(lefts, rights, strict=True)]

    def mixed(lefts: list[str], *, rights: list[int]) -> list[str]:
        return [f"{left}{max(rights)}" for left in lefts]

    def doubled(*, numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    pairs = [("a", 1), ("b", 2), ("c", 3)]
    assert_independent(joined, pairs)
    with pytest.raises(AssertionError, match="depends on the other items"):
        assert_independent(mixed, pairs)
    assert_independent(doubled, [1, 2, 3])
    with pytest.raises(TypeError, match="lefts, loud, rights: too many positional"):
        assert_independent(joined, [("a", 1, 2), ("b", 2, 3)])


def test_items_of_unlike_keys_share_no_batch() -> None:
    """As in a service: a function that takes only items of one key passes; one key still finds a fault."""

    def stacked(images: list[Any]) -> Any:
        return np.stack(images).mean(axis=(1, 2))

    def compared(images: list[Any]) -> Any:
        return stacked(images) - np.stack(images).mean()

    def shape(image: Any) -> tuple[int, ...]:
        return tuple(image.shape)

    images = [np.full((2 + number % 2, 2), number) for number in range(4)]
    for more in ({}, {"batch_sizes": (1, 4)}, {"prepare": list}, {"cache": {}, "cache_key": id}):
        assert_independent(batched.dynamically(stacked, group_by=shape, **more), images)
    with pytest.raises(AssertionError, match="depends on the other items"):
        assert_independent(batched.dynamically(compared, group_by=shape), images)


def test_the_cache_does_not_hide_the_function() -> None:
    """The function runs, though its cache knows the answers."""
    fn = batched.dynamically(centered, cache=dict.fromkeys(TEXTS, 0.0))
    with pytest.raises(AssertionError, match="depends"):
        assert_independent(fn, TEXTS)


def test_what_cannot_be_tried_is_refused() -> None:
    """One item has no others; a stream has no results; a method needs its instance."""

    def pieces(texts: list[str]) -> Any:
        yield texts

    class Model:
        @batched.dynamically
        def embed(self, texts: list[str]) -> list[int]:
            return [len(text) for text in texts]

    with pytest.raises(TypeError, match="takes a list of items, or another iterable, got 3"):
        assert_independent(Model().embed, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 2, got 1"):
        assert_independent(lengths, ["one"])
    with pytest.raises(TypeError, match="streams"):
        assert_independent(pieces, TEXTS)
    unbound: Any = Model.embed
    for tool, ask in {"assert_independent": assert_independent, "profile": profile}.items():
        with pytest.raises(TypeError, match=rf"{tool} takes the method of an instance, got .*Model\.embed"):
            ask(unbound, TEXTS)
        with pytest.raises(TypeError, match=f"{tool} takes a function, got 3"):
            ask(3, TEXTS)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"manual_clock takes the method of an instance, got .*Model\.embed"):
        manual_clock(unbound)


class Scored:
    """A result that equals itself only."""

    def __init__(self, score: float, parent: Any = None) -> None:
        self.score = score
        self.parent = parent


def answers_of(make: Callable[[float], Any]) -> list[Callable[[list[str]], list[Any]]]:
    """Return a function that treats items alike up to the last digits, and one that does not."""
    return [
        lambda texts: [make(len(text) * (1 + 1e-9 * len(texts))) for text in texts],
        lambda texts: [make(float(len(text) * len(texts))) for text in texts],
    ]


RECORD = np.dtype([("score", float), ("text", "U3")])
KINDS: dict[str, Callable[[float], Any]] = {
    "an object": Scored,
    "an object with fields": lambda score: SimpleNamespace(score=score, array=np.array([score, 1.0])),
    "complex numbers": lambda score: [complex(score, 1.0), complex("nan"), complex("inf")],
    "nested objects": lambda score: Scored(1.0, [Scored(score)]),
    "an array of objects": lambda score: np.array(["a", score], dtype=object),
    "rows with fields": lambda score: np.array([(score, "a")], dtype=RECORD),
    "times": lambda score: {"at": np.array(["2020-01-01", "NaT"], dtype="datetime64[s]"), "score": score},
}


@pytest.mark.parametrize("kind", KINDS)
def test_answers_of_any_kind_are_compared(kind: str) -> None:
    """Numbers in them up to their last digits; of objects without `==`, the attributes."""
    independent, dependent = answers_of(KINDS[kind])
    assert_independent(independent, TEXTS)
    with pytest.raises(AssertionError, match="depends on the other items"):
        assert_independent(dependent, TEXTS)


@needs_torch
def test_sparse_tensors_are_compared() -> None:
    """As dense ones are."""
    independent, dependent = answers_of(lambda score: torch.tensor([[0.0, score]]).to_sparse())
    assert_independent(independent, TEXTS)
    with pytest.raises(AssertionError, match="depends on the other items"):
        assert_independent(dependent, TEXTS)


class Sparse:
    """A matrix as those of scipy: it is no array, and `==` of two is a matrix."""

    def __init__(self, score: float) -> None:
        self._score = score

    def toarray(self) -> Any:
        """Return it as an array."""
        return np.array([[0.0, self._score]])

    def __eq__(self, other: object) -> Any:
        return np.array([[True, False]])

    __hash__ = None  # type: ignore[assignment]


def test_sparse_matrices_are_compared() -> None:
    """As dense ones are."""
    independent, dependent = answers_of(Sparse)
    assert_independent(independent, TEXTS)
    with pytest.raises(AssertionError, match="depends on the other items"):
        assert_independent(dependent, TEXTS)


def test_answers_that_cannot_be_compared_are_no_fault_of_the_function() -> None:
    """A `TypeError` says so, and why."""

    class Odd:
        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        __hash__ = None  # type: ignore[assignment]

    def looped(texts: list[str]) -> list[Any]:
        found = [Scored(1.0) for _ in texts]
        for each in found:
            each.parent = each
        return found

    for function, says in (
        (lambda texts: [object() for _ in texts], "object cannot be compared: it equals only itself"),
        (lambda texts: [Odd() for _ in texts], "Odd cannot be compared: == fails with ValueError: ambiguous"),
        (looped, "Scored cannot be compared: it leads back to itself"),
    ):
        with pytest.raises(TypeError, match=says):
            assert_independent(function, TEXTS)


@needs_torch
@pytest.mark.parametrize("options", [{"device": "meta"}, {"dtype": "float8_e4m3fn"}], ids=str)
def test_tensors_without_values_that_can_be_read_cannot_be_compared(options: dict[str, str]) -> None:
    """Those of the device "meta" have none, and numpy has not all types of torch."""
    device, dtype = options.get("device", "cpu"), getattr(torch, options.get("dtype", "float32"))

    def function(texts: list[str]) -> list[Any]:
        return [torch.empty(2, dtype=dtype, device=device) for _ in texts]

    with pytest.raises(TypeError, match="Tensor cannot be compared: its values cannot be read"):
        assert_independent(function, TEXTS)


def test_what_could_be_compared_with_nothing_is_found() -> None:
    """A function that fails for each item; integers that are near; items that are changed in place."""
    with pytest.raises(AssertionError, match="every item fails alone"):
        assert_independent(lambda text: text.upper(), TEXTS)  # type: ignore[arg-type, attr-defined]
    with pytest.raises(AssertionError, match="another order"):
        assert_independent(lambda numbers: numbers[::-1], [50256, 50257])

    def in_place(rows: list[Any]) -> list[Any]:
        total = sum(row.sum() for row in rows)
        for row in rows:
            np.subtract(row, total, out=row)
        return rows

    with pytest.raises(AssertionError, match="depends on the other items"):
        assert_independent(in_place, [np.ones(2), np.zeros(2)])


def test_an_item_that_fails_its_batch_is_no_fault_where_batches_run_again() -> None:
    """As isolation finds it. With a running event loop, too."""

    async def inverted(numbers: list[int]) -> list[float]:
        return [1 / number for number in numbers]

    async def main() -> None:
        assert_independent(inverted, [1, 2, 0])

    asyncio.run(main())

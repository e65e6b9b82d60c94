"""Several parameters: each that a caller passes is a column."""

from __future__ import annotations

from typing import Any

import pytest

import batched
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, until


class Pairs:
    """A batch function of several parameters, that notes what it was passed."""

    def __init__(self) -> None:
        self.batches: list[tuple[Any, ...]] = []

    def __call__(self, xs: list[Any], ys: list[Any] | None = None, *, scale: Any = None) -> list[Any]:
        """Return what there is of each item."""
        self.batches.append((xs, ys, scale))
        return [tuple(row) for row in zip(*(c for c in (xs, ys, scale) if c is not None), strict=True)]


def test_items_and_lists_by_position_and_name(flavour: Flavour) -> None:
    """One item is one value per column, several are lists of as many."""
    fn = flavour.decorate(Pairs(), timeout_ms=0)
    assert flavour.call(fn, 1, 2) == (1, 2)
    assert flavour.call(fn, 1, ys=2) == (1, 2)
    assert flavour.call(fn, ys=2, xs=1) == (1, 2)
    assert flavour.call(fn, [1, 3], [2, 4]) == [(1, 2), (3, 4)]
    assert flavour.call(fn, xs=[1, 3], ys=[2, 4], scale=[5, 6]) == [(1, 2, 5), (3, 4, 6)]
    assert flavour.call(fn, [], []) == []
    assert flavour.call(fn, (1, 2), "ab") == ((1, 2), "ab")


def test_a_parameter_that_is_not_passed_keeps_its_default(flavour: Flavour) -> None:
    """It is not passed on."""
    pairs = Pairs()
    fn = flavour.decorate(pairs, timeout_ms=0)
    assert flavour.call(fn, 1) == (1,)
    assert flavour.call(fn, [1, 2]) == [(1,), (2,)]
    assert flavour.call(fn, 1, scale=3) == (1, 3)
    assert pairs.batches == [([1], None, None), ([1, 2], None, None), ([1], None, [3])]


def test_the_only_parameter_may_be_passed_by_name_only(flavour: Flavour) -> None:
    """The function is given its list by name, too; a call by position is told the name."""

    def doubled(*, numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    fn = flavour.decorate(doubled, timeout_ms=0)
    assert flavour.call(fn, numbers=2) == 4
    assert flavour.call(fn, numbers=[1, 2]) == [2, 4]
    with pytest.raises(TypeError, match="doubled takes the parameters numbers: too many positional"):
        flavour.call(fn, 2)


def test_calls_of_different_parameters_never_share_a_batch(flavour: Flavour) -> None:
    """Calls that pass the same do, by position or by name."""
    pairs = Pairs()
    fn = flavour.decorate(pairs, batch_size=3, timeout_ms=60_000)
    futures = [
        flavour.start(fn, 1),
        flavour.start(fn, 2, 20),
        flavour.start(fn, 3, scale=30),
        flavour.start(fn, 4, ys=40),
        flavour.start(fn, scale=50, xs=5),
        flavour.start(fn, ys=60, xs=6),
        flavour.start(fn, [7, 8]),
        flavour.start(fn, 9, scale=90),
    ]
    answers = [future.result(PATIENCE_S) for future in futures]
    assert answers == [(1,), (2, 20), (3, 30), (4, 40), (5, 50), (6, 60), [(7,), (8,)], (9, 90)]
    assert sorted(pairs.batches, key=lambda batch: batch[0]) == [
        ([1, 7, 8], None, None),
        ([2, 4, 6], [20, 40, 60], None),
        ([3, 5, 9], None, [30, 50, 90]),
    ]


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        (([1, 2], [3]), {}, "xs: a list of 2, ys: a list of 1$"),
        (([1, 2], 3), {}, r"xs: a list of 2, ys: one item; pass one item for all as \[item\] \* 2$"),
        ((1,), {"ys": [3]}, "xs: one item, ys: a list of 1"),
        (([1],), {"scale": [1, 2]}, "xs: a list of 1, scale: a list of 2"),
        (([],), {"ys": [1]}, "xs: a list of 0, ys: a list of 1"),
    ],
)
def test_columns_of_unequal_length_are_an_error(
    flavour: Flavour, args: Any, named: Any, message: str
) -> None:
    """It says how long each is, and fails that call only."""
    fn = flavour.decorate(Pairs(), timeout_ms=0)
    with pytest.raises(ValueError, match=message):
        flavour.call(fn, *args, **named)
    assert flavour.call(fn, 1, 2) == (1, 2)
    assert fn.stats.total_accepted == 1


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((), {}, "missing a required argument: 'xs'"),
        ((), {"ys": 1}, "missing a required argument: 'xs'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"xs": 1}, "multiple values for argument 'xs'"),
        ((1,), {"zs": 1}, "got an unexpected keyword argument 'zs'"),
    ],
)
def test_what_python_would_refuse_is_refused(flavour: Flavour, args: Any, named: Any, message: str) -> None:
    """With the function's name and its parameters."""
    fn = flavour.decorate(Pairs(), timeout_ms=0, name="pair")
    with pytest.raises(TypeError, match=f"pair takes the parameters xs, ys, scale: {message}"):
        flavour.call(fn, *args, **named)


def test_parameters_for_any_number_of_columns_are_named(flavour: Flavour) -> None:
    """With their stars: these may be all that a function has."""

    def of_all(*columns: list[int], **named: list[int]) -> list[int]:
        return columns[0]

    with pytest.raises(TypeError, match=r"of_all takes the parameters \*columns, \*\*named: none was given"):
        flavour.call(flavour.decorate(of_all, timeout_ms=0))


@pytest.mark.parametrize(
    ("item", "remedy"),
    [
        ((1, 2), "as in fn(*item), and many to a map as in fn.map(*zip(*items))"),
        ([(1, 2), (3, 4)], "as in fn(*map(list, zip(*items)))"),
    ],
)
def test_tuples_in_the_place_of_columns_are_told_what_to_write(
    flavour: Flavour, item: Any, remedy: str
) -> None:
    """And what they are told works."""
    fn = flavour.decorate(lambda xs, ys: list(zip(xs, ys, strict=True)), timeout_ms=0)
    with pytest.raises(TypeError, match="missing a required argument: 'ys'; ") as caught:
        flavour.call(fn, item)
    assert str(caught.value).endswith(remedy)
    assert flavour.call(fn, *(1, 2)) == (1, 2)
    assert flavour.call(fn, *map(list, zip((1, 2), (3, 4), strict=True))) == [(1, 2), (3, 4)]


def test_any_number_of_columns(flavour: Flavour) -> None:
    """`*columns` and `**columns` take what they are given."""

    def join(*columns: list[Any], **named: list[Any]) -> list[Any]:
        return list(zip(*columns, *(named[name] for name in sorted(named)), strict=True))

    fn = flavour.decorate(join, timeout_ms=0)
    assert flavour.call(fn, 1, 2, 3) == (1, 2, 3)
    assert flavour.call(fn, [1, 2], b=[3, 4], a=[5, 6]) == [(1, 5, 3), (2, 6, 4)]
    with pytest.raises(TypeError, match="none was given"):
        flavour.call(fn)


def test_positional_only_parameters(flavour: Flavour) -> None:
    """Are not passed by name."""

    def add(xs: list[int], ys: list[int], /) -> list[int]:
        return [x + y for x, y in zip(xs, ys, strict=True)]

    fn = flavour.decorate(add, timeout_ms=0)
    assert flavour.call(fn, 1, 2) == 3
    with pytest.raises(TypeError, match="positional.only"):  # by Python's version
        flavour.call(fn, 1, ys=2)


def test_map_takes_an_iterable_per_column(flavour: Flavour) -> None:
    """As the built-in does, to the end of the shortest."""
    fn = flavour.decorate(Pairs(), batch_size=4, timeout_ms=0)
    assert flavour.map(fn, range(10), range(10, 99)) == [(n, n + 10) for n in range(10)]
    with pytest.raises(TypeError, match="too many positional arguments"):
        flavour.map(fn, [1], [2], [3])


def test_an_element_of_a_map_is_one_item_even_a_tuple(flavour: Flavour) -> None:
    """A function with defaults, as a cross-encoder's `predict`, is not passed its parts as columns."""
    pairs = Pairs()
    fn = flavour.decorate(pairs, timeout_ms=0)
    assert flavour.map(fn, [("a", "b"), [1, 2]]) == [(("a", "b"),), ([1, 2],)]
    assert flavour.map(fn, [("a", "b")], [("c", "d")]) == [(("a", "b"), ("c", "d"))]
    one = flavour.decorate(lambda xs: xs, timeout_ms=0, name="one")
    assert flavour.map(one, [("a", "b")]) == [("a", "b")]
    with pytest.raises(TypeError, match="one takes one argument, so `map` takes one iterable"):
        flavour.map(one, [1], [2])


def test_methods_have_columns_besides_self(flavour: Flavour) -> None:
    """Class methods and static ones too."""
    flavour.needs_threads()

    class Model:
        @batched.dynamically(timeout_ms=0)
        def add(self, xs: list[int], ys: list[int]) -> list[int]:
            return [x + y for x, y in zip(xs, ys, strict=True)]

        @batched.dynamically(timeout_ms=0)
        @classmethod
        def of_class(cls, xs: list[int], ys: list[int]) -> list[int]:
            return [x + y for x, y in zip(xs, ys, strict=True)]

        @batched.dynamically(timeout_ms=0)
        @staticmethod
        def static(xs: list[int], ys: list[int]) -> list[int]:
            return [x + y for x, y in zip(xs, ys, strict=True)]

        def plain(self, xs: list[int], ys: list[int]) -> list[int]:
            return [x + y for x, y in zip(xs, ys, strict=True)]

    model = Model()
    for fn in (model.add, model.of_class, Model.of_class, model.static, batched.dynamically(model.plain)):
        assert flavour.call(fn, 1, ys=2) == 3
        assert flavour.call(fn, [1, 3], [2, 4]) == [3, 7]
    assert Model.add(model, 1, 2) == 3


def test_the_callers_columns_are_copied_and_errors_stay_in_place(flavour: Flavour) -> None:
    """As with one parameter."""

    def divide(xs: list[int], ys: list[int]) -> list[Any]:
        return [ZeroDivisionError() if not y else x // y for x, y in zip(xs, ys, strict=True)]

    fn = flavour.decorate(divide, batch_size=2, timeout_ms=0)
    answers = flavour.call(fn.options(return_exceptions=True), [2, 4, 6], [1, 0, 3])
    assert [2, ZeroDivisionError, 2] == [row if isinstance(row, int) else type(row) for row in answers]
    with pytest.raises(ZeroDivisionError):
        flavour.call(fn, [1], [0])


def test_columns_may_be_grouped_and_cached(flavour: Flavour) -> None:
    """The callbacks are passed what the caller passed, by item."""
    seen = []
    cache: dict[Any, Any] = {}

    def key(x: int, y: int = 0) -> int:
        seen.append((x, y))
        return y

    pairs = Pairs()
    fn = flavour.decorate(pairs, batch_size=2, timeout_ms=0, group_by=key, cache=cache)
    assert flavour.call(fn, [1, 2, 3, 4], [0, 1, 0, 1]) == [(1, 0), (2, 1), (3, 0), (4, 1)]
    assert sorted(pairs.batches) == [([1, 3], [0, 0], None), ([2, 4], [1, 1], None)]
    assert seen == [(1, 0), (2, 1), (3, 0), (4, 1)]
    assert flavour.call(fn, [4, 1], [1, 0]) == [(4, 1), (1, 0)]
    assert flavour.call(fn, 3, ys=0) == (3, 0)
    until(lambda: not fn.stats.running_items)
    assert fn.stats.total_batches == 2

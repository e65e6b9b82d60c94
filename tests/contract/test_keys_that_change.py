"""Keys that change, or fail, while their calls wait: these calls fail, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from batched import BatchError
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.stats import check_sums


class Changing:
    """A key, or an item, of which the hash or the equality may change."""

    def __init__(self, name: int) -> None:
        self.name = name
        self.hashed = hash(("changing", name))
        self.fails = ""

    def __hash__(self) -> int:
        if self.fails == "hash":
            raise ZeroDivisionError("no hash")
        return self.hashed

    def __eq__(self, other: object) -> bool:
        if self.fails == "eq" or (isinstance(other, Changing) and other.fails == "eq"):
            raise ZeroDivisionError("no equality")
        return isinstance(other, Changing) and self.name == other.name


def alter(key: Changing, how: str) -> None:
    """Have `key` change, or fail, from now on."""
    match how:
        case "another hash":
            key.hashed += 1
        case "another name":
            key.name += 1
            key.hashed = hash(("changing", key.name))
        case _:
            key.fails = how


CHANGES = ["another hash", "another name", "hash"]
OPTIONS = ["group_by", "fair_by", "cache_key"]


def options_of(option: str) -> dict[str, Any]:
    """Return options that take the key of an item, a pair, where that is not text."""
    chosen: dict[str, Any] = {option: lambda item: item if isinstance(item, str) else item[0]}
    return chosen | ({"cache": {}} if option == "cache_key" else {})


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("is_list", [False, True], ids=["single", "list"])
def test_a_key_that_changes_fails_its_own_calls(
    flavour: Flavour, option: str, how: str, is_list: bool
) -> None:
    """With an error that says so. Others are answered, also with a key that was equal or is now."""
    gate = Gate(lambda items: [item if isinstance(item, str) else item[1] for item in items], shut=True)
    fn = flavour.decorate(gate, batch_size=8, timeout_ms=0, name="embed", **options_of(option))
    first = flavour.start(fn, "first")
    gate.wait_for_batch()
    altered, same, following, other = Changing(1), Changing(1), Changing(2), Changing(5)
    changes = flavour.start(fn, [(altered, "changes")] if is_list else (altered, "changes"))
    others = [
        flavour.start(fn, (key, "same" if key is same else "other")) for key in (same, following, other)
    ]
    others.append(flavour.start(fn, ["plain", "text"]))
    alter(altered, how)
    later = flavour.start(fn, (Changing(7), "later"))
    gate.open()
    with pytest.raises(BatchError, match=f"embed: {option}.* Changing.* hash.* cannot change"):
        changes.result(PATIENCE_S)
    answers = [future.result(PATIENCE_S) for future in (first, *others, later)]
    shared = "changes" if option == "cache_key" else "same"  # computed once, for the first of equal keys
    assert answers == ["first", shared, "other", "other", ["plain", "text"], "later"]
    assert flavour.call(fn, (Changing(1), "again")) == "again"
    check_sums(fn)


@pytest.mark.parametrize("option", OPTIONS)
def test_an_equality_that_fails_later_is_not_asked(flavour: Flavour, option: str) -> None:
    """Keys are compared as their calls come, and then no more."""
    gate = Gate(lambda items: [item if isinstance(item, str) else item[1] for item in items], shut=True)
    fn = flavour.decorate(gate, batch_size=8, timeout_ms=0, **options_of(option))
    first = flavour.start(fn, "first")
    gate.wait_for_batch()
    keys = [Changing(number) for number in range(4)]
    for key in keys:
        key.hashed = 7
    calls = [flavour.start(fn, (key, key.name)) for key in [*keys, *keys]]
    for key in keys:
        key.fails = "eq"
    gate.open()
    assert first.result(PATIENCE_S) == "first"
    assert [future.result(PATIENCE_S) for future in calls] == [0, 1, 2, 3] * 2
    assert flavour.call(fn, "later") == "later"
    check_sums(fn)


@pytest.mark.parametrize("option", ["group_by", "fair_by", "cache_key"])
def test_a_key_that_can_be_compared_no_more_fails_no_call_that_comes(flavour: Flavour, option: str) -> None:
    """Though it is compared with the key that comes, of another class with the same hash."""

    class Whole:
        def __hash__(self) -> int:
            return hash(Changing(1))

        def __eq__(self, other: object) -> bool:
            return self is other or (isinstance(other, Changing) and other == self)

    gate = Gate(lambda items: [item if isinstance(item, str) else item[1] for item in items], shut=True)
    fn = flavour.decorate(gate, batch_size=8, timeout_ms=0, name="embed", **options_of(option))
    first = flavour.start(fn, "first")
    gate.wait_for_batch()
    broken = Changing(1)
    waits = flavour.start(fn, (broken, "waits"))
    broken.fails = "eq"
    comes = [flavour.start(fn, (Whole(), number)) for number in range(2)]
    gate.open()
    assert (first.result(PATIENCE_S), waits.result(PATIENCE_S)) == ("first", "waits")
    assert [future.result(PATIENCE_S) for future in comes] == [0, 1]
    check_sums(fn)


class Incomparable:
    """A key with the hash of a text, which cannot be compared with it."""

    def __hash__(self) -> int:
        return hash("text")

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("no equality")


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("comes", ["first", "last"])
def test_a_key_that_cannot_be_compared_with_a_plain_one_fails_no_call(
    flavour: Flavour, option: str, comes: str
) -> None:
    """It is another key."""
    gate = Gate(lambda items: [item if isinstance(item, str) else item[1] for item in items], shut=True)
    fn = flavour.decorate(gate, batch_size=8, timeout_ms=0, **options_of(option))
    first = flavour.start(fn, "first")
    gate.wait_for_batch()
    items = [(Incomparable(), "odd"), ("text", "plain")]
    calls = [flavour.start(fn, item) for item in (items if comes == "first" else reversed(items))]
    gate.open()
    assert first.result(PATIENCE_S) == "first"
    assert {call.result(PATIENCE_S) for call in calls} == {"odd", "plain"}
    flavour.close(fn)


@pytest.mark.parametrize("how", CHANGES)
def test_an_item_that_is_its_own_key_fails_if_it_changes(flavour: Flavour, how: str) -> None:
    """And is not stored: the cache would give its answer for another item."""
    gate = Gate(lambda items: [getattr(item, "name", item) for item in items], shut=True)
    cache: dict[Any, Any] = {}
    fn = flavour.decorate(gate, timeout_ms=0, name="embed", cache=cache)
    first = flavour.start(fn, "first")
    gate.wait_for_batch()
    altered = Changing(1)
    changes, same = flavour.start(fn, altered), flavour.start(fn, Changing(1))
    other = flavour.start(fn, Changing(3))
    alter(altered, how)
    gate.open()
    for future in (changes, same):
        with pytest.raises(BatchError, match="embed: cache .* Changing.* hash"):
            future.result(PATIENCE_S)
    assert (first.result(PATIENCE_S), other.result(PATIENCE_S)) == ("first", 3)
    assert [getattr(key, "name", key) for key in cache] == ["first", 3]
    assert flavour.call(fn, Changing(1)) == 1


@pytest.mark.parametrize("option", ["group_by", "fair_by"])
@pytest.mark.parametrize("how", [*CHANGES, "eq"])
def test_calls_of_which_the_keys_changed_may_leave_and_be_classed_anew(
    flavour: Flavour, option: str, how: str
) -> None:
    """Each of these finds what waits of the key."""
    gate = Gate(lambda items: [item if isinstance(item, str) else item[1] for item in items], shut=True)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=0, max_queue_size=64, **options_of(option))
    first = flavour.start(fn, "first")
    gate.wait_for_batch()
    keys = [Changing(number) for number in range(3)]
    leaving = flavour.start(fn, (keys[0], "leaving"))
    changes = [flavour.start(fn, [(key, "changes")] * 2) for key in keys[1:]]
    for key in keys:
        alter(key, how)
    if flavour.cancels:
        flavour.cancel(leaving)
    fn.configure(batch_size=8)
    others = [flavour.start(fn, ["other"] * 2)]
    gate.open()
    for future in changes:
        if how == "eq":
            assert future.result(PATIENCE_S) == ["changes"] * 2
        else:
            with pytest.raises(BatchError, match="its hash changed|could not be hashed"):
                future.result(PATIENCE_S)
    assert first.result(PATIENCE_S) == "first"
    assert [future.result(PATIENCE_S) for future in others] == [["other"] * 2]
    assert flavour.call(fn, (Changing(9), "again")) == "again"
    check_sums(fn)


class HashedOnce:
    """A key that has a hash the first times that it is asked for, and fails then."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __hash__(self) -> int:
        self.times -= 1
        if self.times < 0:
            raise ZeroDivisionError("no hash")
        return 7


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("times", [0, 1])
def test_a_hash_that_fails_at_the_door_is_told_as_that_of_the_callback(
    flavour: Flavour, option: str, times: int
) -> None:
    """Also if it fails the second time that it is asked for."""
    fn = flavour.decorate(
        Gate(lambda items: [item if isinstance(item, str) else item[1] for item in items]),
        name="embed",
        **options_of(option),
    )
    with pytest.raises(BatchError, match=f"embed: {option}.*no hash"):
        flavour.call(fn, (HashedOnce(times), "fails"))
    assert flavour.call(fn, "plain") == "plain"


class Missing:
    """As pandas' `NA`: there is one, and whether it equals another cannot be told."""

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> Any:
        raise TypeError("boolean value of NA is ambiguous")


@pytest.mark.parametrize("option", OPTIONS)
def test_a_key_that_is_the_same_object_is_the_same_key(flavour: Flavour, option: str) -> None:
    """As in a dict, which does not ask whether an object equals itself."""
    missing = Missing()
    gate = Gate(lambda items: [item if isinstance(item, str) else item[1] for item in items], shut=True)
    fn = flavour.decorate(gate, batch_size=8, timeout_ms=0, name="embed", **options_of(option))
    first = flavour.start(fn, "first")
    gate.wait_for_batch()
    others = [flavour.start(fn, (missing, "same")) for _ in range(3)]
    gate.open()
    assert first.result(PATIENCE_S) == "first"
    assert [future.result(PATIENCE_S) for future in others] == ["same"] * 3
    check_sums(fn)


class Scalar:
    """As a number of NumPy: it has the hash of a plain one, and cannot be compared with a tuple."""

    def __hash__(self) -> int:
        return hash(1)

    def __eq__(self, other: object) -> Any:
        if isinstance(other, tuple):
            raise ZeroDivisionError("ambiguous")
        return isinstance(other, Scalar | int)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("is_list", [False, True], ids=["singles", "list"])
def test_plain_keys_and_others_may_have_one_hash(flavour: Flavour, option: str, is_list: bool) -> None:
    """Whichever comes first, all are answered."""
    gate = Gate(lambda items: [item if isinstance(item, str) else item[1] for item in items], shut=True)
    fn = flavour.decorate(gate, batch_size=8, timeout_ms=0, name="embed", **options_of(option))
    first = flavour.start(fn, "first")
    gate.wait_for_batch()
    keys: list[Any] = [1, Scalar(), (None, 1), (None, Scalar()), 1, Scalar()]
    items = [(key, "same") for key in keys]
    calls = [flavour.start(fn, items)] if is_list else [flavour.start(fn, item) for item in items]
    gate.open()
    assert first.result(PATIENCE_S) == "first"
    assert [future.result(PATIENCE_S) for future in calls] == ([["same"] * 6] if is_list else ["same"] * 6)
    check_sums(fn)

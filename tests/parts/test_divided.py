"""Lists in parts: each part knows the places of its items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

import batched
from batched._core.call import BELONGS
from batched._core.keys import Key, keys_of
from batched._parts.cache import ask_as
from batched._parts.divided import divide
from batched._parts.in_flight import CachedCall
from tests.kit.calls import listed, single
from tests.kit.errors import OwnError

ITEMS = 40_000


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("length", "is_bad"),
    [
        (lambda item: ITEMS if item == ITEMS // 2 else item * 7919 % ITEMS, lambda item: item == ITEMS // 2),
        (int, lambda _: True),
    ],
    ids=["one, of a list in no order", "all, from the last on"],
)
def test_a_long_list_that_fails_ends_soon(
    length: Callable[[int], float], is_bad: Callable[[int], bool]
) -> None:
    """It takes a second; with a look at all that waits for each batch, it had not ended after 100."""
    fn = batched.dynamically(
        lambda items: [OwnError(item) if is_bad(item) else item for item in items], length=length
    )
    with pytest.raises(OwnError) as raised:
        fn([*range(ITEMS)])
    assert raised.value.code == (ITEMS // 2 if length(ITEMS // 2) == ITEMS else 0)
    fn.shutdown()


@pytest.mark.parametrize("slot", BELONGS)
def test_a_call_in_the_place_of_another_belongs_to_the_same(slot: str) -> None:
    """Parts of a list, a call that a cache may answer, and one for what the cache has not; and no more."""
    call = listed(4)
    setattr(call, slot, value := Key(frozenset({1}), "f"))
    parts = divide(call, [[0, 2], [1, 3]], lambda inputs, places: [inputs[at] for at in places]).parts
    cached, missed = CachedCall(call, cast("Any", None), [*range(4)], []), single()
    ask_as(missed, cached)
    for each in (*parts, cached, missed):
        assert [getattr(each, other, None) is value for other in BELONGS] == [
            other == slot for other in BELONGS
        ]
        assert keys_of(each) == [value]
    assert keys_of(single()) == []

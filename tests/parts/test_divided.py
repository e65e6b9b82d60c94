"""Lists in parts: each part knows the places of its items."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import batched
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

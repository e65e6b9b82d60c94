"""Neither a cache nor the keys of groups keep an instance alive."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from tests.kit.flavours import Flavour
from tests.kit.gate import until


@pytest.mark.parametrize(
    "options",
    [
        {"cache": {}},
        {"group_by": lambda item: item % 2},
        {"fair_by": lambda item: item % 2},
        {"prepare": list, "finish": list},
    ],
    ids=["cache", "group_by", "fair_by", "stages"],
)
def test_an_instance_is_collected_though_it_was_grouped_or_its_results_are_kept(
    flavour: Flavour, options: dict[str, Any]
) -> None:
    """The cache keeps results and no instance; no key and no member of a group holds it."""
    cache: dict[Any, Any] = {}
    if "cache" in options:
        options = {"cache": cache}

    def embed(self: Any, items: list[int]) -> list[int]:
        return items

    cls = type("Model", (), {"embed": flavour.decorate(embed, timeout_ms=0, **options)})
    model = cls()
    assert flavour.call(model.embed, [1, 2, 1, 3]) == [1, 2, 1, 3]
    reference = weakref.ref(model)
    del model
    until(lambda: gc.collect() is not None and reference() is None)
    assert len(cache) == (3 if "cache" in options else 0)

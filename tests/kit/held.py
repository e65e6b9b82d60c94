"""Batchers whose worker is busy with a first call until its gate is opened."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import batched
from tests.kit.flavours import Flavour
from tests.kit.gate import Gate


def hold(flavour: Flavour, **options: Any) -> tuple[Gate, Any, Future[Any]]:
    """Return a batcher whose worker is busy with a first call until its gate is opened."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, **options)
    first = flavour.start(fn, ["first"] * options["batch_size"])
    gate.wait_for_batch()
    return gate, fn, first


def held(**options: Any) -> tuple[Gate, Any, Future[Any]]:
    """Return a batcher whose worker is busy with a first call until its gate is opened."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, timeout_ms=0, **options)
    first = fn.submit("first")
    gate.wait_for_batch()
    return gate, fn, first

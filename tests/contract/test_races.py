"""What holds when threads meet at every step: the interpreter changes threads as often as it can."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.kit.amid import watch_steps
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.kept import driver_of
from tests.kit.stats import check_sums

pytestmark = pytest.mark.usefixtures("restless")


@pytest.mark.parametrize(
    "options", [{}, {"group_by": str}, {"length": len}], ids=["plain", "keys", "lengths"]
)
def test_the_queue_is_used_with_the_lock_only(
    flavour: Flavour, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Deciding takes several looks at the queue, and no other thread may change it between two of them."""
    outside: list[str] = []
    locks: list[Any] = []

    def see(name: str) -> None:
        thread = threading.current_thread().name
        is_other = thread.startswith("batched") and not thread.endswith(": watched")  # of an earlier test
        if locks and not locks[0].is_mine() and not is_other:
            outside.append(f"{name} in {thread}")

    watch_steps(monkeypatch, see)

    def answer(items: list[str]) -> list[str]:
        if "bad" in items:
            raise ValueError("bad")
        return items

    gate = Gate(answer, shut=True)
    fn = flavour.decorate(
        gate,
        name="watched",
        batch_size=4,
        timeout_ms=1,
        adaptive=False,
        max_queue_size=100,
        on_full="wait",
        isolate_errors=True,
        **options,
    )
    gate.let_through()
    flavour.call(fn, "the first, for which all is made")
    batcher = driver_of(fn)
    locks.append(batcher.lock)
    futures = [flavour.start(fn, item) for item in ("a", "bad", ["c"] * 9, "d")]
    gate.wait_for_batch()
    fn.configure(batch_size=3)
    futures.append(flavour.start(fn.options(deadline_ms=1), "late"))
    gate.open()
    for future in futures:
        future.exception(PATIENCE_S)
    check_sums(fn)
    flavour.close(fn)
    assert outside == []

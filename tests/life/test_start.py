"""What the import and the first call need."""

from __future__ import annotations

import subprocess
import sys

from tests.kit.script import ROOT


def test_nothing_needs_a_loop_before_the_first_call() -> None:
    """Neither import, nor decoration, nor the stats, in a thread that has none."""
    script = """if True:
        import asyncio, sys, threading
        asyncio.set_event_loop(None)
        asyncio.new_event_loop = asyncio.get_event_loop = None
        import batched.aio, batched.aio.inference
        for dynamically in (batched.aio.dynamically, batched.aio.inference.dynamically):
            @dynamically(timeout_ms=0)
            async def f(items): return items
            @dynamically
            def g(items): return items
            assert f.stats.total_accepted == g.stats.total_accepted == 0
        assert threading.active_count() == 1
        assert not {"numpy", "torch"} & set(sys.modules)
    """
    command = [sys.executable, "-W", "error", "-c", script]
    subprocess.run(command, cwd=ROOT, timeout=30, check=True)


def test_checks_do_not_depend_on_assert() -> None:
    """Everything is refused the same under `python -O`."""
    script = """
import batched
fn = batched.dynamically(lambda xs: xs[1:], timeout_ms=0, name="fn")
for call in [lambda: fn([1, 2]), lambda: batched.dynamically(len, batch_size=0)]:
    try:
        call()
    except ValueError as caught:
        print(caught)
"""
    result = subprocess.run(
        [sys.executable, "-O", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
    )
    assert result.stdout.splitlines() == [
        (
            "fn returned 1 result for a batch of 2 items; it must return one result per item, in the same "
            "order: None or an exception for an item without a result"
        ),
        "batch_size must be at least 1, got 0",
    ]

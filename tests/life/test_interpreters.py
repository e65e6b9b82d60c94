"""An interpreter inside another: there no thread can be a daemon."""

from __future__ import annotations

import sys

import pytest

from tests.kit.script import run_script


@pytest.mark.skipif(sys.version_info < (3, 14), reason="interpreters are public from Python 3.14 on")
@pytest.mark.parametrize(
    ("begins", "ends"),
    [
        ("pass", "fn.shutdown()"),
        ("pass", "pass"),
        ("import threading; del threading._register_atexit", "fn.shutdown()"),
    ],
    ids=["shut down", "left running", "shut down, with nothing that Python does not promise"],
)
def test_a_batcher_works_in_an_interpreter_inside_another_and_ends_with_it(begins: str, ends: str) -> None:
    """From threads, with deadlines, and on a loop."""
    run_script(f"""
        from concurrent import interpreters

        interpreter = interpreters.create()
        interpreter.exec('''if True:
            {begins}
            import asyncio
            import batched
            from batched import aio

            fn = batched.dynamically(lambda items: [item * 2 for item in items], timeout_ms=0)
            assert (fn(1), fn([1, 2])) == (2, [2, 4])
            assert fn.options(deadline_ms=60_000).submit(3).result(20) == 6

            @aio.dynamically(timeout_ms=0)
            async def on_loop(items):
                return [item * 2 for item in items]

            async def ask():
                return await on_loop(1), await on_loop([1, 2]), await fn.acall(4)

            assert asyncio.run(ask()) == (2, [2, 4], 8)
            {ends}
        ''')
        interpreter.close()
        """)

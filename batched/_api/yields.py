"""Whether a generator function uses what its `yield` returns, as its bytecode says."""

from __future__ import annotations

import dis
from inspect import CO_ASYNC_GENERATOR
from itertools import pairwise
from types import CodeType

_OF_NO_EFFECT = frozenset({"RESUME", "CACHE", "NOP"})


def drops_what_yield_returns(code: CodeType) -> bool:
    """Whether `code` yields in a loop, and each of its `yield` is a statement of its own."""
    steps = [each for each in dis.get_instructions(code) if each.opname not in _OF_NO_EFFECT]
    loops = [(step.argval, step.offset) for step in steps if _ends_a_loop(step.opname)]
    yields = [
        (step.offset, following.opname) for step, following in pairwise(steps) if step.opname == "YIELD_VALUE"
    ]
    if code.co_flags & CO_ASYNC_GENERATOR:  # an `await` yields, and goes on waiting
        yields = [(offset, after) for offset, after in yields if "JUMP_BACKWARD" not in after]
    return all(after == "POP_TOP" for _, after in yields) and any(
        start <= offset < end for offset, _ in yields for start, end in loops
    )


def _ends_a_loop(name: str) -> bool:
    """Whether an instruction jumps to the beginning of a loop, other than that of an `await`."""
    return "JUMP_BACKWARD" in name and "NO_INTERRUPT" not in name

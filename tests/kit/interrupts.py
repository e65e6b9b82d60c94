"""A Ctrl-C at any bytecode of the package, and an error at any call of a function of it."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

# No `try` is around the jump to the beginning of a loop from 3.13 on, wherever it stands.
_JUMPS = ("EXTENDED_ARG", "JUMP_BACKWARD") if sys.version_info >= (3, 13) else ()
_UNSEEN = {dis.opmap[name] for name in ("NOP", "NOT_TAKEN", "LOAD_CONST", *_JUMPS) if name in dis.opmap}


class Interrupt:
    """Raises `error` before the bytecode with this number of those that the package runs.

    With `inside`, only those of the function with this qualified name count.
    """

    def __init__(
        self, at: int, inside: str | None = None, error: type[BaseException] = KeyboardInterrupt
    ) -> None:
        self.at = at
        self.inside = inside
        self.error = error
        self.seen = 0
        self.place = ""
        # Kept here: where a tracer raises, CPython 3.11 may free it too early, and then call what lies there.
        self._tracer = self._enter
        self._bytecodes = self._see

    @property
    def came(self) -> bool:
        """Whether so many bytecodes were run."""
        return self.seen >= self.at

    def during(self, work: Callable[[], Any]) -> Any:
        """Return what `work` returns; None if it was interrupted."""
        before = sys.gettrace()
        # Of any frame, but first: 3.12 looks for it as a trace begins, and would tell of no bytecode.
        sys._getframe().f_trace_opcodes = True  # noqa: SLF001
        sys.settrace(self._tracer)
        try:
            return next(_apart(work))
        except self.error:
            return None
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        if not frame.f_globals.get("__name__", "").startswith("batched."):
            return None
        if self.inside not in {None, frame.f_code.co_qualname}:
            return None
        if frame.f_code.co_name == "add_done_callback":
            return None  # what a task of asyncio calls as it begins to wait: no code of ours is around it
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return self._bytecodes

    def _see(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "opcode" and not _is_unseen(frame.f_code.co_code, frame.f_lasti):
            self.seen += 1
            if self.seen == self.at:
                self.place = f"{frame.f_code.co_qualname}, line {frame.f_lineno}, at {frame.f_lasti}"
                raise self.error
        return self._bytecodes


def _apart(work: Callable[[], Any]) -> Iterator[Any]:
    """Yield what `work` returns, from a frame that has its own exception in hand.

    CPython may go on with an exception in hand that was caught, where the tracer has raised another one as it
    was handled: it would be the context of all errors of later tests.
    """
    yield work()


def _is_unseen(code: bytes, at: int) -> bool:
    """Whether Python never looks for signals there: a `try` begins so, and a constant is noted so."""
    is_noted = code[at] == dis.opmap["STORE_FAST"] and code[at - 2] == dis.opmap["LOAD_CONST"]
    return is_noted or code[at] in _UNSEEN


class Fault:
    """A tracer that raises `error` at one call of a function of the package, `inside` of one of others."""

    def __init__(self, at: int, inside: set[str], error: Exception) -> None:
        self.at = at
        self.seen = 0
        self.place = ""
        self._inside = inside
        self._error = error

    @property
    def came(self) -> bool:
        """Whether there were so many calls."""
        return self.seen >= self.at

    def __call__(self, frame: FrameType, _event: str, _arg: Any) -> None:
        """Raise if this call is the one."""
        if not frame.f_globals.get("__name__", "").startswith("batched."):
            return
        outer = frame.f_back
        while outer is not None and outer.f_code.co_qualname not in self._inside:
            if "__del__" in {frame.f_code.co_name, outer.f_code.co_name}:
                return  # of an object of another run, which may be collected at any moment
            outer = outer.f_back
        if outer is None or frame.f_code.co_qualname in self._inside:
            return
        self.seen += 1
        if self.seen == self.at:
            self.place = frame.f_code.co_qualname
            raise self._error

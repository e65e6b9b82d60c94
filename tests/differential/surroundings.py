"""What a run needs around it: decorated functions, event loops, and ears for what is raised elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import batched
import batched.aio.inference
import batched.inference
from batched import aio
from tests.differential.callbacks import options_of
from tests.differential.plan import Plan
from tests.differential.work import Work, function
from tests.kit.remote_server import ThreadServer


def functions(plan: Plan, work: Work) -> tuple[list[Callable[[], Any]], list[Any]]:
    """Return what gives each batched function, and what they belong to."""
    decorate = {
        (False, False): batched.dynamically,
        (False, True): batched.inference.dynamically,
        (True, False): aio.dynamically,
        (True, True): aio.inference.dynamically,
    }[plan.drive != "thread", plan.shape == "arrays"]
    func = function(plan, work)
    if plan.binding == "callable":
        func = type("Model", (), {"number": 0, "__call__": func})()
    elif plan.binding in {"classmethod", "staticmethod"}:
        func = {"classmethod": classmethod, "staticmethod": staticmethod}[plan.binding](func)
    decorated: Any = decorate(func, name=f"run-{plan.seed}", **options_of(plan), **work.stages)
    if plan.binding in {"function", "callable"}:
        models = [decorated]
        return [lambda: models[0]], models
    cls = type("Model", (), {"number": 0, "embed": decorated})
    if plan.binding != "method":
        models = [cls]
        del cls
        return [lambda: models[0].embed], models
    models = [cls(), cls()]
    models[1].number = 1
    return [lambda: models[0].embed, lambda: models[1].embed], models


class Behind:
    """Functions in a server, which is a thread of this process, and the client that calls them."""

    def __init__(self, plan: Plan, functions: list[Callable[[], Any]]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        name = f"run-{plan.seed}"
        served = {name if not at else f"{name}-{at}": get() for at, get in enumerate(functions)}
        self._served = [*served.values()]
        self._server = ThreadServer(served, f"unix:{self._folder.name}/s.sock").start()
        self._client = batched.connect(self._server.bind)
        fns = [self._client[each] for each in served]
        self.functions: list[Callable[[], Any]] = [partial(_itself, fn) for fn in fns]

    def end(self) -> None:
        """End both."""
        self._client.close()  # no loop of the callers goes on to hear that the server ends
        self._server.stop()
        self._server.join()
        for fn in self._served:  # this process could call them yet
            fn.shutdown()
        self._folder.cleanup()


def _itself(fn: Any) -> Any:
    return fn


def new_loop(kind: str) -> asyncio.AbstractEventLoop:
    """Return an event loop."""
    if kind == "uvloop":
        with contextlib.suppress(ImportError):
            import uvloop

            return uvloop.new_event_loop()
    loop = asyncio.new_event_loop()
    loop.set_debug(kind == "debug")
    loop.slow_callback_duration = 60.0  # the machine is busy
    return loop


@contextlib.contextmanager
def watched(plan: Plan, work: Work) -> Iterator[None]:
    """Note what is logged, and what is raised where nothing catches it."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            expected = plan.options.get("cache") == "broken" and "the cache failed" in record.getMessage()
            if not expected and record.getMessage().startswith(f"run-{plan.seed}"):  # not of one that hangs
                work.violated(f"logged: {self.format(record)}")

    def unraisable(args: Any) -> None:
        if "abandon" not in dict(plan.leaving):  # else coroutines end wherever they are collected
            work.violated(f"unraisable: {args.exc_value!r} in {args.object!r}")

    handler = Handler(logging.WARNING)
    logger = logging.getLogger("batched")
    hooks = threading.excepthook, sys.unraisablehook
    threading.excepthook = lambda args: work.violated(
        f"in {args.thread}: {args.exc_value!r} {_where(args.exc_value)}"
    )
    sys.unraisablehook = unraisable
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.propagate = propagates
        logger.removeHandler(handler)
        threading.excepthook, sys.unraisablehook = hooks


def _where(error: BaseException | None) -> str:
    return "".join(traceback.format_exception(error))


def kept_by(one: Any) -> str:
    """Return the types of the objects that lead to one that should be gone, from it to their root."""
    chain: list[Any] = [one]
    del one
    while len(chain) < 12:
        mine = {id(chain), id(sys._getframe()), *map(id, chain)}
        around = gc.get_referrers(chain[-1])
        around = [each for each in around if id(each) not in mine]
        if not around:
            break
        chain.append(around[0])
        del around
    return " < ".join(repr(getattr(each, "f_code", type(each)))[:90] for each in chain)

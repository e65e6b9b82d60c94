"""The command `python -m batched serve`."""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from batched._remote.frames import MAX_FRAME_BYTES
from batched._remote.msgpack import PROTOCOLS, codec_named
from batched._remote.server import Server
from batched._remote.serving import Serving, at_once, name_of

_USAGE, _FAILED = 2, 1
_EPILOG = """Example:

  python -m batched serve app.model:embed rank=app.model:model.rerank --bind unix:/run/embed.sock

Clients: batched.connect("unix:/run/embed.sock").embed. SIGTERM and Ctrl-C have the server answer what has
come, and end; a second one ends it at once."""


class UsageError(Exception):
    """What the user has given cannot be served."""


def add_serve(commands: Any) -> None:
    """Add the options of `serve`."""
    serve = commands.add_parser(
        "serve",
        help="hold functions for other processes",
        description="Hold decorated functions for other processes, and batch their calls together.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serve.set_defaults(run=_serve)
    add = serve.add_argument
    add(
        "functions",
        nargs="+",
        metavar="[NAME=]MODULE:FUNCTION",
        help="a decorated function, and the name by which clients call it if that is another",
    )
    add("--bind", required=True, metavar="ADDRESS", help="unix:PATH, tcp:127.0.0.1:PORT, or fd:3")
    add("--group", help="the users of this group may connect to the unix socket, too")
    add("--protocol", choices=PROTOCOLS, default="pickle", help="how values travel (pickle)")
    add("--http", metavar="HOST:PORT", help="where to show /metrics and /healthz")
    add("--token-file", metavar="FILE", help="what clients on tcp must know; a file that is missing is made")
    add("--drain-s", type=float, default=30.0, metavar="S", help="the most seconds to answer at the end (30)")
    add(
        "--max-frame-bytes",
        type=int,
        default=MAX_FRAME_BYTES,
        metavar="N",
        help=f"the most bytes of one call ({MAX_FRAME_BYTES})",
    )
    add("--until-unused", type=float, help=argparse.SUPPRESS)  # seconds; see `spawn`
    add("--lock", type=int, help=argparse.SUPPRESS)  # of `spawn`: kept by this process, and no child of it
    add("--verbose", action="store_true", help="also log clients that come and leave")


def _serve(given: argparse.Namespace) -> int:
    """Serve until it is told to end; return the status of the process."""
    if given.lock is not None:
        os.set_inheritable(given.lock, False)  # noqa: FBT003
        os.register_at_fork(after_in_child=partial(os.close, given.lock))
    signal.signal(signal.SIGTERM, at_once())  # until it serves: a model may take long to load
    try:
        # Before a module is imported: it may take minutes, and go to another folder.
        server = Server(
            given.bind,
            group=given.group,
            codec=codec_named(given.protocol),
            token_file=given.token_file,
            drain_s=given.drain_s,
            max_frame_bytes=given.max_frame_bytes,
            unused_s=given.until_unused,
        )
        serving = Serving(server, http=given.http, ends_process=True)
    except (ValueError, ImportError, OSError) as error:
        return say("serve", error)
    try:
        functions = _functions(given.functions)
    except UsageError as error:
        return say("serve", error)
    _log(verbose=given.verbose)
    # What has been loaded stays. Else it would be looked through now and then, and all calls would wait: with
    # torch and sentence-transformers for 0.2 s.
    gc.collect()
    gc.freeze()
    try:
        serving.hold(functions)
    except ValueError as error:
        return say("serve", error)
    try:
        serving.run()
    except OSError as error:
        if serving.is_ready:
            raise
        return say("serve", f"cannot listen at {serving.at}: {error.strerror or error}", _FAILED)
    return _FAILED if server.lost else 0


def say(command: str, why: object, status: int = _USAGE) -> int:
    """Say why a command ends; return the status of the process."""
    print(f"python -m batched {command}: {why}", file=sys.stderr)  # noqa: T201
    return status


def _log(*, verbose: bool) -> None:
    """Have the logger of the package write to stderr, unless the program has set up logging itself."""
    logger = logging.getLogger("batched")
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
    if verbose:
        logger.setLevel(logging.DEBUG)
    elif logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


def _functions(given: Sequence[str]) -> list[tuple[str, Any]]:
    """Return the functions, each with the name that clients call it by."""
    named: list[tuple[str, Any]] = []
    for text in given:
        name, equals, place = text.rpartition("=")
        function = found(place)
        try:
            own = name_of(function, place)
        except TypeError as error:
            raise UsageError(str(error)) from None
        named.append((name if equals else own, function))
    return named


def found(text: str) -> Any:
    """Return the object that `MODULE:NAME` names."""
    module, colon, path = text.partition(":")
    if not colon or not module or not path:
        raise UsageError(f"a function is MODULE:FUNCTION, such as app.model:embed, got {text!r}")
    if module.startswith(".") or module.endswith(".py") or os.sep in module:
        raise UsageError(
            f"a module has the name of its import, such as app.model for app/model.py, got {text!r}"
        )
    try:
        value: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # it is missing in the user's module
        raise UsageError(f"there is no module {error.name} here: see PYTHONPATH") from None
    at = module
    for name in path.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            raise UsageError(f"{at} has no {name}, got {text}") from None
        at = f"{at}.{name}"
    return value

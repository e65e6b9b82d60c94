"""The command `python -m batched`: `serve`, `profile` and `top`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from batched._commands import add_profile, add_top
from batched._remote.command import add_serve

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command, and exit with its status."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    parser = argparse.ArgumentParser(prog="python -m batched")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (add_serve, add_profile, add_top):
        add(commands)
    given = parser.parse_args(arguments)
    try:
        status = given.run(given)
    except KeyboardInterrupt:
        status = _INTERRUPTED
    sys.exit(status)


if __name__ == "__main__":
    main()

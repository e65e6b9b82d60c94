"""A benchmark with options of its own, whose figures come in more than rows."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.kit.measure import Effort
from benchmarks.kit.row import Result

__all__ = ["Program"]


class Program:
    """What the command line asks of such a benchmark; its class is the file's `PROGRAM`."""

    def __init__(self, options: Namespace, effort: Effort, console: Console) -> None:
        self.options = options
        self.effort = effort
        self.console = console
        self.complete = True  # whether all could be measured that was asked for

    @classmethod
    def add_options(cls, parser: ArgumentParser) -> None:
        """Tell the parser about the options, if there are any."""

    def measure(self) -> Iterator[None]:
        """Measure; yield whenever there is something new to be kept."""
        raise NotImplementedError

    def results(self) -> list[Result]:
        """Return what has been found so far, as rows."""
        raise NotImplementedError

    def tables(self) -> list[Table]:
        """Return what else there is to show."""
        return []

    def details(self) -> dict[str, Any]:
        """Return all that was measured, for the file of results."""
        return {}

    @staticmethod
    def draw(details: dict[str, Any], file: Path) -> None:
        """Draw a picture of `details`."""
        raise NotImplementedError(f"{file} stays undrawn: there is no picture of {', '.join(details)}")

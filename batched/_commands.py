"""The commands of `python -m batched` that look at functions and services: `profile` and `top`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from batched._api.function import DecoratedFunction
from batched._core.options import ArrayOptions
from batched._remote.command import UsageError, found, say

_WIDE = 60  # characters, which the tables of a profile take with their frames
_BAR, _BESIDE_BAR = 30, 46  # characters of the longest bar, and of what stands beside it
_UNREAD = 1  # as rich ends a program of which nothing reads the output


def add_profile(commands: Any) -> None:
    """Add the options of `profile`."""
    profile = commands.add_parser(
        "profile",
        help="measure what batches of a function cost, and which size to take",
        description="Run a function on batches of growing size, and say what follows. Needs rich.",
    )
    profile.set_defaults(run=_profile)
    add = profile.add_argument
    add("function", metavar="MODULE:FUNCTION", help="a decorated function, or a plain one that takes a list")
    items = "items of your own: a line of JSON each; for arrays, the features of a row, or all rows as .npz"
    add("--items", required=True, metavar="FILE", help=items)
    add(
        "--sizes",
        type=_numbers,
        metavar="N,N,...",
        help="the sizes of batches to try, beside 1 (2, 4 and so on)",
    )
    add("--repeats", type=int, default=5, metavar="N", help="how often each is tried (5)")
    add("--json", action="store_true", help="print all figures as JSON")
    add("--plot", metavar="FILE", help="draw the curve into a picture; needs matplotlib")


def add_top(commands: Any) -> None:
    """Add the options of `top`."""
    top = commands.add_parser(
        "top",
        help="show what the functions of a service do, as it runs",
        description="Show the figures of a page of metrics again and again. Needs rich, prometheus-client.",
    )
    top.set_defaults(run=_top)
    top.add_argument("url", metavar="URL", help="such as http://127.0.0.1:9100/metrics")
    top.add_argument("--every-s", type=float, default=1.0, metavar="S", help="the seconds between looks (1)")
    top.add_argument("--looks", type=int, metavar="N", help="after how many looks to end (never)")


def _numbers(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"sizes are numbers such as 1,8,64, got {text!r}") from None


def _placed(error: Exception) -> str:
    """Return the text of an error and its notes, with its place if that is in the user's own code."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = "; ".join([str(error), *getattr(error, "__notes__", [])])
    if Path(__file__).parent in Path(place.filename).parents:
        return text
    return f"{place.filename}:{place.lineno}: {type(error).__name__}: {text}"


def _profile(given: argparse.Namespace) -> int:
    """Measure, and print what follows; return the status of the process."""
    from batched.profile import profile  # noqa: PLC0415  other commands do without

    # The figures stand alone in their JSON, whatever a model prints.
    with redirect_stdout(sys.stderr if given.json else sys.stdout):
        try:
            # Before the module is imported: that may take minutes, and go to another folder.
            show = print if given.json else _shown()
            file = Path(given.items).absolute()
            file.stat()
            function = _function(given.function)
            items = _items(file, function)
            draw = None if given.plot is None else _drawn(given.plot)
        except (UsageError, ImportError, OSError, ValueError) as error:
            return say("profile", error)
        with _progress(is_shown=not given.json) as progress:
            try:
                told = profile(function, items, sizes=given.sizes, repeats=given.repeats, progress=progress)
            except (TypeError, ValueError) as error:
                return say("profile", _placed(error))
    if draw is not None:
        draw(told)
    try:
        show(json.dumps(told.as_dict(), indent=2) if given.json else told)
        sys.stdout.flush()
    except BrokenPipeError:  # nothing reads it any more, as behind `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest as it exits
        return _UNREAD
    return 0


def _function(text: str) -> Any:
    """Return the function that `MODULE:FUNCTION` names."""
    function = found(text)
    if not callable(function):
        raise UsageError(f"{text} is no function, but {type(function).__name__}")
    return function


def _items(file: Path, function: object) -> list[Any]:
    """Return the items in a file: a line of JSON each; a list is an item of several columns.

    For a function over arrays, a line has the features of a row; or numpy has saved all rows in the file.
    """
    is_of_arrays = isinstance(function, DecoratedFunction) and isinstance(
        function._shared.settings,  # noqa: SLF001
        ArrayOptions,
    )
    if file.suffix == ".npz":
        if not is_of_arrays:
            raise ValueError(
                f"{file} holds arrays, and the function takes a list: give a line of JSON for each item"
            )
        return [_arrays(file)]
    lines = _lines(file)
    return [_features(file, at, line) for at, line in lines] if is_of_arrays else [line for _, line in lines]


def _lines(file: Path) -> list[tuple[int, Any]]:
    """Return what the lines of a file hold, with their numbers."""
    lines = []
    try:
        text = file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no text in UTF-8 ({error})") from error
    # Not `splitlines`: a text may hold what that takes for the end of a line.
    for at, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                lines.append((at, json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{file}:{at} is no JSON ({error}): a text is written in quotes") from error
    return lines


def _arrays(file: Path) -> dict[str, Any]:
    """Return the arrays that numpy has saved in a file, by their names."""
    import numpy as np  # noqa: PLC0415  what takes arrays has it

    try:
        with file.open("rb") as opened, np.load(opened) as arrays:
            return dict(arrays)
    except (BadZipFile, EOFError, TypeError, ValueError) as error:  # an array alone is no context manager
        raise ValueError(f"{file} is not what numpy.savez writes ({error})") from error


def _features(file: Path, at: int, line: Any) -> dict[str, Any]:
    """Return the features of a call of one row, of which a line has the values."""
    import numpy as np  # noqa: PLC0415

    if not isinstance(line, dict):
        raise ValueError(  # noqa: TRY004  of the file, not of an argument
            f'{file}:{at} is no object: for a function over arrays, a line is as {{"ids": [1, 2, 3]}}, the '
            f"features of a row"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an old numpy warns, and makes an array of lists
            return {key: np.asarray(value)[np.newaxis] for key, value in line.items()}
    except (ValueError, Warning) as error:
        raise ValueError(f"{file}:{at} has a feature that is no array ({error})") from error


@contextmanager
def _progress(*, is_shown: bool) -> Iterator[Callable[[int, int], object] | None]:
    """Show a progress bar on a terminal; yield its callback, None where there is no bar."""
    if not is_shown or not sys.stderr.isatty():  # not the output: what reads that may have left
        yield None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("batches")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _shown() -> Callable[[Any], None]:
    """Return what prints a profile as tables."""
    try:
        from rich.box import SIMPLE_HEAD  # noqa: PLC0415
        from rich.console import Console  # noqa: PLC0415
        from rich.table import Column, Table  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise ImportError(f"profile needs {missing.name}: pip install rich, or give --json") from None

    def show(told: Any) -> None:
        console = Console()
        # As `top` has it: of figures, no part may be left out.
        looks: Any = {} if console.width >= _WIDE else {"box": SIMPLE_HEAD, "padding": 0}

        def table(*headers: str, title: str) -> Table:
            return Table(*(Column(each, overflow="fold") for each in headers), title=title, **looks)

        curve = table("size", "batch takes", "an item", "", title=f"batches of {told.name}")
        slowest = max(each.item_ms for each in told.measured)
        longest = min(_BAR, max(console.width - _BESIDE_BAR, 1))
        block, arrow = ("#", "<-") if console.options.ascii_only else ("█", "←")  # as the frame of the table
        for each in told.measured:
            bar = block * max(1, round(longest * each.item_ms / slowest)) if slowest else ""
            mark = f" {arrow}" if each.size == told.batch_size and told.pays else ""
            curve.add_row(f"{each.size}", f"{each.took_ms:.3g} ms", f"{each.item_ms:.3g} ms", bar + mark)
        console.print(curve)
        expected = table("callers", "items/s", "one by one", "answer after", "batch", title="to expect")
        for each in told.expected:
            expected.add_row(
                f"{each.callers}",
                f"{each.items_per_s:,.0f}",
                f"{each.alone_per_s:,.0f}",
                f"{each.latency_ms:.3g} ms",
                f"{each.batch:.3g}",
            )
        if told.pays:
            console.print(expected)
        for sentence in told.advice():
            console.print(sentence, highlight=False)

    return show


def _drawn(file: str) -> Callable[[Any], None]:
    """Return what draws into a file how long an item takes, by the size of its batch."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
        from matplotlib.ticker import LogLocator, NullLocator  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise ImportError(f"--plot needs {missing.name}: pip install matplotlib") from None
    figure = Figure(figsize=(7, 4))
    figure.savefig(file)  # if that fails, it would be too late after all batches

    def draw(told: Any) -> None:
        axes = figure.subplots()
        sizes = [each.size for each in told.measured]
        axes.loglog(sizes, [each.item_ms for each in told.measured], "o-", label="an item")
        axes.loglog(sizes, [each.took_ms for each in told.measured], "o--", label="the batch")
        axes.axvline(told.batch_size, color="grey", linewidth=1)
        axes.set_xticks(sizes, labels=[str(size) for size in sizes])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        for label in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            label("{x:g}")
        axes.set_xlabel("items in the batch")
        axes.set_ylabel("milliseconds")
        axes.set_title(told.name)
        axes.legend()
        figure.savefig(file, bbox_inches="tight")

    return draw


def _top(given: argparse.Namespace) -> int:
    """Show a service; return the status of the process."""
    try:
        from batched.top import top  # noqa: PLC0415

        top(given.url, every_s=given.every_s, looks=given.looks)
    except OSError as error:
        return say("top", f"{given.url} cannot be read: {error}")
    except (ImportError, ValueError) as error:
        return say("top", error)
    return 0

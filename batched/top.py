"""A service as it runs, in the terminal: `python -m batched top URL`. Needs rich and prometheus-client."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead
from itertools import count
from math import inf, nan

try:
    from prometheus_client.parser import text_string_to_metric_families
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.live import Live
    from rich.markup import escape
    from rich.table import Table
except ModuleNotFoundError as _missing:
    raise ImportError(
        f"batched.top needs {_missing.name}: pip install rich prometheus-client", name=_missing.name
    ) from None

__all__ = ["top"]

Figures = dict[tuple[str, str, str], float]
"""Each figure, by its metric, the name of its function, and the bound of a bucket, "" for none."""

_WAITS = "batched_wait_seconds_bucket"
_LOST = ("rejected_items_total", "refused_items_total", "expired_items_total", "late_items_total")
_PATIENCE_S = 5.0
_DAY_S = 86_400
_NAME = 12  # characters of the name of a function, however narrow the terminal is

_NONE = "has no figures of batched functions: serve those of batched.prometheus.Collector there"


@dataclass(frozen=True, slots=True)
class Row:
    """What a function has done between two looks."""

    name: str
    items_per_s: float
    batch: float
    """The mean size of batches; NaN if there were none."""
    waiting: float
    running: float
    wait_p50_ms: float
    wait_p99_ms: float
    batch_ms: float
    """The mean time of a batch."""
    busy: float
    """The share of the time in which slots were in use, from 0 to 1."""
    failed_per_s: float
    refused_per_s: float
    """Items that were rejected, refused, or late: before they ran, or as they ran."""


def read(page: str) -> Figures:
    """Return the figures on a page of metrics."""
    found: Figures = {}
    for family in text_string_to_metric_families(page):
        if family.name.startswith("batched_"):
            for sample in family.samples:
                key = sample.name, sample.labels.get("name", ""), sample.labels.get("le", "")
                found[key] = found.get(key, 0.0) + sample.value
    return found


def rows(before: Figures, now: Figures, seconds: float) -> list[Row]:
    """Return what each function has done in the `seconds` between two looks, the busiest first."""
    names = sorted({name for metric, name, _ in now if metric == "batched_batchers"})
    # To have fallen, a counter must have begun anew: all of it has come since the last look.
    anew = {key[1] for key, value in before.items() if _counts(key[0]) and now.get(key, value) < value}
    bounds: dict[str, list[str]] = {name: [] for name in names}  # of the buckets of each function's waits
    for metric, name, bound in now:
        if metric == _WAITS and name in bounds:
            bounds[name].append(bound)
    found = [_row(name, bounds[name], {} if name in anew else before, now, seconds) for name in names]
    return sorted(found, key=lambda row: (-row.busy, row.name))


def _counts(metric: str) -> bool:
    """Whether a figure only grows."""
    return metric.endswith(("_total", "_count", "_sum", "_bucket"))


def _row(name: str, bounds: list[str], before: Figures, now: Figures, seconds: float) -> Row:
    def grown(metric: str) -> float:
        key = f"batched_{metric}", name, ""
        return max(now.get(key, 0.0) - before.get(key, 0.0), 0.0)

    def gauge(metric: str) -> float:
        return now.get((f"batched_{metric}", name, ""), 0.0)

    def waited(bound: str) -> tuple[float, float]:
        key = _WAITS, name, bound
        return inf if bound == "+Inf" else float(bound), max(now[key] - before.get(key, 0.0), 0.0)

    waits = sorted(map(waited, bounds))
    batches = grown("batch_size_items_count")
    runs = grown("execution_seconds_count")
    return Row(
        name,
        grown("processed_items_total") / seconds,
        grown("batch_size_items_sum") / batches if batches else nan,
        gauge("waiting_items"),
        gauge("running_items"),
        _quantile(0.5, waits) * 1000,
        _quantile(0.99, waits) * 1000,
        grown("execution_seconds_sum") / runs * 1000 if runs else nan,
        min(grown("busy_seconds_total") / seconds / max(gauge("slots"), 1.0), 1.0),
        grown("failed_items_total") / seconds,
        sum(map(grown, _LOST)) / seconds,
    )


def _quantile(share: float, buckets: list[tuple[float, float]]) -> float:
    """Return a quantile of the waits between two looks, in seconds: the upper bound of its bucket."""
    total = buckets[-1][1] if buckets else 0.0
    if not total > 0:
        return nan
    return next((bound for bound, count in buckets if count >= share * total), nan)


def table(found: list[Row], url: str, width: int = 80) -> Table:
    """Return the rows as a table, with as many columns as `width` characters have room for."""
    shown = Table(title=escape(url), box=SIMPLE_HEAD, padding=0, show_edge=False)
    shown.add_column("function", overflow="fold", min_width=_NAME)
    room = width - _NAME
    columns = []
    for header, figure_of in _COLUMNS.items():
        figures = [figure_of(row) for row in found]
        room -= 1 + max(map(len, [*header.split("\n"), *figures]))
        if room < 0:  # the name would be what gives way
            break
        shown.add_column(header, justify="right", no_wrap=True)
        columns.append(figures)
    for at, row in enumerate(found):
        shown.add_row(escape(row.name), *(figures[at] for figures in columns))
    return shown


def _number(value: float) -> str:
    return "-" if value != value else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR0124, PLR2004


_COLUMNS: dict[str, Callable[[Row], str]] = {
    "items\nper s": lambda row: _number(row.items_per_s),
    "batch\nsize": lambda row: _number(row.batch),
    "in\nqueue": lambda row: _number(row.waiting),
    "run\nnow": lambda row: _number(row.running),
    "wait\np50 ms": lambda row: _number(row.wait_p50_ms),
    "wait\np99 ms": lambda row: _number(row.wait_p99_ms),
    "batch\nms": lambda row: _number(row.batch_ms),
    "busy": lambda row: f"{row.busy:.0%}",
    "failed\nper s": lambda row: _number(row.failed_per_s),
    "refused\nper s": lambda row: _number(row.refused_per_s),
}


def top(  # noqa: PLR0913
    url: str,
    *,
    every_s: float = 1.0,
    looks: int | None = None,
    console: Console | None = None,
    fetch: Callable[[str], str] | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Show what a service's batched functions do, until Ctrl-C.

    Args:
        url: The page of its metrics, such as http://127.0.0.1:9100/metrics; `http://` may be left out.
        every_s: The seconds between two looks.
        looks: After how many looks to end; None for never.
        console: Where to show it.
        fetch: What returns a page.
        sleep: What waits.

    Raises:
        OSError: The page cannot be read at the first look. Later it is tried again.
        ValueError: `every_s` is not above 0, or more than a day; `looks` is less than 1.

    """
    if not 0 < every_s <= _DAY_S:
        raise ValueError(f"every_s must be above 0, and at most {_DAY_S} (a day), got {every_s:g}")
    if looks is not None and looks < 1:
        raise ValueError(f"looks must be at least 1, got {looks}")
    if "://" not in url:
        url = f"http://{url}"
    get = _get if fetch is None else fetch
    before, then = _figures(get, url), time.monotonic()
    console = console or Console()
    with _ended(console), Live(table([], url, console.width), console=console, auto_refresh=False) as live:
        for _ in count() if looks is None else range(looks):
            sleep(every_s)
            try:
                now, at = _figures(get, url), time.monotonic()
            except OSError as error:
                live.update(escape(f"{url} cannot be read: {error}"), refresh=True)
                continue
            found = rows(before, now, max(at - then, 1e-6))
            live.update(table(found, url, console.width) if found else f"{escape(url)} {_NONE}", refresh=True)
            before, then = now, at


@contextmanager
def _ended(console: Console) -> Iterator[None]:
    """End the last line, as `Live` does in a terminal only."""
    try:
        yield
    finally:
        if not console.is_terminal:
            console.line()


def _figures(get: Callable[[str], str], url: str) -> Figures:
    """Return the figures of a page; `OSError` if it cannot be read, or is none of metrics."""
    try:
        return read(get(url))
    except (HTTPException, LookupError, ValueError) as error:
        raise OSError(f"that is no page of metrics ({type(error).__name__}: {error})") from error


def _get(url: str) -> str:
    """Return a page that has been read to its end; `TimeoutError` if it goes on and on, as a stream does."""
    until = time.monotonic() + _PATIENCE_S
    page = bytearray()
    with urllib.request.urlopen(url, timeout=_PATIENCE_S) as answer:  # noqa: S310
        while part := answer.read1():
            page += part
            if time.monotonic() > until:
                raise TimeoutError(f"the page has not ended after {_PATIENCE_S:g} s")
        if missing := getattr(answer, "length", None):
            raise IncompleteRead(bytes(page), missing)
    return page.decode()

"""One turn in the comparison of two commits: the contenders of ours, with the `batched` that is found first.

Run as a module, it prints the samples of each row as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import batched
from benchmarks.kit.catalogue import Benchmark
from benchmarks.kit.measure import LIMIT_S, Effort, time_limit
from benchmarks.kit.row import Row
from benchmarks.kit.run import by_turns
from benchmarks.kit.turns import Samples, Turns

__all__ = ["measured"]

_SAMPLES, _ENOUGH_S = 3, 5.0  # at most, of each contender


def measured(rows: tuple[Row, ...], seen: set[str], effort: Effort) -> dict[str, dict[str, Any]]:
    """Return the samples of ours by what is measured: once where rows have the same, less `seen`."""
    found: dict[str, dict[str, Any]] = {}
    for turns, some in by_turns(rows):
        wanted = [row for row in some if row.what not in seen and row.what not in found]
        if not wanted:
            continue
        samples, failed = _samples(turns, effort)
        for row in wanted:
            if failed or row.ours in samples:  # else it is derived, of what is beside ours too
                given = samples.get(row.ours, [])
                found[row.what] = {"unit": row.by.unit, "samples": given, "failed": failed}
    return found


def _samples(turns: Turns, effort: Effort) -> tuple[Samples, str]:
    try:
        with time_limit(LIMIT_S):
            return turns.ours(effort, _SAMPLES, _ENOUGH_S), ""
    except Exception as error:  # noqa: BLE001  an older `batched` may not have what this needs; other rows may
        return {}, f"{type(error).__name__}: {error}"


def main() -> None:
    """Measure what the argument asks for."""
    asked = json.loads(sys.argv[1])
    module = Benchmark(asked["folder"], asked["name"], "").load()
    rows = measured(module.ROWS, set(asked["seen"]), Effort(quick=asked["quick"]))
    print(json.dumps({"batched": batched.__file__, "rows": rows}), flush=True)
    os._exit(0)  # a worker of an older `batched` may not end


if __name__ == "__main__":
    main()

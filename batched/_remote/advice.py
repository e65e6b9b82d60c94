"""What a client can say of its server: what the way there costs, and whether a process of its own pays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from batched._policy.window import short
from batched._remote.link import WireTimes

_NEARLY_ALL = 0.9  # of the calls
_LEAST_CALLS = 100  # until then a share tells little


def sentences(wire: WireTimes, calls: Mapping[str, int]) -> Iterator[str]:
    """Yield one sentence for each finding; `calls` has the number of calls of each client of the server."""
    if wire.calls:
        total_ms, server_ms = (each / wire.calls * 1000 for each in (wire.total_s, wire.server_s))
        yield (
            f"A call of this process takes {short(total_ms)} ms on average, and is {short(server_ms)} ms of "
            f"that in the server: the way there and back takes {short(total_ms - server_ms)} ms."
        )
    if len(calls) == 1:
        yield (
            "No other process is connected to the server: in this process, the function would have the same "
            "batches, without the way there and back."
        )
        return
    total, most = sum(calls.values()), max(calls.values(), default=0)
    if total >= _LEAST_CALLS and most >= total * _NEARLY_ALL:
        yield (
            f"One of the {len(calls)} processes that are connected makes {100 * most / total:.0f}% of the "
            f"calls: hardly any batch has items of several processes, which is what a server is for."
        )

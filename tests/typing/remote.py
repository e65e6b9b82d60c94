"""What type checkers make of `batched.connect`.

Never run, but read by both type checkers, as `lists.py` says.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, assert_type

import batched
from batched import BatchedFunction, Stats, Stream
from batched.typing import Answers

client = batched.connect("unix:/run/model.sock", wait_s=5.0)

embed: BatchedFunction[str, list[float]] = client.embed
"""What it takes, the module of the model says, which a web process does not import: so it says it here."""


async def annotated() -> None:
    assert_type(embed("text"), list[float])
    assert_type(embed(["text"]), list[list[float]])
    assert_type(await embed.acall("text"), list[float])
    assert_type(embed.submit("text"), Future[list[float]])
    assert_type(embed.map(["text"]), Answers[list[float]])
    assert_type(embed.map(["text"], with_items=True), Answers[tuple[str, list[float]]])
    assert_type(embed.options(deadline_ms=50)("text"), list[float])
    embed(5)  # type: ignore[call-overload]


async def as_it_comes() -> None:
    """Anything goes in, and anything comes out; the rest is known."""
    rerank = client["rerank"]
    assert_type(rerank("query", "document"), Any)
    assert_type(rerank(["query"], documents=["document"]), Any)
    assert_type(await rerank.acall("query"), Any)
    assert_type(rerank.submit("query"), Future[Any])
    assert_type(rerank.stream("query"), Stream[Any])
    assert_type(rerank.stats, Stats)
    assert_type(rerank.expected_wait_ms(2), float | None)
    rerank.options(priority="bulk", return_exceptions=True)("query")
    rerank.options(prioty="bulk")  # type: ignore[call-arg]

"""What type checkers make of `prepare` and `finish`.

Never run, but read by both type checkers, as `lists.py` says.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import Any, assert_type

import batched
from batched import aio
from batched.aio import BatchedFunction as AioFunction


def tokenize(texts: list[str]) -> dict[str, list[int]]:
    return {"ids": [len(text) for text in texts]}


def unpack(outputs: tuple[int, ...]) -> list[int]:
    return list(outputs)


@batched.dynamically(prepare=tokenize, finish=unpack)
def embed(tokens: dict[str, list[int]]) -> tuple[int, ...]:
    return tuple(tokens["ids"])


assert_type(embed, batched.BatchedFunction[Any, Any])
embed("a")
embed(["a"])


@batched.dynamically(64, finish=unpack, length=None)
def finished(texts: list[str]) -> tuple[int, ...]:
    return tuple(map(len, texts))


assert_type(finished, batched.BatchedFunction[Any, Any])
assert_type(
    batched.dynamically(lambda tokens: tokens["ids"], prepare=tokenize), batched.BatchedFunction[Any, Any]
)


class Model:
    def before(self, texts: list[str]) -> dict[str, list[int]]:
        return {"ids": [len(text) for text in texts]}

    @batched.dynamically(prepare=before)
    def method(self, tokens: dict[str, list[int]]) -> list[int]:
        return tokens["ids"]

    @batched.dynamically(prepare="before", finish=unpack)
    def named(self, tokens: dict[str, list[int]]) -> tuple[int, ...]:
        return tuple(tokens["ids"])


Model().method("a")
Model().named(["a"])


async def aprepare(texts: list[str]) -> dict[str, list[int]]:
    return {"ids": [len(text) for text in texts]}


@aio.dynamically(prepare=aprepare)
async def aembed(tokens: dict[str, list[int]]) -> list[int]:
    return tokens["ids"]


assert_type(aembed, AioFunction[Any, Any])

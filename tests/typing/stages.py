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


assert_type(embed, batched.BatchedFunction[str, int])
assert_type(embed("a"), int)
assert_type(embed(["a"]), list[int])
embed(1)  # type: ignore[call-overload]


@batched.dynamically(prepare=tokenize)
def prepared(tokens: dict[str, list[int]]) -> list[float]:
    return [float(length) for length in tokens["ids"]]


assert_type(prepared, batched.BatchedFunction[str, float])


@batched.dynamically(prepare=tokenize)  # type: ignore[arg-type]
def wrong(tokens: list[int]) -> list[int]:
    return tokens


@batched.dynamically(64, finish=unpack, length=None)
def finished(texts: list[str]) -> tuple[int, ...]:
    return tuple(map(len, texts))


assert_type(finished, batched.BatchedFunction[str, int])


@batched.dynamically(finish=unpack)
def columns(texts: list[str], others: list[int]) -> tuple[int, ...]:
    return tuple(len(text) + other for text, other in zip(texts, others, strict=True))


assert_type(columns("a", 1), int)


@batched.dynamically(prepare=lambda texts: [len(text) for text in texts], finish=lambda lengths: lengths * 2)
def of_lambdas(lengths: list[int]) -> list[int]:
    return lengths


assert_type(of_lambdas, batched.BatchedFunction[Any, Any])


@batched.dynamically(prepare=lambda texts: [len(text) for text in texts], finish=unpack)
def of_one_lambda(lengths: list[int]) -> tuple[int, ...]:
    return tuple(lengths)


of_one_lambda("a")
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

    @batched.dynamically(prepare=tokenize, finish=unpack)
    def typed(self, tokens: dict[str, list[int]]) -> tuple[int, ...]:
        return tuple(tokens["ids"])

    @batched.dynamically(prepare=tokenize)
    def prepared(self, tokens: dict[str, list[int]]) -> list[int]:
        return tokens["ids"]

    @batched.dynamically(finish=unpack)
    def finished(self, texts: list[str]) -> tuple[int, ...]:
        return tuple(map(len, texts))


Model().method("a")
Model().named(["a"])
assert_type(Model().typed("a"), int)
assert_type(Model().prepared(["a"]), list[int])
assert_type(Model().finished("a"), int)


async def aprepare(texts: list[str]) -> dict[str, list[int]]:
    return {"ids": [len(text) for text in texts]}


@aio.dynamically(prepare=aprepare)
async def aembed(tokens: dict[str, list[int]]) -> list[int]:
    return tokens["ids"]


assert_type(aembed, AioFunction[str, int])


async def aunpack(outputs: tuple[int, ...]) -> list[int]:
    return list(outputs)


@aio.dynamically(prepare=aprepare, finish=aunpack)
async def all_three(tokens: dict[str, list[int]]) -> tuple[int, ...]:
    return tuple(tokens["ids"])


@aio.dynamically(prepare=tokenize, finish=unpack)
async def only_one(tokens: dict[str, list[int]]) -> tuple[int, ...]:
    return tuple(tokens["ids"])


@aio.dynamically(finish=aunpack)
async def only_finished(texts: list[str]) -> tuple[int, ...]:
    return tuple(map(len, texts))


assert_type(all_three, AioFunction[str, int])
assert_type(only_one, AioFunction[str, int])
assert_type(only_finished, AioFunction[str, int])

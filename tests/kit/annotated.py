"""The types of decorated functions as annotations name them: without the type of the function itself."""

from __future__ import annotations

from typing import Any, TypeVar, overload

from batched import BatchedFunction, aio
from batched.inference import BatchedInference
from batched.typing import BatchedColumns, ManyColumns, StreamingFunction

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
U = TypeVar("U")
S = TypeVar("S")


@overload
def annotated(fn: BatchedFunction[T, U]) -> BatchedFunction[T, U]: ...
@overload
def annotated(fn: BatchedColumns[T1, T2, U]) -> BatchedColumns[T1, T2, U]: ...
@overload
def annotated(fn: ManyColumns[T, U]) -> ManyColumns[T, U]: ...
@overload
def annotated(fn: StreamingFunction[T, U]) -> StreamingFunction[T, U]: ...
@overload
def annotated(fn: BatchedInference[U]) -> BatchedInference[U]: ...
@overload
def annotated(fn: aio.BatchedFunction[T, U]) -> aio.BatchedFunction[T, U]: ...
@overload
def annotated(fn: aio.BatchedColumns[T1, T2, U]) -> aio.BatchedColumns[T1, T2, U]: ...
@overload
def annotated(fn: aio.ManyColumns[T, U]) -> aio.ManyColumns[T, U]: ...
@overload
def annotated(fn: aio.StreamingFunction[T, U]) -> aio.StreamingFunction[T, U]: ...
@overload
def annotated(fn: aio.inference.BatchedInference[U]) -> aio.inference.BatchedInference[U]: ...
def annotated(fn: Any) -> Any:
    """Return `fn`, as an annotation would have it."""
    return fn

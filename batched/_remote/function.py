"""A function of another process, called as one of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack, cast

from batched._api.lists import BatchedFunction
from batched._api.option_types import CallChanges
from batched._core.options import CallOptions, Options, options_told
from batched._policy.window import short
from batched._remote.driver import RemoteDriver
from batched._remote.link import WireTimes

_ANY = Signature([Parameter("args", Parameter.VAR_POSITIONAL), Parameter("named", Parameter.VAR_KEYWORD)])
_NEARLY_ALL = 0.9  # of the calls
_LEAST_CALLS = 100  # until then a share tells little


class RemoteFunction(BatchedFunction[Any, Any, Any]):
    """A function that another process batches, for all of its clients; made by `batched.connect`.

    It is called as a decorated function is: `fn(item)`, `fn([item, ...])`, `await fn.acall(item)`, `submit`,
    `map`, `stream`, `options` and the others. Arguments and results are copied. `stats`, `explain`, `shapes`
    and `expected_wait_ms` are of the function in its server, for all clients, and block until it answers.
    `configure`, `warm_up` and `worker_stack` raise a `TypeError`: they are for the process of the server.

    The server reads the arguments, so `submit` raises neither a `TypeError` for them nor a refusal, such as
    `QueueFullError`: these are in the future. An error of a type that this process has not imported arrives
    as a `BatchError`.

    A pickle of it holds how to connect, the token included: other processes that unpickle it connect
    themselves. A copy is the function itself.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # what it takes, the server knows; an annotation of the user's may say so

        def options(self, **changes: Unpack[CallChanges]) -> Self: ...
        def __call__(self, /, *args: Any, **named: Any) -> Any: ...
        async def acall(self, /, *args: Any, **named: Any) -> Any: ...
        def submit(self, /, *args: Any, **named: Any) -> Future[Any]: ...

    def __init__(self, driver: RemoteDriver, again: Callable[[], Any]) -> None:
        name = driver.name  # the function must not hold the driver: the class of this object refers to it

        def remote(*_: Any, **__: Any) -> NoReturn:
            raise TypeError(f"{name} runs in its server: its plain function is not in this process")

        remote.__name__ = remote.__qualname__ = name
        remote.__doc__ = f"Call {name} of the server at {driver.address}."
        remote.__module__ = __name__
        super().__init__(remote, Options(name=name))
        vars(self)["_again"] = again
        self._shared.binding.make = lambda _: driver  # type: ignore[assignment, return-value]

    __signature__: Any = _ANY

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        return self

    @property
    def _remote(self) -> RemoteDriver:
        return cast("RemoteDriver", self._driver)

    def _check_request_cache(self) -> NoReturn:
        name = self._name
        raise TypeError(
            f"request_cache cannot be used with {name}, which is in another process: only its server knows "
            f"what its items are. Decorate a function of this process that calls it with a list, and give "
            f"that one the request_cache"
        )

    # -- what is the server's -----------------------------------------------------------------------------

    def shapes(self) -> Any:
        """Return the shapes that the function can be given, as the server says."""
        return self._remote.ask("shapes")

    def explain(self) -> str:
        """Return what the batcher in the server does and has found out, and what the connection costs."""
        driver = self._remote
        told: str = driver.ask("explain")
        return "\n".join([told, *sentences(driver.wire, driver.ask("clients"))])

    def configure(self, **changes: Any) -> NoReturn:
        """Refuse: all clients share the function, so it is configured in its server.

        Raises:
            TypeError: Always.

        """
        self._remote.configure(changes)

    def _warm_ups(self, *_: Any, in_task: bool, **__: Any) -> NoReturn:
        self._remote.warm_up(list, in_task=in_task)

    def worker_stack(self) -> NoReturn:
        """Refuse: the worker is in another process.

        Raises:
            TypeError: Always.

        """
        raise TypeError(
            f"the worker of {self._name} is in its server: send SIGABRT to a server that was started with "
            f"`python -X faulthandler`, or use py-spy, to see where a batch hangs"
        )

    # -- the end ------------------------------------------------------------------------------------------

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """Take no more calls in this process. The function in its server, and other clients, go on.

        Later calls of this function raise `ClosedError`, also those of its other views and copies. It may be
        called more than once. `with` ends so too. To end the connections, close the client.

        Args:
            wait: Return only when the calls that were sent are answered. Those of tasks on the running loop
                of this thread are not waited for: await `aclose` there.
            cancel_futures: Drop the calls without an answer instead: they raise `CancelledError`, and what of
                them has not started never runs.

        """
        super().shutdown(wait=wait, cancel_futures=cancel_futures)

    async def aclose(self) -> None:
        """Take no more calls in this process, and wait until those that were sent are answered.

        The function in its server, and other clients, go on. It may be awaited more than once.
        """
        await self._remote.aclose()  # without `super`: the method is copied, by its code

    # -- what it is ---------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._shared.attributes["_again"], self._name, self._shared.call_options)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RemoteFunction):
            return NotImplemented
        return self._remote is other._remote and self._shared.call_options == other._shared.call_options

    def __hash__(self) -> int:
        return hash(id(self._remote))

    def __repr__(self) -> str:
        told = [f"{self._name} of {self._remote.address}", *options_told(self._shared.call_options)]
        return f"<batched {', '.join(told)}>"


def _again(again: partial[Any], name: str, options: CallOptions) -> RemoteFunction:
    """Return a function of an unpickled way to connect."""
    found: RemoteFunction = again()[name].with_call_options(options)
    return found


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

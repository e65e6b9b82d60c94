"""An ASGI application without a framework: JSON in, one call, JSON out."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["BareApp"]


class BareApp:
    """What HTTP costs in Python where nothing checks types, answers errors or sees that a client left."""

    def __init__(self, acall: Callable[[str], Awaitable[list[float]]]) -> None:
        self._acall = acall

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[dict[str, Any]], Any]
    ) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        message = await receive()
        body = message["body"]
        while message.get("more_body"):
            message = await receive()
            body += message["body"]
        answer = json.dumps(await self._acall(json.loads(body)["text"])).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

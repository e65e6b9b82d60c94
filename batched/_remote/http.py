"""A small page beside a server: its metrics for Prometheus, and whether it takes calls."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from importlib import import_module
from itertools import chain
from socketserver import ThreadingTCPServer
from time import sleep
from typing import Any, Final

from batched._drivers.fork_and_exit import register
from batched._logs import log_error
from batched._remote.addresses import family_of
from batched._remote.clients import ClientFigures

_FAMILIES: tuple[tuple[str, str, str, Callable[[ClientFigures], int]], ...] = (
    # kind, metric, text, figure
    ("Gauge", "connections", "Connections of a client, which is a process", lambda c: c.connections),
    ("Counter", "calls", "Calls that a client has sent", lambda c: c.calls),
    ("Gauge", "unanswered_calls", "Calls of a client without an answer yet", lambda c: c.unanswered),
    ("Counter", "received_bytes", "Bytes that a client has sent to the server", lambda c: c.bytes_in),
    ("Counter", "sent_bytes", "Bytes that the server has sent to a client", lambda c: c.bytes_out),
)
_PAUSE_S = 0.2
_TEXT: Final = "text/plain; charset=utf-8"


class Metrics:
    """All that is on the page: the batchers, the clients, and what the program has registered itself."""

    def __init__(self, clients: Callable[[], Mapping[str, ClientFigures]]) -> None:
        try:
            self._own: Any = import_module("batched.prometheus").Collector(registry=None)
        except ImportError as missing:
            raise ImportError(
                "http needs prometheus-client: pip install prometheus-client", name=missing.name
            ) from None
        self._library: Any = import_module("prometheus_client")
        self._core: Any = import_module("prometheus_client.core")
        self._clients = clients

    def page(self, accepted: str) -> tuple[bytes, str]:
        """Return the page in the format that is asked for, and the name of that format."""
        choose = import_module("prometheus_client.exposition").choose_encoder
        try:
            encode, kind = choose(accepted)
        except Exception:  # noqa: BLE001  of what a client asks for, which cannot be read
            encode, kind = choose("")
        return encode(self), kind

    def collect(self) -> Iterator[Any]:
        """Yield each metric once: the program may have a collector of all batchers too."""
        seen = set[str]()
        for each in chain(self._library.REGISTRY.collect(), self._own.collect(), self._of_clients()):
            if each.name not in seen:
                seen.add(each.name)
                yield each

    def _of_clients(self) -> Iterator[Any]:
        clients = self._clients()
        for kind, metric, text, read in _FAMILIES:
            make = getattr(self._core, f"{kind}MetricFamily")
            family = make(f"batched_client_{metric}", text, labels=["client"])
            for client, figures in clients.items():
                family.add_metric([client], read(figures))
            yield family


class Page(ThreadingTCPServer):
    """Serves `/metrics` and `/healthz` from threads of its own, from the start until it is closed.

    Not `http.server`'s own, which asks for the name of its host: that may take seconds.
    """

    allow_reuse_address = os.name == "posix"  # elsewhere another process could listen there too
    daemon_threads = True
    block_on_close = False

    def __init__(self, where: tuple[str, int], metrics: Metrics) -> None:
        self.status: str = "starting"
        """`serving` while the server takes calls; each other word is an answer of 503."""
        self._metrics = metrics
        self.address_family = family_of(where[0])
        super().__init__(where, _Handler)
        self.where: tuple[str, int] = self.server_address[:2]  # type: ignore[assignment]
        threading.Thread(target=self.serve_forever, args=(0.05,), name="batched: http", daemon=True).start()
        register(self)

    def answer(self, path: str, accepted: str) -> tuple[int, str, bytes]:
        """Return the status, the kind and the text of the answer to a request."""
        if path == "/healthz":
            return 200 if self.status == "serving" else 503, _TEXT, f"{self.status}\n".encode()
        if path == "/metrics":
            text, kind = self._metrics.page(accepted)
            return 200, kind, text
        return 404, _TEXT, b"here are /metrics and /healthz\n"

    def after_fork(self) -> None:
        """Let go of the port in a child, as of a process pool: else no other server could have it."""
        self.socket.close()

    def close(self) -> None:
        """Answer no more requests."""
        self.shutdown()
        self.server_close()

    def get_request(self) -> Any:
        """Take a connection; wait after a failure: without file descriptors, the next attempt is at once."""
        try:
            return super().get_request()
        except OSError:
            sleep(_PAUSE_S)
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a peer that has left."""


class _Handler(BaseHTTPRequestHandler):
    timeout = 10

    def do_GET(self) -> None:
        """Answer."""
        path = self.path.partition("?")[0]
        page: Page = self.server  # type: ignore[assignment]
        try:
            status, kind, text = page.answer(path, self.headers.get("Accept", ""))
        except Exception:  # noqa: BLE001  of a collector of the program's own
            log_error("the page %s could not be made", path)
            status, kind, text = 500, _TEXT, b"the log of the server has the error\n"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_HEAD = do_GET  # noqa: N815  as in the base

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  as in the base
        """Say nothing: scrapes and probes come every few seconds."""

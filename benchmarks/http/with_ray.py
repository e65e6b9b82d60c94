"""Ray Serve: `python -m benchmarks.http.with_ray PORT`."""

from __future__ import annotations

import os
import signal
import sys
from threading import Event

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read when Ray is imported

import ray
from ray import serve
from starlette.requests import Request

from benchmarks.http.models import BATCH_SIZE, WINDOW_S, load


# With its default of 5 ongoing requests no batch has more, and the router sleeps while they last.
@serve.deployment(num_replicas=1, max_ongoing_requests=1024)
class Embedding:
    """The model behind `serve.batch`."""

    def __init__(self) -> None:
        self.model = load()

    @serve.batch(max_batch_size=BATCH_SIZE, batch_wait_timeout_s=WINDOW_S)
    async def embed(self, texts: list[str]) -> list[list[float]]:
        """Run a batch."""
        return self.model(texts)

    async def __call__(self, request: Request) -> list[float]:
        """Answer a request."""
        return await self.embed((await request.json())["text"])


def main() -> None:
    """Serve until SIGTERM."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    serve.start(
        http_options={"host": "127.0.0.1", "port": int(sys.argv[1])},
        logging_config={"enable_access_log": False},
    )
    serve.run(Embedding.bind(), route_prefix="/embed")
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    stop.wait()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()

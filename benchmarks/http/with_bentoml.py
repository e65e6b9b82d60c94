"""BentoML: `bentoml serve benchmarks.http.with_bentoml:Embedding`.

Its batches are made of lists, so each request is one.
"""

from __future__ import annotations

import bentoml

from benchmarks.http.models import BATCH_SIZE, load


@bentoml.service(workers=1, traffic={"timeout": 60}, logging={"access": {"enabled": False}})
class Embedding:
    """The model behind BentoML's batching, which chooses its own wait."""

    def __init__(self) -> None:
        self.model = load()

    @bentoml.api(batchable=True, max_batch_size=BATCH_SIZE, max_latency_ms=60_000, route="/embed")
    def embed(self, text: list[str]) -> list[list[float]]:
        """Run a batch."""
        return self.model(text)

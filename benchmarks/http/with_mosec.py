"""mosec: `python -m benchmarks.http.with_mosec --port PORT --timeout 30000`, options that it reads itself."""

from __future__ import annotations

from typing import Any

from mosec import Server, ValidationError, Worker

from benchmarks.http.models import BATCH_SIZE, WINDOW_S, load


class Embedding(Worker):
    """The model behind mosec's batching."""

    def __init__(self) -> None:
        super().__init__()
        self.model = load()

    def deserialize(self, data: bytes) -> str:
        """Return the text."""
        body: Any = super().deserialize(data)
        text = body.get("text") if isinstance(body, dict) else None
        if not isinstance(text, str):
            raise ValidationError('send {"text": "..."}')
        return text

    def forward(self, data: list[str]) -> list[list[float]]:
        """Run a batch."""
        return self.model(data)


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        Embedding,
        num=1,
        max_batch_size=BATCH_SIZE,
        max_wait_time=round(WINDOW_S * 1000),
        timeout=30,
        route="/embed",
    )
    server.run()

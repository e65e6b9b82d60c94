"""LitServe: `python -m benchmarks.http.with_litserve PORT`.

It reads the annotation of a request as it is, so they must not be put off here.
"""

import sys

import litserve
from pydantic import BaseModel

from benchmarks.http.models import BATCH_SIZE, WINDOW_S, load


class Text(BaseModel):
    """What a client sends."""

    text: str


class Embedding(litserve.LitAPI):
    """The model behind LitServe's batching."""

    def setup(self, device: object) -> None:  # noqa: ARG002  theirs
        """Load the model."""
        self.model = load()

    def decode_request(self, request: Text) -> str:
        """Return the text."""
        return request.text

    def predict(self, texts: list[str]) -> list[list[float]]:
        """Run a batch."""
        return self.model(texts)

    def encode_response(self, output: list[float]) -> list[float]:
        """Return the four numbers."""
        return output


if __name__ == "__main__":
    api = Embedding(max_batch_size=BATCH_SIZE, batch_timeout=WINDOW_S, api_path="/embed")
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=60)
    server.run(port=int(sys.argv[1]), generate_client_file=False, log_level="error", access_log=False)

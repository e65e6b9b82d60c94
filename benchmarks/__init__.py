"""What `batched` costs beside the least that any batcher must cost, measured side by side."""

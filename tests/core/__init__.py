"""What is decided: `batched/_core`."""

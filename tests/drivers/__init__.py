"""Where callers and batches wait: `batched/_drivers`."""

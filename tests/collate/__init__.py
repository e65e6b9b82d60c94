"""What items are: `batched/_collate`."""

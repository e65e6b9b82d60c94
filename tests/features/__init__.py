"""What takes part in the way of calls: `batched/_features`."""

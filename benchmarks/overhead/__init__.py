"""What a call costs when the batch function costs nothing."""

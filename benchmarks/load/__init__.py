"""What callers get when the batch function takes time."""

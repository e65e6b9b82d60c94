"""The figures of the first pages: `python -m benchmarks headline`."""

"""The embedding service under load, beside other servers: `python -m benchmarks http`."""

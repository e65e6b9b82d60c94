"""What is optional: metrics, the demo, and batched functions inside of other libraries."""

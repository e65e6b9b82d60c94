"""Beside the batcher of Ray Serve, in one replica."""

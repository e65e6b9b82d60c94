"""A real model, beside other batchers."""

"""Everything at once, at random."""

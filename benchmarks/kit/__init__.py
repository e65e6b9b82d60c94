"""What every benchmark needs: callers, bare limits, turns, tables."""

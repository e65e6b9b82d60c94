"""Rules of batching on a clock that is turned by hand, beside the exact optimum."""

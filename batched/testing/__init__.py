"""For tests of batched functions: answers at once, a clock turned by hand, and independent items.

Nothing else in the package knows this one. pytest finds its fixtures, `batched_inline` and `batched_clock`.
"""

from batched.testing.at_once import inline
from batched.testing.clock import ManualClock, Ran, manual_clock
from batched.testing.independent import assert_independent

__all__ = ["ManualClock", "Ran", "assert_independent", "inline", "manual_clock"]

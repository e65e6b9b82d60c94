"""The table of array libraries, and the library of a value.

Imports none of them: while a library is not imported, no value can be one of its arrays.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from batched._collate.numpy_arrays import NumpyArrays
from batched._collate.torch_arrays import TorchArrays

if TYPE_CHECKING:
    from collections.abc import Callable

    from batched._collate.library import Library

__all__ = ["LIBRARIES", "library_of"]

_TABLE: dict[str, tuple[str, Callable[[Any], Library]]] = {
    # module: the name of its type of arrays, and what is made of the module
    "numpy": ("ndarray", NumpyArrays),
    "torch": ("Tensor", TorchArrays),
}
_made: dict[str, Library] = {}
LIBRARIES: dict[type, Library] = {}
"""The library of each type of array that `library_of` has been asked about."""


def library_of(value: object) -> Library | None:
    """Return the library that `value` is an array of, None if it is not an array."""
    found = LIBRARIES.get(type(value))
    if found is not None:
        return found
    for module_name, (array_name, make) in _TABLE.items():
        module = sys.modules.get(module_name)
        array_type = getattr(module, array_name, None)  # None too while the module is still being imported
        if array_type is not None and isinstance(value, array_type):
            library = _made.setdefault(module_name, make(module))
            LIBRARIES[type(value)] = library
            return library
    return None

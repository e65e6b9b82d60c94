"""Whether the number of results follows that of the items, or is right by chance."""

from __future__ import annotations


class ResultCount:
    """Whether the number of results may be right by chance, as it does not follow the number of items.

    A function that returns two arrays returns two results for any batch, so those for two items would be
    pieces of other answers. Once a number was wrong, a batch of as many items runs in two parts: these have
    other numbers of items, and it shows. A number for one item is no chance: there is no other answer.
    """

    def __init__(self) -> None:
        self.doubted: int | None = None
        """The number of results that was wrong last; None once another number has been right."""

    def was_wrong(self, results: int | None) -> None:
        """Note that a batch of another number of items had so many results, or none at all."""
        if results is not None:
            self.doubted = results if results > 1 else None

    def was_right(self, items: int) -> None:
        """Note that a batch of so many items had as many results."""
        if items != self.doubted:
            self.doubted = None

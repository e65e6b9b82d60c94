"""The errors that one error leads to, and what is known of an error without running code of its class."""

from __future__ import annotations

from collections.abc import Iterator


def chain_of(error: BaseException, *, into_groups: bool = False) -> Iterator[BaseException]:
    """Yield `error`, what it was raised from, what was handled meanwhile, hidden or not, and its arguments.

    Libraries hide what they translate behind `from None`, so that a traceback is short; an error that comes
    from another process has its arguments only. No error comes twice: a chain may lead back into itself. The
    errors of a group come `into_groups` only.
    """
    seen = {id(error)}
    ahead = [error]
    while ahead:
        each = ahead.pop()
        yield each
        links: list[object] = [each.__cause__, each.__context__, *each.args]
        if isinstance(each, BaseExceptionGroup):
            if into_groups:
                links += each.exceptions
            else:  # the one that a task group was left with is its context too
                seen.update(map(id, each.exceptions))
        for link in links:
            if isinstance(link, BaseException) and id(link) not in seen:
                seen.add(id(link))
                ahead.append(link)


def names_of(error: BaseException) -> list[str]:
    """Return the names of the classes of `error`, the nearest first, without those that all errors have."""
    return [cls.__name__ for cls in type(error).__mro__ if cls not in {Exception, BaseException, object}]


def texts_of(error: BaseException) -> list[str]:
    """Return the texts that `error` stores: not `str(error)`, which runs code of its class."""
    return [each for each in (*error.args, *vars(error).values()) if isinstance(each, str)]

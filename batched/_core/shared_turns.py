"""Which of the functions that share workers has the next turn.

Functions take turns as keys do (`KeyedQueues`): a function waits for its turn since its oldest call came, or
since its last batch. Small calls go ahead of large ones, and a call that has used up half of the time until
its deadline goes ahead of both. One batch in eight goes to the one that has waited longest, whatever it has,
so that none waits for its turn longer than eight batches for each that waits. (Each instance of a class
counts.)

With weights, the function that has had the least time of the workers, divided by its weight, is next, as in
stride scheduling (Waldspurger and Weihl, 1995). A function that had nothing to run saves up nothing.
"""

from __future__ import annotations

from itertools import count
from math import inf
from operator import attrgetter
from typing import TypeAlias
from weakref import WeakValueDictionary

from batched._core.lazy_heap import LazyHeap

_SINCE = attrgetter("since")
_SMALL_FIRST = attrgetter("is_large", "rank")
_SERVED = attrgetter("served", "turn")

_ONE_IN = 8  # batches: one of so many goes to the seat that has waited longest
_MOST_BEHIND = 4  # of its batches: a function that never waits, as workers are idle, is owed no more
_WEIGHT = 1 / 8  # of one batch in the mean time of a function's batches


Turn: TypeAlias = "tuple[Seat, int]"
"""A seat that waits for its turn, and the number of that: it has passed once the seat has another."""


class Account:
    """One function, perhaps of many instances: when it had its last turn, and how much time it has had."""

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.weight: float | None = None
        """Its share of the time, relative to that of others; None counts as 1."""
        self.turn: float = -inf  # when its last batch was taken
        self.served: float = 0.0  # seconds of the workers, divided by the weight
        self.batch_s: float = 0.0  # of a batch, on average
        self.due: int = 0  # seats that are due
        self.running: int = 0
        """How many of its batches run."""
        self.ended_at: int = -1  # after how many choices its last batch ended
        self.waited_until: int = 0  # after so many choices it had no more that could start
        self.lines: tuple[LazyHeap[Turn, float], ...] = LazyHeap(_waits_since), LazyHeap(_waits_since)
        """The seats that are due: those with small calls, and the others."""

    def first(self) -> Seat | None:
        """Return the seat that has its turn before the others of this function, None if none is due."""
        small, large = self.lines
        return _first(small) or _first(large)

    def clear_lines(self) -> None:
        """Forget the seats."""
        for line in self.lines:
            line.clear()


class Seat:
    """One batcher that shares workers."""

    def __init__(self, account: Account) -> None:
        self.account: Account = account
        self.turn: float = -inf  # when its last batch was taken
        self.is_due: bool = False
        """Whether it has a batch that could start."""
        self.is_large: bool = False  # whether it has nothing but large calls
        self.oldest: float = 0.0  # when its oldest call came
        self.start_by: float = inf
        """When a deadline wants it to start; `inf` if none does."""
        self.number: int = 0  # of its present turn

    @property
    def since(self) -> float:
        """Since when it waits for its turn, among the seats of its function."""
        return max(self.turn, self.oldest)

    @property
    def rank(self) -> tuple[float, float]:
        """Since when its function waits for its turn because of this seat; and since when the seat does."""
        return max(self.account.turn, self.oldest), self.since


def _waits_since(turn: Turn) -> float | None:
    seat, number = turn
    return seat.since if seat.is_due and seat.number == number else None


def _starts_by(turn: Turn) -> float | None:
    seat, number = turn
    return seat.start_by if seat.is_due and seat.number == number else None


def _first(turns: LazyHeap[Turn, float]) -> Seat | None:
    turn = turns.first()
    return None if turn is None else turn[0]


class SharedTurns:
    """The seats that are due, and which of them is next."""

    def __init__(self) -> None:
        self._accounts: WeakValueDictionary[str, Account] = WeakValueDictionary()  # of functions that live
        self._due: dict[Account, None] = {}  # with seats that are due
        self._numbers = count(1)
        self._deadlines = LazyHeap(_starts_by)
        self._choices = 0  # of the seat that is next
        self._passed = 0  # batches in a row that went ahead of the one that had waited longest

    def account(self, name: str, weight: float | None = None) -> Account:
        """Return the account of the function of this name, and give it a weight, if it has one.

        Needs no lock: functions may be made while others take turns.
        """
        account = self._accounts.setdefault(name, Account(name))
        if weight is not None:
            account.weight = weight
        return account

    def _all(self) -> list[Account]:
        """Return all accounts."""
        return [account for known in self._accounts.valuerefs() if (account := known()) is not None]

    def clear(self) -> None:
        """Forget what is due and what runs: in a child process there is nothing of it."""
        self._due.clear()
        self._deadlines.clear()
        for account in self._all():
            account.due = account.running = 0
            account.clear_lines()

    def __len__(self) -> int:
        return sum([account.due for account in self._due])

    def seats(self) -> list[Seat]:
        """Return the seats that are due."""
        lines = [line for account in self._due for line in account.lines]
        return [turn[0] for line in lines for _, _, turn in line.entries if _waits_since(turn) is not None]

    def due(self, seat: Seat, oldest: float, start_by: float, is_large: bool) -> None:  # noqa: FBT001
        """Note that `seat` has a batch that could start; its oldest call came then."""
        account = seat.account
        if seat.is_due:
            is_same = (seat.is_large, seat.oldest, seat.start_by) == (is_large, oldest, start_by)
            if is_same:
                return
        else:
            if not account.due and account.waited_until < self._choices:
                self._begin(account)
            account.due += 1
            self._due[account] = None
        seat.is_due, seat.is_large, seat.oldest, seat.start_by = True, is_large, oldest, start_by
        seat.number = next(self._numbers)
        turn = seat, seat.number
        account.lines[is_large].add(turn, seat.since)
        if start_by < inf:
            self._deadlines.add(turn, start_by)

    def _begin(self, account: Account) -> None:
        """Have `account`, of which nothing waited at the last choice, be level: it saves up no time.

        That is with the others that wait, or else with the one that has had most, which may wait next. If
        its batches have run until now, what it is owed is kept, up to a bound: in closed loops, nothing of it
        waits while its callers come back.
        """
        waiting = [other.served for other in self._due]
        level = min(waiting) if waiting else max([other.served for other in self._all()])
        if account.running or account.ended_at == self._choices:
            level -= _MOST_BEHIND * account.batch_s / (account.weight or 1.0)
        account.served = max(account.served, level)

    def not_due(self, seat: Seat) -> None:
        """Note that `seat` has no batch that could start."""
        if seat.is_due:
            seat.is_due = False
            account = seat.account
            account.due -= 1
            if not account.due:
                account.waited_until = self._choices
                self._due.pop(account, None)
                account.clear_lines()  # so that an idle function is kept by nothing here
                if not self._due:
                    self._deadlines.clear()

    def next(self, now: float) -> Seat | None:
        """Return the seat that is next, None if none is due."""
        if not self._due:
            return None
        self._choices += 1
        if len(self._due) == 1:
            account = next(iter(self._due))
            if account.due == 1:
                return account.first()
        seats = [seat for account in self._due for line in account.lines if (seat := _first(line))]
        by_weight = self._by_weight()
        if by_weight is not None:
            seats = [seat for line in by_weight.lines if (seat := _first(line))]
        fair = min(seats, key=_SINCE)
        if self._passed < _ONE_IN - 2:  # after it, the one that it kept waiting is next
            chosen = self._urgent(now) or min(seats, key=_SMALL_FIRST)
            self._passed = 0 if chosen is fair else self._passed + 1
            return chosen
        self._passed = 0
        return fair

    def _urgent(self, now: float) -> Seat | None:
        """Return the seat that a deadline wants to start by now, the soonest first."""
        seat = _first(self._deadlines)
        return seat if seat is not None and seat.start_by <= now else None

    def _by_weight(self) -> Account | None:
        """Return the function that has had least; None if none that is due has a weight."""
        if any(account.weight is not None for account in self._due):
            return min(self._due, key=_SERVED)
        return None

    def taken(self, seat: Seat, now: float) -> None:
        """Note that a batch of `seat` starts now; whether there is a further one is not known yet."""
        account = seat.account
        seat.turn = account.turn = now
        account.running += 1
        account.served += account.batch_s / (account.weight or 1.0)
        self.not_due(seat)

    def ended(self, account: Account, seconds: float | None) -> None:
        """Note that a batch has ended after so many seconds, None if these say nothing of others."""
        account.running -= 1
        account.ended_at = self._choices
        if seconds is None:
            account.served -= account.batch_s / (account.weight or 1.0)
            return
        if not account.batch_s:
            account.batch_s = seconds
            account.served += seconds / (account.weight or 1.0)
            return
        account.served += (seconds - account.batch_s) / (account.weight or 1.0)
        account.batch_s += _WEIGHT * (seconds - account.batch_s)

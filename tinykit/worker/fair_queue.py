"""Who is served next: clients take turns, and so do the requests of one client."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tinykit.plurals import counted

T = TypeVar("T")

MAX_WAITING = 512
MAX_WAITING_OF_ONE = 64


class QueueFull(Exception):
    """There is no room for another request."""


class FairQueue(Generic[T]):
    """Requests that wait, in rounds: one part of one request of each client in turn. For all threads.

    A request stays until whoever takes from it says that it has no more parts.
    """

    def __init__(self, limit: int = MAX_WAITING, limit_of_one: int = MAX_WAITING_OF_ONE) -> None:
        self._limit = limit
        self._limit_of_one = limit_of_one
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: OrderedDict[Hashable, deque[T]] = OrderedDict()
        self._is_woken = False

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._waiting.values()))

    def put(self, client: Hashable, item: T) -> int:
        """Let a request wait; returns how many are before it.

        Raises:
            QueueFull: too many wait already, of all clients or of this one.
        """
        with self._lock:
            own = self._waiting.get(client, ())
            total = sum(map(len, self._waiting.values()))
            if total >= self._limit or len(own) >= self._limit_of_one:
                many = f"{counted(total, 'request')} {'is' if total == 1 else 'are'}"
                raise QueueFull(f"{many} waiting, {len(own)} of this client")
            self._waiting.setdefault(client, deque()).append(item)
            self._changed.notify_all()
            return total

    def take(self, take_from: Callable[[T], tuple[bool, bool]]) -> T | None:
        """The next request that gives something, None if none does.

        `take_from` is asked in turn and answers whether it gave a part, and whether it has more parts.
        """
        with self._lock:
            for client in list(self._waiting):
                own = self._waiting[client]
                for item in list(own):
                    has_given, has_more = take_from(item)
                    if has_given or not has_more:
                        own.remove(item)
                        if has_more:
                            own.append(item)
                    if has_given:
                        self._waiting.move_to_end(client)
                        self._forget_if_empty(client)
                        return item
                self._forget_if_empty(client)
        return None

    def _forget_if_empty(self, client: Hashable) -> None:
        if not self._waiting[client]:
            del self._waiting[client]

    def remove(self, is_meant: Callable[[T], bool]) -> list[T]:
        """Take out requests that need not be served any more."""
        with self._lock:
            found = []
            for client, own in list(self._waiting.items()):
                found += [item for item in own if is_meant(item)]
                kept = deque(item for item in own if not is_meant(item))
                if kept:
                    self._waiting[client] = kept
                else:
                    del self._waiting[client]
            return found

    def in_order(self) -> list[T]:
        """All that wait, about in the order in which they will be served."""
        with self._lock:
            rounds = [list(own) for own in self._waiting.values()]
        longest = max(map(len, rounds), default=0)
        return [own[at] for at in range(longest) for own in rounds if at < len(own)]

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until something was put in or `wake` was called; whether that came in time."""
        with self._changed:
            if not self._waiting and not self._is_woken:
                self._changed.wait(timeout_s)
            is_news = bool(self._waiting) or self._is_woken
            self._is_woken = False
            return is_news

    def wake(self) -> None:
        """End the present or the next `wait`."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

"""Many things asked of a worker: in requests of some megabytes, each with what is left of their time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tinykit.entitling import deadline_after, left_s
from tinykit.errors import TinykitError
from tinykit.worker.protocol import Message
from tinykit.worker.remote import RemoteModel
from tinykit.worker.wire import error_of

T = TypeVar("T")
_GROUP_BYTES = 4 * 2**20  # of texts in one request


@dataclass(frozen=True)
class Errand(Generic[T]):
    """What a worker is to do with each of many things, and what its answers mean.

    Attributes:
        op: The operation.
        many: The parameter that holds the things.
        params: The others. `timeout_s` counts for all things together, once the model is loaded.
        read: What was found, out of the worker's answer.
        late: What there is of a thing that there was no time to begin.
    """

    op: str
    many: str
    params: dict[str, Any]
    read: Callable[[dict[str, Any]], T]
    late: Callable[[Any], T]

    def run(
        self,
        model: RemoteModel,
        asked: Mapping[int, Any],
        found: list[T | TinykitError | None],
        advance: Callable[[], None] = lambda: None,
    ) -> None:
        """Put what is found into the places of the things; a cancel leaves some of them empty.

        Raises: as `RemoteModel.result`, if it concerns more than one thing.
        """
        timeout_s = self.params.get("timeout_s")
        if timeout_s is not None:
            model.load()
        deadline_s = deadline_after(timeout_s)
        for group in _groups(asked):
            left = left_s(deadline_s)
            if left == 0 or self._ask(model, group, found, advance, left) == "timeout":
                for index in [index for index in group if found[index] is None]:
                    found[index] = self.late(group[index])
                    advance()

    def _ask(
        self,
        model: RemoteModel,
        asked: Mapping[int, Any],
        found: list[T | TinykitError | None],
        advance: Callable[[], None],
        timeout_s: float | None,
    ) -> str | None:
        """What has cancelled the request, if anything."""
        indexes = list(asked)

        def take(message: Message) -> None:
            if message["event"] != "part":
                model.on_event(message)
                return
            error = message.get("error")
            found[indexes[message["part"]]] = error_of(error) if error else self.read(message)
            advance()

        params = {**self.params, "timeout_s": timeout_s, self.many: list(asked.values())}
        by: str | None = model.result(self.op, params, take).get("cancelled_by")
        return by


def _groups(asked: Mapping[int, Any]) -> Iterator[dict[int, Any]]:
    """The texts in groups of some megabytes."""
    group: dict[int, Any] = {}
    size = 0
    for index, value in asked.items():
        own = len(repr(value))
        if group and size + own > _GROUP_BYTES:
            yield group
            group, size = {}, 0
        group[index] = value
        size += own
    if group:
        yield group

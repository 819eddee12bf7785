"""A generation that is read piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Protocol, Self

from tinykit.errors import BackendError
from tinykit.generation.result import CancelledBy, Chunk, Completion


class Running(Protocol):
    """A generation that is under way, here or in another process."""

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        ...

    def result(self) -> Completion:
        """The completion; before the end, what there is so far."""
        ...

    def cancel(self, by: CancelledBy) -> object:
        """End it with what there is."""
        ...


class Stream(Iterator[Chunk]):
    """Yields the pieces of an answer while it is made.

    Leaving a ``for`` loop early, closing it, or its end as a ``with`` block cancels the generation at once.
    A Ctrl-C that comes in the very moment in which `close` is called leaves it open, and its slot in use:
    close it again then.
    """

    def __init__(self, run: Running, steps: Generator[Chunk], cancel: Callable[[], None]) -> None:
        self._run = run
        self._steps = steps
        self._cancel = cancel

    def __iter__(self) -> Iterator[Chunk]:
        # Not the stream itself: a frame of `__next__` in the traceback of an interrupt would keep it open,
        # and its slot in use, for as long as somebody keeps the error.
        return self._steps

    def __next__(self) -> Chunk:
        try:
            return next(self._steps)
        except ValueError as error:
            if "already executing" not in str(error):
                raise
            raise BackendError(
                "Another thread is reading this stream just now.", hint="Read it in one thread only."
            ) from None

    @property
    def result(self) -> Completion:
        """The completion; before the end, what there is so far."""
        return self._run.result()

    def cancel(self) -> None:
        """End it from another thread; whoever reads it gets the last piece, then the end."""
        self._cancel()

    def close(self) -> None:
        """End it here; closing twice is harmless."""
        try:
            self._steps.close()
        except ValueError:  # another thread is in the middle of a step
            self.cancel()
        else:
            self._run.cancel("close")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        result = self.result
        state = result.finish_reason if self._run.is_done else "open"
        return f"<Stream {state}, {result.usage.completion_tokens} tokens>"

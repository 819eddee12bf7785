"""A generation that is read piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Protocol, Self

from tinykit.errors import BackendError
from tinykit.generation.lookup import VerifyEvent
from tinykit.generation.result import CancelledBy, Chunk, Completion
from tinykit.interrupts import keep_partial


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

    Closing it, the end of its ``with`` block, or leaving the ``for`` loop that alone holds it cancels the
    generation at once. One that has a name of its own stays open after ``break``, to be read on; other calls
    take their turns meanwhile, but its slot, if it has one, stays in use.
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


def read_all(
    stream: Stream,
    *,
    on_chunk: Callable[[Chunk], object] | None = None,
    on_verify: Callable[[VerifyEvent], object] | None = None,
) -> Completion:
    """The completion of a stream that is read to its end, with those told who want to hear of it.

    Raises: as `Engine.generate`.
    """
    try:
        try:
            for chunk in stream:
                if chunk and on_chunk is not None:
                    on_chunk(chunk)
                is_step = bool(chunk.token_ids or chunk.drafted_tokens)
                if on_verify and is_step and (event := _verified(chunk, stream.result)).is_valid:
                    on_verify(event)
        finally:
            stream.close()
        return stream.result
    except KeyboardInterrupt as error:
        keep_partial(error, stream.result)
        raise


def _verified(chunk: Chunk, result: Completion) -> VerifyEvent:
    """What became of a step's draft, from the piece that it gave."""
    first_index = len(result.token_ids) - len(chunk.token_ids)
    return VerifyEvent.of_step(
        chunk.token_ids,
        chunk.text,
        first_index=first_index,
        drafted=chunk.drafted_tokens,
        accepted=chunk.accepted_tokens,
        correction_token_id=chunk.correction_token_id,
        logprob=sum(one.logprob for one in chunk.logprobs) if chunk.logprobs else None,
        ttft_s=None if first_index else result.timings.ttft_s,
    )

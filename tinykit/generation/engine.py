"""The decode loop above any backend: prefill, then one step after the other, until done or cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial

from tinykit.backends.base import Backend, Logits, State
from tinykit.errors import ClosedError, ForwardInterrupted
from tinykit.generation.aside import Aside, Asides
from tinykit.generation.cache import PrefixCache, reusable, shared_prefix
from tinykit.generation.deadlines import Deadlines
from tinykit.generation.grammar import Grammars, Matcher
from tinykit.generation.lookup import VerifyEvent
from tinykit.generation.prefix_files import PrefixFiles
from tinykit.generation.request import Request, Watcher, check_prompt
from tinykit.generation.result import CancelledBy, Chunk, Completion
from tinykit.generation.run import Cancelled, Run, check_cancelled, is_cancelled
from tinykit.generation.slots import Slot, Slots
from tinykit.generation.steadiness import rows_are_exact
from tinykit.generation.stream import Stream, read_all
from tinykit.generation.turns import Turns
from tinykit.interrupts import keep_partial
from tinykit.tokenizer import Tokenizer


class Engine:
    """Generates from one loaded model.

    It may be called from several threads, and several streams may be open at once: the model takes one step
    of one of them at a time, and each gives what it would give alone.

    Args:
        backend: The loaded model.
        tokenizer: Its tokenizer.
        eos_ids: Tokens that end a text.
        cache_bytes: Memory for states, those of slots and of earlier prompts together; slots come first.
        identity: Gives what tells these weights from others, for saved states.
        turns: Who steps next; one for all engines of a model that is shared.
        release: Lets go of the model; it is closed if nothing is given.
        files: States of recipes' prefixes that earlier processes have left.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        eos_ids: Sequence[int],
        *,
        cache_bytes: int,
        identity: Callable[[], Mapping[str, str]] = dict,
        turns: Turns | None = None,
        release: Callable[[], object] | None = None,
        files: PrefixFiles | None = None,
    ) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self.eos_ids = frozenset(eos_ids)
        self.slots = Slots()
        self.cache = PrefixCache(backend, cache_bytes, lambda: self.slots.size_bytes, files)
        self._identity = identity
        self.cancel_count = 0  # so that whoever runs many generations notices one between two of them
        self._grammars = Grammars(tokenizer, sorted(self.eos_ids), backend.info.vocab_size)
        self.turns = Turns() if turns is None else turns  # one for each step
        self._let_go = release
        self._active: set[Run] = set()
        self.asides = Asides()
        self._stepping: Run | Aside | None = None
        self._deadlines = Deadlines(self._stop)
        self._is_closed = False

    def generate(
        self,
        request: Request,
        *,
        on_chunk: Callable[[Chunk], object] | None = None,
        on_verify: Callable[[VerifyEvent], object] | None = None,
    ) -> Completion:
        """Run `request` to its end.

        Args:
            request: What to generate.
            on_chunk: Gets each piece that has text, before the next step; an error in it ends the run.
            on_verify: Gets what became of each step's draft, likewise.

        Raises:
            PromptTooLongError: the prompt leaves no room in the model's context.
            KeyboardInterrupt: Ctrl-C; its `partial` is the completion so far, and the engine stays usable.
        """
        return read_all(self.stream(request), on_chunk=on_chunk, on_verify=on_verify)

    def stream(self, request: Request) -> Stream:
        """The same, piece by piece.

        Raises:
            PromptTooLongError, OptionError: the request cannot be run; nothing was computed.
        """
        run = self.new_run(request)
        return Stream(run, self._steps(run), lambda: self._cancel(run))

    @cached_property
    def identity(self) -> dict[str, str]:
        """What a saved state must have been made by."""
        info = self.backend.info
        return {"backend": info.backend, "dtype": info.dtype, **self._identity()}

    @cached_property
    def rows_are_exact(self) -> bool:
        """Whether a request gets, to the last bit, the same in a batch as alone; tried when first asked."""
        return self.backend.info.is_shape_invariant or self.turns.take(lambda: rows_are_exact(self.backend))

    def cancel(self) -> int:
        """End whatever is running, from any thread; returns how many generations and choices that was."""
        self.cancel_count += 1
        runs = [run for run in list(self._active) if not (run.is_done or run.is_left)]
        for run in runs:
            self._cancel(run)
        return len(runs) + self.asides.cancel(self._stop)

    def interrupt(self, watcher: Watcher) -> None:
        """Let what runs for a watcher see soon that it was cancelled."""
        stepping = self._stepping
        if stepping is not None and stepping.watcher is watcher:
            self.backend.interrupt()

    def close(self) -> None:
        """Cancel what is running and let go of the model; closing twice is harmless."""
        self.cancel()
        self.turns.take(self._release)

    def require_open(self) -> None:
        """Raise ClosedError after `close`, though others may still have the model."""
        if self._is_closed:
            raise ClosedError("This model was closed.", hint="Make a new TinySession.")

    def _release(self) -> None:
        self._is_closed = True
        self.cache.clear()
        self.slots.clear()
        (self._let_go or self.backend.close)()

    def new_run(self, request: Request) -> Run:
        """A run of `request` that has not begun.

        Raises:
            PromptTooLongError, OptionError: it cannot be run.
        """
        cancels_before = self.cancel_count
        info, options = self.backend.info, request.options
        check_prompt(request, info.context_length)
        can_draft, notes = True, []
        if options.draft is not None and (reason := self._why_not_draft(request)):
            can_draft, notes = False, [f"Drafting is off: {reason}."]
        run = Run(
            request,
            tokenizer=self.tokenizer,
            eos_ids=self.eos_ids,
            vocab_size=info.vocab_size,
            room=info.context_length - len(request.prompt_ids),
            matcher=self._matcher(request),
            can_draft=can_draft,
            notes=notes,
        )
        run.cancels_before = cancels_before
        return run

    @contextmanager
    def active(self, runs: Sequence[Run]) -> Iterator[None]:
        """While they are under way, `cancel` reaches them; what is not done in the end is cancelled.

        So is what was made before a `cancel` and begins only now.
        """
        try:
            self._active.difference_update([run for run in list(self._active) if run.is_left])
            self.asides.forget_left()
            self._active.update(runs)
            for run in runs:
                if run.cancels_before != self.cancel_count:
                    run.cancelled_by = run.cancelled_by or "cancel"
            self._deadlines.watch(runs)
            yield
        except KeyboardInterrupt:
            for run in runs:
                run.cancel("interrupt")
            raise
        finally:
            self._active.difference_update(runs)  # first, as another Ctrl-C may end what follows
            for run in runs:
                run.cancel("close")
            self._deadlines.drop(runs)

    @contextmanager
    def entered(self, run: Run) -> Iterator[tuple[State, list[int]]]:
        """A state for the run, and the token ids that it has seen, out of its slot or the cache.

        Whatever ends the block, the state goes back as far as it holds the run's own tokens.

        Raises:
            Cancelled: the run was cancelled before it began.
            BackendError: this thread has an open stream in the same slot.
        """
        name = run.request.slot
        held = nullcontext() if name is None else self.slots.hold(name, run, lambda: is_cancelled(run))
        with held as slot:
            check_cancelled(run)
            state = self.turns.take(lambda: self._take_state(run, slot))
            seen = list(run.request.prompt_ids[: state.length])
            try:
                yield state, seen
            finally:
                self.turns.take(lambda: self._keep(run, state, seen, slot))

    def prefill(self, run: Run, state: State, seen: list[int]) -> Logits:
        """Feed what `state` has not seen of the prompt; logits after its last token, shape (1, vocab_size).

        A recipe's prefix is kept on the way where that has to be done. `seen` grows with the state.

        Raises:
            Cancelled: the run was cancelled meanwhile.
        """
        prompt, prefix = run.request.prompt_ids, run.request.prefix_tokens
        halts = [len(prompt)]
        if (
            prefix is not None
            and state.length < prefix <= len(prompt) - 2
            and self.cache.is_apart(prompt[:prefix], state, is_new=_is_new(run))
        ):
            halts.insert(0, prefix)
        for halt in halts:
            for piece in _pieces(prompt[state.length : halt], self.backend.info.chunk_tokens):
                logits = self.turns.take(partial(self._prefilled, run, state, seen, piece))
        run.clock.prefilled = time.perf_counter()
        return logits

    def _prefilled(self, run: Run, state: State, seen: list[int], piece: Sequence[int]) -> Logits:
        prompt, prefix = run.request.prompt_ids, run.request.prefix_tokens
        logits = self.forward(run, state, seen, piece)
        if state.length == prefix and state.length < len(prompt):
            self.cache.passed(prompt[:prefix], state, is_new=_is_new(run))
        return logits.copy()  # the next step of another run may overwrite it

    def decode(self, run: Run, state: State, seen: list[int]) -> list[Chunk]:
        """One step of a run that has its first tokens.

        Raises:
            Cancelled: the run was cancelled meanwhile.
        """
        return self.turns.take(lambda: self._decoded(run, state, seen))

    def _decoded(self, run: Run, state: State, seen: list[int]) -> list[Chunk]:
        base = state.length
        logits = self.forward(run, state, seen, run.pending, run.rows)
        chunks = run.take(logits)
        if base + run.standing < state.length:  # wrong guesses
            state.truncate(base + run.standing)
            del seen[state.length :]
        return chunks

    def _steps(self, run: Run) -> Generator[Chunk]:
        try:
            with self.active([run]):
                try:
                    with self.entered(run) as (state, seen):
                        yield from run.take(self.prefill(run, state, seen))
                        while not run.is_done:
                            yield from self.decode(run, state, seen)
                except Cancelled:
                    yield from run.cancel(run.cancelled_by or "cancel")
        except KeyboardInterrupt as error:
            run.cancel("interrupt")
            keep_partial(error, run.result(), is_told=True)
            raise
        finally:
            run.is_left = True

    def forward(
        self, run: Run, state: State, seen: list[int], token_ids: Sequence[int], rows: int = 1
    ) -> Logits:
        """A forward of a run, within a turn; `seen` grows with the state.

        Raises:
            Cancelled: the run was cancelled, before or meanwhile.
            ClosedError: the engine was closed.
        """
        while True:
            self._stepping = run  # first, so that who cancels later than the look below interrupts
            try:
                check_cancelled(run)
                self.require_open()
                logits = self.backend.forward(token_ids, state, rows=rows)
            except ForwardInterrupted:
                continue  # meant for this run, or for one that has just left the model
            finally:
                self._stepping = None
            seen += token_ids
            return logits

    def forward_aside(self, aside: Aside, token_ids: Sequence[int], state: State, rows: int = 1) -> Logits:
        """A forward in a turn of its own, so that others can take their steps between two.

        Raises:
            ForwardInterrupted: the call was cancelled, before or meanwhile.
            ClosedError: the engine was closed.
        """

        def forward() -> Logits:
            while True:
                self._stepping = aside  # first, as in `forward`
                try:
                    aside.check()
                    self.require_open()
                    return self.backend.forward(token_ids, state, rows=rows).copy()
                except ForwardInterrupted:
                    aside.check()  # else it was meant for something that has just left the model
                finally:
                    self._stepping = None

        return self.turns.take(forward)

    def _cancel(self, run: Run, by: CancelledBy = "cancel") -> None:
        run.cancelled_by = run.cancelled_by or by
        self._stop(run)

    def _stop(self, run: Run | Aside) -> bool:
        """Interrupt the forward that a run is in; whether it is in one."""
        if is_stepping := self._stepping is run:
            self.backend.interrupt()
        return is_stepping

    def _take_state(self, run: Run, slot: Slot | None) -> State:
        run.clock.started = time.perf_counter()
        state = self._found_state(run.request, slot)
        run.reused_tokens = state.length
        return state

    def _found_state(self, request: Request, slot: Slot | None) -> State:
        """A state that has seen a prefix of the prompt, out of the slot or the cache, or a new one."""
        if not request.reuse:
            return self.backend.new_state()
        if slot is not None and (state := slot.state) is not None:
            shared = shared_prefix(slot.token_ids, reusable(request.prompt_ids, state))
            slot.state, slot.token_ids = None, ()
            if shared == state.length:
                return state
            if shared and state.can_truncate:
                state.truncate(shared)
                return state
        return self.cache.take(
            request.prompt_ids, prefix_tokens=request.prefix_tokens, is_copy=slot is not None
        )

    def _keep(self, run: Run, state: State, seen: list[int], slot: Slot | None) -> None:
        """Give the state back: to its slot, or to the cache a recipe's prefix alone or all of it."""
        if self._is_closed or run.is_left:  # left: the slot may be another's by now
            return
        tokens = (*run.request.prompt_ids, *run.generated)
        right = shared_prefix(seen, tokens)  # an interrupt may have left guesses in the state
        if state.length != right:
            if not state.can_truncate or state.length < right:
                return
            state.truncate(right)
        prefix = run.request.prefix_tokens
        if state.can_truncate and not self.backend.info.is_shape_invariant:
            # what a fresh prefill would compute to the last bit, so that reuse never changes an answer
            state.truncate(min(state.length, len(run.request.prompt_ids)))
        if slot is not None:
            if prefix is not None and prefix < state.length and state.can_truncate:
                self.cache.keep_prefix(tokens[:prefix], state)
            slot.token_ids, slot.state = tokens[: state.length], state
            self._make_room(slot)
            return
        if prefix is not None and prefix < state.length:
            if not state.can_truncate:
                return  # a copy of the prefix's state is kept already
            state.truncate(prefix)
        self.cache.keep(tokens[: state.length], state, is_answered=prefix is None)

    def _make_room(self, latest: Slot) -> None:
        """Keep slots and cache within their budget: slots of single calls go first, other slots last."""
        budget = self.cache.budget_bytes
        self.slots.shrink(budget - self.cache.size_bytes, except_for=latest, passing=True)
        self.cache.shrink(budget - self.slots.size_bytes)
        self.slots.shrink(budget, except_for=latest)

    def _matcher(self, request: Request) -> Matcher | None:
        constraint = request.options.constraint
        return self._grammars.matcher(constraint) if constraint is not None else None

    def _why_not_draft(self, request: Request) -> str | None:
        if not self.backend.new_state().can_truncate:
            return "this model has recurrent states, which cannot take a wrong guess back"
        if request.options.exact and not self.backend.info.is_shape_invariant:
            return "exact was asked for, and this model's logits depend on how many tokens go in at once"
        return None


def _is_new(run: Run) -> bool:
    return run.request.reuse and not run.reused_tokens


def _pieces(token_ids: Sequence[int], chunk_tokens: int) -> list[Sequence[int]]:
    """Long prompts by pieces of about the same length, so that a cancel is heard between two of them.

    None has a single token if that can be helped: see `reusable`.
    """
    count = max(1, -(-len(token_ids) // chunk_tokens))
    size = -(-len(token_ids) // count)
    return [token_ids[start : start + size] for start in range(0, len(token_ids), size)]

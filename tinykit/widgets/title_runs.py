"""The work behind the title playground, without any widget: sessions by choice, and one title a recipe."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from tinykit.errors import DeviceError, UnknownModelError
from tinykit.generation.result import Chunk
from tinykit.progress import ProgressEvent
from tinykit.recipes import Recipe
from tinykit.registry import FileSource, ModelSpec, get_model
from tinykit.session import TinySession
from tinykit.titling import Title
from tinykit.widgets.job import Job
from tinykit.widgets.view import error_text, seconds_text


class Choice(NamedTuple):
    """What to make titles with; None follows the session or the settings."""

    model: str
    device: str | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class TitleRow:
    """One recipe's title, on its way or done.

    Attributes:
        recipe: Name of the recipe.
        model: Key of the model that is asked.
        state: `waiting`, `running`, `done`, `stopped` or `failed`.
        draft: What the model has written so far of its first answer.
        title: The title, once it is done.
        seconds: How long it took, with everything that is around the model.
        error: What went wrong, in words.
    """

    recipe: str
    model: str
    state: str = "waiting"
    draft: str = ""
    title: Title | None = None
    seconds: float | None = None
    error: str = ""

    @property
    def shown(self) -> str:
        """The title, or in parentheses what there is in place of one."""
        if self.state == "failed":
            return f"(failed: {self.error})"
        if self.state == "stopped":
            return f"{self.draft} (stopped)".strip()
        if self.title is None:
            return self.draft or f"({self.state})"
        return self.title.text or "(no title)"

    @property
    def facts(self) -> tuple[str, str, str]:
        """Seconds in all, seconds to the first token, tokens a second; a dash for what there is not."""
        completion = self.title.completion if self.title else None
        ttft_s = completion.timings.ttft_s if completion else None
        speed = completion.decode_tokens_per_s if completion else None
        return (
            seconds_text(self.seconds),
            seconds_text(ttft_s),
            "-" if speed is None else f"{speed:.0f}",
        )

    @property
    def why(self) -> str:
        """How the title came about, in numbered lines; empty while there is none."""
        return self.title.explain() if self.title is not None else ""


class Sessions:
    """Gives the session for a choice: the user's own, or one that is kept until another is chosen."""

    def __init__(self, own: TinySession | None) -> None:
        self._own = own
        self._made: tuple[Choice, TinySession] | None = None

    def loaded(
        self, choice: Choice, job: Job, progress: Callable[[ProgressEvent], object]
    ) -> tuple[TinySession, str]:
        """A session that is loaded, and what to know about it; empty if it is what was asked for.

        Raises:
            TinykitError: it cannot be loaded.
        """
        heard = job.listening(progress)
        try:
            session = self.get(choice)
            session.load(progress=heard)
            return session, ""
        except DeviceError as error:
            job.check()
            session = self.get(choice._replace(device="cpu"))
            session.load(progress=heard)
            return session, f"{error_text(error)} It runs on the CPU."

    def get(self, choice: Choice) -> TinySession:
        """The session, loaded or not."""
        if self._own is not None and choice == Choice(self._own.spec.key):
            return self._own
        if self._made is None or self._made[0] != choice:
            self.close()
            spec = self._own.spec if self._own is not None and self._own.spec.key == choice.model else None
            # a device that does not work is told here in words, not by a warning of another thread
            model, adapter = _parts(choice.model, spec)
            session = TinySession(
                model,
                adapter=adapter,
                device=choice.device,
                dtype=choice.dtype,
                fallback=None if choice.device in (None, "cpu") else False,
                lazy=True,
            )
            self._made = choice, session
        return self._made[1]

    def close(self) -> None:
        """Release the session that was made here."""
        made, self._made = self._made, None
        if made is not None:
            made[1].close()


def run_title(
    session: TinySession,
    message: str,
    recipe: Recipe,
    job: Job,
    show: Callable[[TitleRow], object],
) -> TitleRow:
    """One title; `show` gets each state of its row, the last one among them.

    Raises:
        TinykitError: whatever the session raises.
    """
    row = TitleRow(recipe.name, session.spec.key if recipe.method == "model" else "-", "running")
    show(row)

    def hear(chunk: Chunk) -> None:
        nonlocal row
        if job.is_stopped:  # it came too early for the generation to hear it
            session.cancel()
        row = replace(row, draft=row.draft + chunk.text)
        show(row)

    started = time.perf_counter()
    with job.stoppable(session.cancel):
        title = session.title_result(message, recipe=recipe, on_chunk=hear)
    seconds = time.perf_counter() - started
    is_cut = title.completion is not None and title.completion.finish_reason == "cancelled"
    row = replace(
        row,
        state="stopped" if is_cut else "done",
        title=title,
        draft=title.raw if is_cut else row.draft,
        seconds=seconds,
    )
    show(row)
    return row


def _parts(model: str, spec: ModelSpec | None) -> tuple[str, Path | None]:
    """Model and adapter as `TinySession` takes them; the user's session may have both from folders."""
    try:
        get_model(model)
    except UnknownModelError:
        if spec is None:
            raise
        base = spec.key.removesuffix(f"+{spec.adapter.name}") if spec.adapter else spec.key
        paths = [str(source.path) for source in spec.sources if isinstance(source, FileSource)]
        return (paths or [base])[0], spec.adapter
    return model, None

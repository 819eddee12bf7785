"""The latency view: how long a session takes to its first token, and how fast it writes, run by run."""

from __future__ import annotations

from functools import partial
from html import escape
from types import ModuleType
from typing import Any

from tinykit.errors import OptionError
from tinykit.generation.result import Chunk, Completion
from tinykit.inventory import text_table
from tinykit.latency import Measured, Spread, measured_answer
from tinykit.plurals import counted
from tinykit.session import TinySession
from tinykit.widgets.background import Background
from tinykit.widgets.job import Job
from tinykit.widgets.view import FAINT, button, line_of, table_html

_PROMPT = "Name three uses of a paper clip."
_HEADER = ("run", "prompt tokens", "first token", "tokens", "tokens/s", "total")


class LatencyView(Background):
    """A table and a small plot of runs: time to the first token, tokens a second, time in all.

    `add` takes completions of your own; the button measures a prompt, each run computing it anew, so that no
    run profits from the one before. `tinykit.latency.measure` measures the same, and loads and titles too.

    Args:
        session: What to measure.
        prompt: What to ask it.
        runs: How often.
        max_tokens: How much it may answer.
    """

    _purpose = "the latency view"
    _stopped_text = "Stopped; the runs that are done stay."

    def __init__(
        self, session: TinySession, *, prompt: str = _PROMPT, runs: int = 5, max_tokens: int = 32
    ) -> None:
        super().__init__()
        if not 1 <= runs <= 1000:
            raise OptionError(f"runs must be from 1 to 1,000, not {runs!r}.", name="runs", value=runs)
        self._session = session
        self._prompt = prompt
        self._count = runs
        self._max_tokens = max_tokens
        self._runs: list[Measured] = []

    @property
    def runs(self) -> tuple[Measured, ...]:
        """What was measured so far."""
        with self.lock:
            return tuple(self._runs)

    def add(self, completion: Completion) -> None:
        """Take the figures of a completion, made elsewhere."""
        self._take(Measured.of(completion))

    def _take(self, measured: Measured) -> None:
        with self.lock:
            self._runs.append(measured)
            self._draw()

    def start(self, runs: int | None = None) -> Job:
        """Measure in the background; what was running is stopped."""
        if runs is None:
            runs = self._count if self._box is None else self.count.value
        return self._begin("Running …", partial(self._measure, runs=runs))

    def clear(self) -> None:
        """Forget all runs."""
        with self.lock:
            self._runs.clear()
            self._draw()

    def text(self) -> str:
        """The table as text, and its medians."""
        runs = self.runs
        if not runs:
            return (
                f"Latency of {self._session.spec.key}: nothing was measured yet.\n"
                "Without widgets: view.start(), view.wait(), print(view)."
            )
        table = text_table(_HEADER, _cells(runs))
        return f"Latency of {self._session.spec.key}\n{table}\n{_summary(runs)}"

    def _measure(self, job: Job, runs: int) -> None:
        self._say(f"Loading {self._session.spec.key} …", job)
        self._session.load(progress=job.listening(self.progress))
        self.progress.clear()

        def hear(_: Chunk) -> None:
            if job.is_stopped:  # it came too early for the generation to hear it
                self._session.cancel()

        for number in range(runs):
            self._say(f"Run {number + 1} of {runs} …", job)
            with job.stoppable(self._session.cancel):
                measured = measured_answer(
                    self._session, self._prompt, max_tokens=self._max_tokens, on_chunk=hear
                )
            if measured is not None:
                self._take(measured)
            job.check()
        self._say(f"{counted(runs, 'run')} measured.", job)

    def _build(self, widgets: ModuleType) -> Any:
        self.count = widgets.BoundedIntText(
            value=self._count, min=1, max=1000, description="Runs", tooltip="How often to ask the prompt"
        )
        self.count.layout.width = "11em"
        self.run_button = button(
            widgets, "Measure", "Ask the prompt anew in each run", self._told(self.start), "primary"
        )
        self.stop_button = button(widgets, "Stop", "End what is running; runs that are done stay", self.stop)
        self.clear_button = button(widgets, "Clear", "Forget all runs", self.clear)
        self.table, self.plot = widgets.HTML(), widgets.HTML()
        buttons = (self.run_button, self.stop_button, self.clear_button)
        self._fill()
        return widgets.VBox(
            [
                line_of(widgets, self.count, *buttons, self._new_status_line(widgets)),
                self.progress.box,
                widgets.HBox([self.table, self.plot], layout=widgets.Layout(flex_flow="row wrap")),
            ]
        )

    def _draw(self) -> None:
        if self._box is not None:
            self._fill()

    def _fill(self) -> None:
        runs = self._runs
        caption = f"Latency of {self._session.spec.key}"
        self.table.value = (
            table_html(caption, _HEADER, _cells(runs), numbers=range(1, 6)) + _faint(_summary(runs))
            if runs
            else _faint("Nothing was measured yet.")
        )
        self.plot.value = plot_svg(runs) if runs else ""


def plot_svg(runs: list[Measured] | tuple[Measured, ...]) -> str:
    """Bars of the total time, the part until the first token filled, in the color of the text."""
    most_s = max(run.total_s for run in runs) or 1.0
    width, height, gap = 18, 120, 6
    bars = []
    for number, run in enumerate(runs):
        x = number * (width + gap)
        total, first = (height * value / most_s for value in (run.total_s, run.ttft_s or 0.0))
        for value, opacity in ((total, 0.25), (first, 0.8)):
            bars.append(
                f'<rect x="{x}" y="{height - value:.1f}" width="{width}" height="{value:.1f}" '
                f'fill="currentColor" fill-opacity="{opacity}"/>'
            )
    label = f"Seconds of {counted(len(runs), 'run')}, at most {most_s:.2f} s; strong: until the first token"
    wide = max(1, len(runs) * (width + gap) - gap)
    return (
        f'<figure style="margin: 8px 0"><svg role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {wide} {height}" width="{wide}" height="{height}" style="max-width: 100%">'
        f"{''.join(bars)}</svg><figcaption>{_faint(label)}</figcaption></figure>"
    )


def _faint(text: str) -> str:
    return f'<div style="line-height: 1.4; {FAINT}">{escape(text)}</div>'


def _cells(runs: list[Measured] | tuple[Measured, ...]) -> list[tuple[str, ...]]:
    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f} s"

    return [
        (
            str(number),
            str(run.prompt_tokens),
            seconds(run.ttft_s),
            str(run.tokens),
            "-" if run.tokens_per_s is None else f"{run.tokens_per_s:.1f}",
            seconds(run.total_s),
        )
        for number, run in enumerate(runs, start=1)
    ]


def _summary(runs: list[Measured] | tuple[Measured, ...]) -> str:
    ttfts = Spread(tuple(run.ttft_s for run in runs if run.ttft_s is not None))
    speeds = Spread(tuple(run.tokens_per_s for run in runs if run.tokens_per_s is not None))
    parts = [f"first token {ttfts.p50:.3f} s"] if ttfts.values else []
    parts += [f"{speeds.p50:.1f} tokens/s"] if speeds.values else []
    parts += [f"total {Spread(tuple(run.total_s for run in runs)).p50:.3f} s"]
    return f"Median of {len(runs)}: {', '.join(parts)}"

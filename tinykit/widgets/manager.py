"""The model manager: what is here, how large it is; download, check and remove it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from tinykit import inventory, residents
from tinykit.errors import OptionError
from tinykit.fetching import fetch_model
from tinykit.model_spec import ModelSpec
from tinykit.progress import Progress, size_text
from tinykit.registry import get_model
from tinykit.widgets.background import Background
from tinykit.widgets.job import Job
from tinykit.widgets.view import button, line_of, status_html, table_html

_HEADER = ("model", "here", "on disk", "download", "precision", "good for")
_NUMBERS = (2, 3)


class ModelManager(Background):
    """A table of models with buttons to download, check and remove them.

    Downloads run in the background and can be stopped; what has arrived is kept for the next try. Nothing is
    removed without a second click, and nothing that is not in tinykit's own store.
    """

    _purpose = "the model manager"
    _stopped_text = "Stopped. What has arrived is kept: the next download goes on from there."

    def __init__(self) -> None:
        super().__init__()
        self._rows = inventory.model_rows()
        self._doomed = ""

    def download(self, model: str) -> Job:
        """Fetch a model in the background: a key, a hub id or a path."""

        def work(job: Job) -> None:
            spec = get_model(model)
            inventory.drop_damaged(spec)
            progress = Progress(job.listening(self.progress))
            path = fetch_model(spec, progress=progress)
            self._say(f"{spec.key} is ready in {path}")

        return self._start(f"Downloading {model} …", work)

    def verify(self, model: str) -> Job:
        """Read a model's files in the background and compare them with their hashes."""

        def work(job: Job) -> None:
            checked = inventory.verify_model(inventory.find_model(model))
            self._say(f"{model} is intact" if checked else f"{model} is not on this machine")

        return self._start(f"Checking {model} …", work)

    def remove(self, model: str) -> Job:
        """Remove what tinykit has stored of a model; asks nothing."""

        def work(job: Job) -> None:
            spec = inventory.find_model(model)
            removal = inventory.remove_model(spec)
            text = f"{spec.key}: {size_text(removal.freed_bytes)} freed."
            if removal.kept:
                text += f" Left where they are: {', '.join(map(str, removal.kept))}."
            self._say(f"{text} {removal.hint or ''}")

        return self._start(f"Removing {model} …", work)

    def refresh(self) -> None:
        """Look again at what is here."""
        rows = inventory.model_rows()
        with self.lock:
            self._rows = rows
            if self._box is not None:
                self.table.value = self._table_html()
                picked = self.picker.value
                self.picker.options = _options(rows)
                self.picker.value = picked if picked in {row["key"] for row in rows} else rows[0]["key"]

    def text(self) -> str:
        """The table as text."""
        table = inventory.text_table(_HEADER, [_cells(row) for row in self._rows])
        more = "Without widgets: manager.download(model), verify(model), remove(model), wait(), status."
        return "\n".join(line for line in (self._status, table, more) if line)

    def _start(self, status: str, work: Callable[[Job], None]) -> Job:
        with self.lock:
            if self._job is not None and self._job.is_running:
                raise OptionError(
                    "Something is running already.",
                    hint="Stop it, or wait for its end.",
                    name="model",
                    value=self._status,
                )
            return self._begin(status, work)

    def _end(self, job: Job) -> None:
        super()._end(job)
        self.refresh()

    # the widgets

    def _build(self, widgets: ModuleType) -> Any:
        self.picker = widgets.Dropdown(
            options=_options(self._rows), description="Model", tooltip="The model that the buttons are about"
        )
        self.other = widgets.Text(
            description="or another",
            placeholder="owner/name on the hub, or a path",
            continuous_update=False,
            tooltip="A hub id such as owner/name, a .gguf file or a folder; empty for the one in the list",
        )
        buttons = self._new_buttons(widgets)
        self.question = widgets.HTML()
        self.yes_button = button(widgets, "Remove it", "Remove the model now", self._told(self._confirm))
        self.no_button = button(widgets, "Keep it", "Remove nothing", self._keep)
        self.confirmation = line_of(widgets, self.question, self.yes_button, self.no_button)
        self.confirmation.layout.display = "none"
        self.table = widgets.HTML(self._table_html(), layout=widgets.Layout(overflow="auto"))
        return widgets.VBox(
            [
                line_of(widgets, self.picker, self.other),
                line_of(widgets, *buttons),
                self.confirmation,
                self._new_status_line(widgets),
                self.progress.box,
                self.table,
            ]
        )

    def _new_buttons(self, widgets: ModuleType) -> tuple[Any, ...]:
        def act(method: Callable[[str], Job]) -> Callable[[], None]:
            return self._told(lambda: method(self._picked()))

        self.download_button = button(
            widgets, "Download", "Fetch the model, and import it", act(self.download), "primary"
        )
        self.verify_button = button(
            widgets, "Verify", "Compare the files with their hashes", act(self.verify)
        )
        self.remove_button = button(widgets, "Remove …", "Asks before it removes", self._told(self._ask))
        self.stop_button = button(widgets, "Stop", "End the download; what has arrived is kept", self.stop)
        return self.download_button, self.verify_button, self.remove_button, self.stop_button

    def _table_html(self) -> str:
        return table_html(
            "Models that tinykit knows or has here", _HEADER, [_cells(row) for row in self._rows],
            numbers=_NUMBERS,
        )  # fmt: skip

    def _picked(self) -> str:
        return str(self.other.value.strip() or self.picker.value)

    def _ask(self) -> None:
        spec = inventory.find_model(self._picked())
        self._doomed = spec.key
        self.question.value = status_html(_question(spec))
        self.confirmation.layout.display = ""
        self.no_button.focus()

    def _confirm(self) -> None:
        self._hide_question()
        self.remove(self._doomed)

    def _keep(self) -> None:
        self._hide_question()
        self._say(f"{self._doomed} stays.")

    def _hide_question(self) -> None:
        self.confirmation.layout.display = "none"
        self.remove_button.focus()  # what had the focus is gone


def _question(spec: ModelSpec) -> str:
    size_bytes = inventory.model_row(spec)["disk_bytes"]
    text = f"Remove {spec.key}, {size_text(size_bytes)} on disk?"
    if any(one.model == spec.key for one in residents.loaded()):
        text += " It is loaded in this kernel, and stays so until its session is closed."
    return text


def _options(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    def state(row: dict[str, Any]) -> str:
        return "not here" if row["here"] == "no" else str(row["here"])

    return [(f"{row['key']} ({state(row)})", row["key"]) for row in rows]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    def size(name: str, unknown: str) -> str:
        return size_text(row[name]) if row[name] else unknown

    return (
        row["key"],
        row["here"],
        size("disk_bytes", "-"),
        size("download_bytes", "?" if row["from"] else "-"),
        row["dtype"] or "auto",
        row["good_for"],
    )

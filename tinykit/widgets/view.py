"""What all widgets have in common: a text for where none can be drawn, and care with what is shown."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from html import escape
from time import monotonic
from types import ModuleType
from typing import Any

from tinykit.displays import is_stable
from tinykit.errors import TinykitError
from tinykit.optional import require

UPDATE_INTERVAL_S = 0.1
FAINT = "color: var(--jp-ui-font-color2, inherit)"
LINE = "1px solid var(--jp-border-color1, currentColor)"
_CELL = f"padding: 2px 12px 2px 0; text-align: left; vertical-align: top; border-bottom: {LINE}"

_log = logging.getLogger("tinykit")


class View:
    """Something that ipywidgets draws where it can run, and that is text elsewhere.

    Its widgets are made when they are first asked for. They may be written to from any thread, under `lock`.
    """

    _purpose = "widgets"

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._box: Any = None

    @property
    def box(self) -> Any:
        """The widget that holds all others.

        Raises:
            MissingPackageError: ipywidgets is not installed.
        """
        with self.lock:
            if self._box is None:
                self._box = self._build(require("ipywidgets", extra="notebook", purpose=self._purpose))
            return self._box

    def text(self) -> str:
        """The same facts as plain text."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop what is running and take the widgets out of the notebook."""
        with self.lock:
            if self._box is not None:
                close_all(self._box)

    def _build(self, widgets: ModuleType) -> Any:
        raise NotImplementedError

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle = {"text/plain": self.text()}
        # a widget has another id in each run, and none once the kernel has gone
        if is_notebook() and not is_stable():
            try:
                bundle = {**self.box._repr_mimebundle_(), **bundle}
            except Exception as error:
                _log.info("%s is shown as text: %r", type(self).__name__, error)
                bundle["text/plain"] += f"\n{error_text(error)}"
        return bundle

    def __str__(self) -> str:
        return self.text()


class Pace:
    """Draws something that changes often at most ten times a second, and what was last in any case.

    Args:
        draw: Shows how things stand.
        lock: Is held while it does; who calls `soon`, `now` or `drop` holds it too.
    """

    def __init__(self, draw: Callable[[], object], lock: threading.RLock) -> None:
        self._draw = draw
        self._lock = lock
        self._next_s = 0.0
        self._timer: threading.Timer | None = None

    def soon(self) -> None:
        """Draw now, or as soon as it is time again."""
        if self._timer is not None:
            return
        wait_s = self._next_s - monotonic()
        if wait_s <= 0:
            self.now()
        else:
            self._timer = threading.Timer(wait_s, self._late)
            self._timer.daemon = True
            self._timer.start()

    def now(self) -> None:
        """Draw without delay."""
        self.drop()
        self._next_s = monotonic() + UPDATE_INTERVAL_S
        self._draw()

    def drop(self) -> None:
        """Forget what was to be drawn."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        with self._lock:
            if self._timer is not None:  # else it was drawn meanwhile
                self.now()


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook, or of something like it."""
    # looked up, not imported: whoever runs in a kernel has IPython loaded
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def error_text(error: BaseException) -> str:
    """An error for people: what happened, and what to do."""
    if isinstance(error, TinykitError):
        return f"{error.message} {error.hint}" if error.hint else error.message
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def seconds_text(seconds: float | None) -> str:
    """Seconds to two or three digits that count; a dash for none."""
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds:.3f} s"


def status_html(text: str) -> str:
    """One line that a screen reader says when it changes."""
    return f'<div role="status" aria-live="polite" style="line-height: 1.4">{escape(text)}</div>'


def table_html(
    caption: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Collection[int] = (),
) -> str:
    """A table with caption and header scopes; `numbers` are the columns that are aligned to the right."""

    def cell(tag: str, column: int, text: str, scope: str = "") -> str:
        align = "; text-align: right" if column in numbers else ""
        kind = f' scope="{scope}"' if scope else ""
        return f'<{tag}{kind} style="{_CELL}{align}">{escape(text)}</{tag}>'

    head = "".join(cell("th", column, name, "col") for column, name in enumerate(header))
    body = "".join(
        "<tr>"
        + "".join(
            cell("td" if column else "th", column, text, "" if column else "row")
            for column, text in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return (
        '<table style="border-collapse: collapse; line-height: 1.4">'
        f'<caption style="text-align: left; padding-bottom: 4px; {FAINT}">{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def button(
    widgets: ModuleType, text: str, tooltip: str, on_click: Callable[[], object], style: str = ""
) -> Any:
    """A button; it is never switched off, because a button that is loses the keyboard's place."""
    made = widgets.Button(description=text, tooltip=tooltip, button_style=style)
    made.layout.width = "auto"
    made.on_click(lambda _: on_click())
    return made


def line_of(widgets: ModuleType, *children: Any) -> Any:
    """Widgets in a row that breaks where the window is narrow."""
    layout = widgets.Layout(flex_flow="row wrap", align_items="center", width="100%")
    return widgets.HBox(children, layout=layout)


def close_all(widget: Any) -> None:
    """Close a widget with all that is in it; what stays open is saved with the notebook."""
    for child in getattr(widget, "children", ()):
        close_all(child)
    for part in (getattr(widget, "style", None), getattr(widget, "layout", None), widget):
        if part is not None:
            part.close()

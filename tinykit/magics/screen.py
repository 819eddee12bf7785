"""How results of magics reach the page: through IPython's own display of a cell's value.

So an assigned result is not shown, and a shown one is in `Out`. What a magic has to add (times on request,
the model's name as metadata) is remembered for that one object; what it has shown already is not shown twice.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from tinykit.errors import TinykitError
from tinykit.markup import Bundle

_COMMAND = re.compile(r"\btinykit (models|doctor|worker)$")  # what a hint ends with, for a shell

P = ParamSpec("P")
T = TypeVar("T")


class Screen:
    """Knows how the results of the cell that runs are to be shown."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._views: dict[int, tuple[object, Callable[[], Bundle]]] = {}
        self._shown: list[object] = []
        self._kinds: list[type] = []
        shell.events.register("pre_run_cell", self._begin)

    def watch(self, *kinds: type) -> None:
        """Be asked how to show objects of these kinds."""
        formatter = self._shell.display_formatter
        for kind in kinds:
            if kind not in self._kinds:
                self._kinds.append(kind)
                formatter.mimebundle_formatter.for_type(kind, self._view)
                formatter.ipython_display_formatter.for_type(kind, self._skip)

    def close(self) -> None:
        """Leave the shell's formatters."""
        formatter = self._shell.display_formatter
        for kind in self._kinds:
            formatter.mimebundle_formatter.pop(kind, None)
            formatter.ipython_display_formatter.pop(kind, None)
        self._shell.events.unregister("pre_run_cell", self._begin)

    @property
    def is_notebook(self) -> bool:
        """Whether a display can be updated; in a terminal each update would be one more line."""
        return getattr(self._shell, "kernel", None) is not None

    def prepared(self, result: T, view: Callable[[], Bundle]) -> T:
        """A result that will be shown this way, if it is shown in this cell."""
        self.watch(type(result))
        self._views[id(result)] = (result, view)
        return result

    def shown(self, result: T) -> T:
        """A result that is on the page already."""
        self.watch(type(result))
        self._shown.append(result)
        return result

    def show(self, view: Bundle) -> None:
        """Show something now."""
        from IPython.display import display

        display(view[0], raw=True, metadata=view[1])

    def _begin(self, info: object = None) -> None:
        self._views.clear()
        self._shown.clear()

    def _view(self, result: Any) -> Bundle:
        known = self._views.get(id(result))
        found: Bundle = result._repr_mimebundle_() if known is None else known[1]()
        return found

    def _skip(self, result: object) -> None:
        if not any(result is one for one in self._shown):
            raise NotImplementedError  # IPython goes on with the other displays
        self._shown.clear()


def brief(function: Callable[P, T]) -> Callable[P, T]:
    """A function whose errors IPython shows as a sentence and its hint, without the traceback.

    They are raised all the same, so that the cell fails: Run All stops, and nbval and papermill notice.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TinykitError as error:
            hint = _COMMAND.sub(r"%tiny \1", error.hint or "")
            lines = [f"{type(error).__name__}: {error}", *([hint] if hint else [])]
            _shorten(error, lines)
            raise
        except KeyboardInterrupt as error:
            _shorten(error, ["Interrupted."])
            raise

    return wrapped


def _shorten(error: BaseException, lines: list[str]) -> None:
    """Let IPython, which asks the error for its traceback, get these lines."""
    error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]

"""What `%title` and `%tiny` do with their text: one message, a chat or many, shown as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tinykit.errors import OptionError
from tinykit.magics.live import LiveText
from tinykit.magics.options import MagicOptions
from tinykit.magics.screen import Screen
from tinykit.markup import Bundle, Table

if TYPE_CHECKING:
    from tinykit.events import ProgressEvent
    from tinykit.generation.result import Completion
    from tinykit.session import TinySession
    from tinykit.titling import Title

T = TypeVar("T")


class Batch(Sequence[Any]):
    """Results for many messages, in their order, shown as a table.

    Attributes:
        messages: What was asked, one for each result.
    """

    def __init__(self, results: Iterable[Any], messages: Iterable[Any], table: Callable[..., Table]) -> None:
        self._results = list(results)
        self.messages = list(messages)
        self._table = table

    def __getitem__(self, at: Any) -> Any:
        return self._results[at]

    def __len__(self) -> int:
        return len(self._results)

    @property
    def texts(self) -> list[str | None]:
        """The titles or answers alone."""
        return [one.text for one in self]

    def table(self) -> Table:
        """Messages and results side by side."""
        return self._table(self.messages, self)

    def __repr__(self) -> str:
        return repr(self._results)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        return self.table()._repr_mimebundle_()


def many(value: object) -> list[Any] | None:
    """The items of a list, a column or an array of messages; None for a single message or chat.

    Raises:
        OptionError: a table, or something else that holds no messages.
    """
    if isinstance(value, str):
        return None
    if getattr(value, "ndim", 1) != 1:
        raise OptionError(
            f"This is a table ({type(value).__name__}), not a column of messages.",
            hint="Name a column, as in {{table.text}}. To compare recipes on many messages: tinykit.lab",
            name="message",
            value=value,
        )
    if isinstance(value, list | tuple) or (hasattr(value, "ndim") and isinstance(value, Iterable)):
        items = list(value)
        return None if items and all(map(_is_turn, items)) else items
    if isinstance(getattr(value, "text", None), str):  # a title or a completion
        return None
    raise OptionError(
        f"The message must be text, a chat or a list of them, not {type(value).__name__} ({value!r:.60}).",
        name="message",
        value=value,
    )


def _is_turn(item: object) -> bool:
    return isinstance(item, Mapping) and "role" in item


@dataclass
class Page:
    """Where the results of one magic go: one display, the cell's value, and the name of -o.

    Attributes:
        screen: How the shell shows the cell's value.
        keep: Assigns a result.
        is_silent: Show nothing.
        is_telling: Show how far a batch is.
    """

    screen: Screen
    keep: Callable[[Any], None]
    is_silent: bool
    is_telling: bool = True

    def __post_init__(self) -> None:
        self.live = LiveText(is_silent=self.is_silent or not self.screen.is_notebook)

    @property
    def progress(self) -> Callable[[ProgressEvent], None] | bool | None:
        """What hears how far a batch is: the display that its table will be in; a terminal has its own."""
        if self.is_silent or not self.is_telling:
            return False
        if not self.screen.is_notebook:
            return None
        return lambda event: self.live.update(event.message or "")

    def finished(self, result: T, view: Callable[[], Bundle]) -> T:
        """The cell's value: shown in the display, or by the shell if it cannot update one."""
        self.live.finish(view())
        if self.screen.is_notebook and not self.is_silent:
            return self.screen.shown(result)
        return self.screen.prepared(result, view)

    def stopped(self, result: Any, view: Callable[[], Bundle]) -> None:
        """Show and keep what there is before an interrupt ends the cell."""
        self.keep(result)
        self.live.finish(view())
        if not self.screen.is_notebook:
            self.screen.show(view())


def title(session: TinySession, value: Any, options: MagicOptions, page: Page) -> Title | Batch:
    """Titles for one message, a chat or many.

    Raises:
        KeyboardInterrupt: Ctrl-C; what there is by then was shown and kept.
    """
    from tinykit.many import failed_title
    from tinykit.recipes import get_recipe
    from tinykit.views import title_view, titles_table

    items = many(value)
    if items is not None:
        recipe = session.recipe if options.recipe is None else get_recipe(options.recipe)
        table = partial(titles_table, why=options.why, stats=options.stats)
        ask = partial(session.title_results, items, recipe=recipe, timeout_s=options.timeout_s)
        return _batch(ask, items, table, partial(failed_title, recipe=recipe), page)
    message = value if isinstance(value, list | tuple) else str(value)
    view = partial(title_view, why=options.why, stats=options.stats, model=session.spec.key)
    try:
        found = session.title_result(message, recipe=options.recipe, timeout_s=options.timeout_s)
    except KeyboardInterrupt as error:
        if (stopped := getattr(error, "partial", None)) is not None:
            page.stopped(stopped, partial(view, stopped))
        raise
    return page.screen.prepared(found, partial(view, found))


def _batch(
    ask: Callable[..., list[Any]],
    items: list[Any],
    table: Callable[..., Table],
    failed: Callable[[None], Any],
    page: Page,
) -> Batch:
    try:
        batch = Batch(ask(progress=page.progress), items, table)
    except KeyboardInterrupt as error:
        found = getattr(error, "partial", None) or [None] * len(items)
        batch = Batch([failed(None) if one is None else one for one in found], items, table)
        page.stopped(batch, batch._repr_mimebundle_)
        raise
    return page.finished(batch, batch._repr_mimebundle_)


_CALL = ("system", "max_tokens", "temperature", "seed", "timeout_s", "schema")


def answer(session: TinySession, value: Any, options: MagicOptions, page: Page) -> Completion | Batch:
    """The answer to a prompt or a chat, streamed; the answers to many, as a table.

    Raises:
        KeyboardInterrupt: Ctrl-C; what there is by then was shown and kept.
    """
    from tinykit.many import failed_completion
    from tinykit.views import completion_view, completions_table

    items = many(value)
    call = options.given(*_CALL)
    if items is not None:
        table = partial(completions_table, stats=options.stats)
        return _batch(partial(session.complete_many, items, **call), items, table, failed_completion, page)
    prompt = value if isinstance(value, list | tuple) else str(value)
    model = session.spec.chat_model or session.spec.key
    view = partial(completion_view, stats=options.stats, model=model)
    with session.stream(prompt, slot=options.chat, **call) as stream:
        text = ""
        try:
            for piece in stream:
                text += piece
                page.live.update(text)
        except KeyboardInterrupt:
            stream.close()
            completion = replace(stream.result, cancelled_by="interrupt")
            page.stopped(completion, partial(view, completion))
            raise
    completion = stream.result
    return page.finished(completion, partial(view, completion))

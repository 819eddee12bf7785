"""How the title playground looks: its form, and one card for each recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from html import escape
from types import ModuleType
from typing import Any

from tinykit.inventory import model_rows
from tinykit.widgets.choices import device_options, dtype_options, model_options
from tinykit.widgets.title_runs import Choice, TitleRow
from tinykit.widgets.view import FAINT, LINE, button, close_all, line_of

NO_BREAK = "\u00a0"


class TitleForm:
    """The widgets of the playground; they can be read, set and clicked from Python too.

    Args:
        widgets: The module ipywidgets.
        message: What stands in the message box.
        model: The model that is picked at first.
        is_own: Whether that is the one of the user's session.
        recipes: By name, what a recipe is and whether it is ticked.
        status: The widget that says what is being done.
        progress: The widget that shows downloads and loads.
        run: What the button calls that makes titles.
        stop: What the button calls that ends a run.
    """

    def __init__(
        self,
        widgets: ModuleType,
        *,
        message: str,
        model: str,
        is_own: bool,
        recipes: Mapping[str, tuple[str, bool]],
        status: Any,
        progress: Any,
        run: Callable[[], object],
        stop: Callable[[], object],
    ) -> None:
        self._widgets = widgets
        self._cards: dict[str, Any] = {}
        self.message = widgets.Textarea(
            message,
            description="Message",
            tooltip="The first message of a chat, to be titled",
            continuous_update=False,
            layout=widgets.Layout(width="auto", height="6em"),
        )
        self.model = widgets.Dropdown(
            options=model_options(model_rows(), model, is_own=is_own),
            value=model,
            description="Model",
            tooltip="The model that is asked; it is loaded at the first run",
            layout=widgets.Layout(width="28em"),
        )
        self.device = widgets.Dropdown(
            options=device_options(),
            description="Device",
            tooltip="Where to compute",
            layout=widgets.Layout(width="17.5em"),
        )
        self.dtype = widgets.Dropdown(
            options=dtype_options(model),
            description="Precision",
            tooltip="Precision of the weights",
            layout=widgets.Layout(width="17.5em"),
        )
        self.model.observe(self._follow_model, names="value")
        self.ticks = {
            name: widgets.Checkbox(
                is_ticked,
                description=name,
                indent=False,
                tooltip=text,
                layout=widgets.Layout(width="auto", margin="2px 16px 2px 2px"),
            )
            for name, (text, is_ticked) in recipes.items()
        }
        self.run_button = button(widgets, "Make titles", "Title the message by each recipe", run, "primary")
        self.stop_button = button(widgets, "Stop", "End what is running; titles that are done stay", stop)
        self.status = status
        self.cards = widgets.HBox(layout=widgets.Layout(flex_flow="row wrap", width="100%"))
        recipes_label = widgets.HTML(
            '<div style="text-align: right; padding-right: 8px">Recipes</div>',
            layout=widgets.Layout(width="90px"),
        )
        self.box = widgets.VBox(
            [
                self.message,
                line_of(widgets, self.model, self.device, self.dtype),
                line_of(widgets, recipes_label, *self.ticks.values()),
                line_of(widgets, self.run_button, self.stop_button, status),
                progress,
                self.cards,
            ]
        )

    @property
    def ticked(self) -> list[str]:
        """Names of the recipes that are ticked."""
        return [name for name, tick in self.ticks.items() if tick.value]

    @property
    def choice(self) -> Choice:
        """What the pickers say."""
        return Choice(self.model.value, self.device.value or None, self.dtype.value or None)

    @property
    def card_texts(self) -> dict[str, str]:
        """The cards' HTML by recipe, as it is shown just now."""
        return {name: card.value for name, card in self._cards.items()}

    def show_rows(self, rows: Iterable[TitleRow]) -> None:
        """Show one card for each row, and no other."""
        old = self.cards.children
        self._cards = {row.recipe: self._widgets.HTML(card_html(row), layout=self._card()) for row in rows}
        self.cards.children = tuple(self._cards.values())
        for card in old:
            close_all(card)

    def show_row(self, row: TitleRow) -> None:
        """Show how a row stands."""
        self._cards[row.recipe].value = card_html(row)

    def _card(self) -> Any:
        return self._widgets.Layout(
            flex="1 1 15em", min_width="12em", border=LINE, padding="4px 10px", margin="2px"
        )

    def _follow_model(self, change: Any) -> None:
        self.dtype.options = dtype_options(change["new"])


def card_html(row: TitleRow) -> str:
    """One recipe's card: the title as it grows, then its timings and where it came from."""
    seconds, ttft, speed = row.facts
    facts = []
    if row.title is not None:
        facts = ["no model" if row.model == "-" else row.model, seconds]
    elif row.draft:
        facts = [row.state]
    if ttft != "-":
        facts += [f"first token {ttft}", f"{speed} tokens/s"]
    spaced = escape(" · ".join(fact.replace(" ", NO_BREAK) for fact in facts))
    why = (
        "<details><summary>Why</summary>"
        f'<div style="white-space: pre-wrap; overflow-wrap: anywhere">{escape(row.why)}</div></details>'
    )
    return (
        f'<div role="group" aria-label="Recipe {escape(row.recipe)}" style="line-height: 1.4">'
        f'<div style="{FAINT}">{escape(row.recipe)}</div>'
        f'<div style="font-weight: 600; overflow-wrap: anywhere">{escape(row.shown)}</div>'
        f'<div style="{FAINT}">{spaced}</div>{why if row.why else ""}</div>'
    )

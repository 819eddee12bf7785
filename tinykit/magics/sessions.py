"""The sessions that magics share, and what they use when nothing is named.

They live in this module, which `%reload_ext` leaves alone, so that a model stays loaded when the extension
is loaded again or a cell is run twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinykit.magics.options import MagicOptions

if TYPE_CHECKING:
    from tinykit.session import TinySession

Key = tuple[str | None, str | None, str | None]


@dataclass(frozen=True)
class Defaults:
    """What is used where an option is left out; None leaves it to the settings."""

    model: str | Path | None = None
    device: str | None = None
    dtype: str | None = None
    recipe: Any = None


class Pool:
    """One session for each model, device and precision, made when it is first asked for."""

    def __init__(self) -> None:
        self.defaults = Defaults()
        self._sessions: dict[Key, TinySession] = {}

    def with_defaults(self, options: MagicOptions) -> MagicOptions:
        """The options, and for those left out the defaults; another model than theirs has its own."""
        defaults = self.defaults
        if options.model not in (None, defaults.model):
            defaults = Defaults(recipe=defaults.recipe)
        return replace(
            options,
            model=options.model if options.model is not None else defaults.model,
            device=options.device or defaults.device,
            dtype=options.dtype or defaults.dtype,
            recipe=options.recipe if options.recipe is not None else defaults.recipe,
        )

    def get(self, options: MagicOptions) -> TinySession:
        """The session for these options; nothing is loaded before it is needed.

        Raises:
            TinykitError: the model, device or precision does not exist.
        """
        chosen = self.with_defaults(options)
        key = (None if chosen.model is None else str(chosen.model), chosen.device, chosen.dtype)
        if key not in self._sessions:
            from tinykit.session import TinySession

            self._sessions[key] = TinySession(
                chosen.model, device=chosen.device, dtype=chosen.dtype, lazy=True
            )
        return self._sessions[key]

    def use(self, options: MagicOptions) -> TinySession:
        """Make these options the defaults, once it is sure that they exist.

        Raises:
            TinykitError: as `get`, and for an unknown recipe.
        """
        if options.recipe is not None:
            from tinykit.recipes import get_recipe

            get_recipe(options.recipe)
        session = self.get(options)
        chosen = self.with_defaults(options)
        self.defaults = Defaults(chosen.model, chosen.device, chosen.dtype, chosen.recipe)
        return session

    def sessions(self) -> list[TinySession]:
        """All sessions so far, oldest first."""
        return list(self._sessions.values())

    def unload(self, model: str | None = None) -> list[str]:
        """Release the models of all sessions, or of those with this model; their names."""
        released = []
        for session in self.sessions():
            names = {session.spec.key, session.spec.chat_model}
            if (model is None or model in names) and session.is_loaded:
                session.unload()
                released.append(session.spec.key)
        return released


POOL = Pool()

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

Key = tuple[str | None, str | None, str | None, bool]


@dataclass(frozen=True)
class Defaults:
    """What is used where an option is left out; None leaves it to the settings."""

    model: str | Path | None = None
    device: str | None = None
    dtype: str | None = None
    recipe: Any = None
    max_tokens: int | None = None
    stats: bool = False
    progress: bool = True


class Pool:
    """One session for each model, device and precision, made when it is first asked for."""

    def __init__(self) -> None:
        self.defaults = Defaults()
        self.is_configured = False  # whether IPython's config was asked
        self._sessions: dict[Key, TinySession] = {}

    def with_defaults(self, options: MagicOptions) -> MagicOptions:
        """The options, and for those left out the defaults; another model than theirs has its own."""
        defaults = self.defaults
        if options.model not in (None, defaults.model):
            defaults = replace(defaults, model=None, device=None, dtype=None)
        return replace(
            options,
            model=options.model if options.model is not None else defaults.model,
            device=options.device or defaults.device,
            dtype=options.dtype or defaults.dtype,
            recipe=options.recipe if options.recipe is not None else defaults.recipe,
            max_tokens=options.max_tokens if options.max_tokens is not None else defaults.max_tokens,
            stats=options.stats or defaults.stats,
        )

    def get(self, options: MagicOptions) -> TinySession:
        """The session for these options; nothing is loaded before it is needed.

        Raises:
            TinykitError: the model, device or precision does not exist.
        """
        chosen = self.with_defaults(options)
        model, is_telling = None if chosen.model is None else str(chosen.model), self.defaults.progress
        key = (model, chosen.device, chosen.dtype, is_telling)
        if key not in self._sessions:
            from tinykit.session import TinySession

            self._sessions[key] = TinySession(
                chosen.model,
                device=chosen.device,
                dtype=chosen.dtype,
                progress=None if is_telling else False,
                lazy=True,
            )
        return self._sessions[key]

    def use(self, options: MagicOptions) -> None:
        """Make these options the defaults, once it is sure that they exist.

        Raises:
            TinykitError: as `check`.
        """
        chosen = self.with_defaults(options)
        defaults = replace(
            self.defaults,
            model=chosen.model,
            device=chosen.device,
            dtype=chosen.dtype,
            recipe=chosen.recipe,
        )
        self.check(defaults)
        self.defaults = defaults

    def check(self, defaults: Defaults) -> None:
        """Whether these can be used; nothing is loaded for that.

        Raises:
            TinykitError: a model, device, precision or recipe that does not exist, or a number out of range.
        """
        from tinykit.recipes import get_recipe
        from tinykit.session import TinySession

        if defaults.recipe is not None:
            get_recipe(defaults.recipe)
        TinySession(defaults.model, device=defaults.device, dtype=defaults.dtype, lazy=True)
        if defaults.max_tokens is not None:
            from tinykit.call_options import generation_options

            generation_options({"max_tokens": defaults.max_tokens})

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
        return list(dict.fromkeys(released))  # two sessions may have asked for one model in two ways


POOL = Pool()

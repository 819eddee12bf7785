"""What magics use when nothing is named: `%config TinyMagics`, `c.TinyMagics` in IPython's config file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from traitlets import Any as AnyTrait
from traitlets import Bool, TraitError, observe, validate
from traitlets.config import Configurable

from tinykit.errors import TinykitError
from tinykit.magics.sessions import Defaults, Pool

_NAMES = ("model", "device", "dtype", "recipe", "max_tokens", "stats", "progress")


class TinyMagics(Configurable):
    """What %title, %tiny and %%tiny_eval use when nothing is named; `%tiny use` sets the first four too."""

    model = AnyTrait(None, help="A key of '%tiny models', a hub id, a file or a folder.").tag(config=True)
    device = AnyTrait(None, help="Where to compute.").tag(config=True)
    dtype = AnyTrait(None, help="Precision of the weights.").tag(config=True)
    recipe = AnyTrait(None, help="How to make titles.").tag(config=True)
    max_tokens = AnyTrait(None, help="New tokens of an answer at most.").tag(config=True)
    stats = Bool(False, help="Show tokens and seconds, as with --stats.").tag(config=True)
    progress = Bool(True, help="Show how far loads and batches are.").tag(config=True)

    def __init__(self, shell: Any, pool: Pool) -> None:
        self._pool = pool
        self._is_following = False
        # what was set by hand since outlives a %reload_ext
        super().__init__(**({} if pool.is_configured else {"parent": shell}))
        pool.is_configured = True
        self.follow()

    def follow(self) -> None:
        """Show what the pool has as its defaults by now."""
        with self._following():
            for name in _NAMES:
                setattr(self, name, getattr(self._pool.defaults, name))

    @contextmanager
    def _following(self) -> Iterator[None]:
        self._is_following = True
        try:
            yield
        finally:
            self._is_following = False

    @validate("model", "device", "dtype", "recipe", "max_tokens")
    def _checked(self, proposal: Any) -> Any:
        value = proposal["value"]
        if isinstance(value, str) and not value.strip():
            value = None  # as if it had never been set
        if value is None or self._is_following:
            return value
        chosen = {name: getattr(self, name) for name in _NAMES} | {proposal["trait"].name: value}
        try:
            self._pool.check(Defaults(**chosen))
        except TinykitError as error:
            raise TraitError(f"{error} {error.hint or ''}".strip()) from error
        return value

    @observe(*_NAMES)
    def _tell(self, change: Any) -> None:
        if not self._is_following:
            self._pool.defaults = replace(self._pool.defaults, **{change["name"]: change["new"]})

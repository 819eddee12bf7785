"""`%title`, `%tiny` and `%%tiny_eval`, loaded by `%load_ext tinykit`.

Nothing is shown and no model is loaded by that; what is expensive is imported by the first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinykit.magics.shell import TinyMagics

_loaded: dict[int, TinyMagics] = {}  # by shell


def load(shell: Any) -> None:
    """Give a shell the magics; again if it has them."""
    from tinykit.magics.shell import TinyMagics

    unload(shell)
    _loaded[id(shell)] = TinyMagics(shell)


def unload(shell: Any) -> None:
    """Take the magics away. Models stay loaded; `%tiny unload` releases them."""
    magics = _loaded.pop(id(shell), None)
    if magics is not None:
        magics.close()

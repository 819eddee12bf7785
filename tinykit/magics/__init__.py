"""`%title`, `%tiny` and `%%tiny_eval`, loaded by `%load_ext tinykit`.

Nothing is shown and no model is loaded by that; what is expensive is imported by the first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinykit.magics.shell import Installed

_loaded: dict[int, Installed] = {}  # by shell


def load(shell: Any) -> None:
    """Give a shell the magics; again if it has them."""
    from tinykit.magics.shell import Installed

    unload(shell)
    _loaded[id(shell)] = Installed(shell)


def unload(shell: Any) -> None:
    """Take the magics away. Models stay loaded; `%tiny unload` releases them."""
    magics = _loaded.pop(id(shell), None)
    if magics is not None:
        magics.close()


def enable() -> None:
    """Give the running shell the magics, unless it has them.

    Raises:
        MissingPackageError: IPython is not installed.
        OptionError: this is no IPython session.
    """
    from tinykit.errors import OptionError
    from tinykit.optional import require

    shell = require("IPython", extra="notebook", purpose="magics").get_ipython()
    if shell is None:
        raise OptionError(
            "Magics need a notebook or IPython, and this is neither.",
            hint="In a script: from tinykit import TinySession",
            name="shell",
            value=None,
        )
    if id(shell) not in _loaded:
        shell.extension_manager.load_extension("tinykit")
        if id(shell) not in _loaded:  # IPython has it as loaded, for a module that was imported anew since
            load(shell)

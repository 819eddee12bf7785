"""Names of variants and metrics that there are not."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from tinykit.errors import OptionError


def unknown(kind: str, name: object, known: Sequence[str], said: str = "No") -> OptionError:
    """The error for a name of something that there is not, with all names, the nearest first."""
    nearest = difflib.get_close_matches(str(name), known, n=3)
    others = [one for one in known if one not in nearest]
    hint = f"Did you mean {' or '.join(map(repr, nearest))}? " if nearest else ""
    names = ", ".join([*nearest, *others]) or "none"
    return OptionError(
        f"{said} {kind} {name!r}.", hint=f"{hint}There are: {names}.", name=kind, value=name, nearest=nearest
    )

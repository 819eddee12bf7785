"""``python -m tinykit`` is the command ``tinykit``.

Nothing is imported before `main` can hear of Ctrl-C.
"""

from __future__ import annotations

import sys


def main() -> None:
    """What the command does as a process, to its end."""
    try:
        from tinykit.cli import run_and_end

        run_and_end()
    except KeyboardInterrupt:  # before there was anything else to catch it
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)


if __name__ == "__main__":
    main()

"""``python -m tinykit`` is the command ``tinykit``."""

from tinykit.cli import main

if __name__ == "__main__":
    main()

"""``python -m tinykit`` is the command ``tinykit``."""

from tinykit.cli import run_and_end

if __name__ == "__main__":
    run_and_end()

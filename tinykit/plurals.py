"""Numbers with their nouns, as they are said: 1 case, 2 cases."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun; the plural ends in -s unless it is given."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"

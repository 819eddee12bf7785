"""Stop strings in a stream: found across token borders, never shown in part."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Cuts a stream of text at the first stop string: the one that ends first.

    Only what is fed counts, so a stop string in the prompt stops nothing. The same text gives the same
    result however it is cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """The text that is safe to show; the end of it that may begin a stop string is held back."""
        if self.found is not None:
            return ""
        text = self._held + text
        # what is whole first wins, so that it does not matter how the text was cut; of those the longest
        hits = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if hits:
            _, at, self.found = min(hits)
            self._held = ""
            return text[:at]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, once no more text will come."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, but not all of it."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0

"""Keep the states of recipes' fixed beginnings in files, so that the next process need not compute them.

A file holds what computing the beginning alone has given, by the same build, library, device and processor.
It is only ever a shortcut: what does not fit is computed anew, and what cannot be written is let be.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np

from tinykit.backends.base import Backend, State
from tinykit.errors import CacheError, TinykitError
from tinykit.generation.state_file import read_state, write_state

FEWEST_TOKENS = 8  # that are worth a file
MOST_FILES = 8
MOST_BYTES = 64 * 2**20  # of one state
_log = logging.getLogger("tinykit")


class PrefixFiles:
    """The files of one build in a folder of theirs, whose parent must be there.

    Args:
        folder: Where they are; made when the first is written.
        backend: The loaded model.
        identity: Gives all that can make a difference to a state.
    """

    def __init__(
        self, folder: Path, backend: Backend, identity: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self._folder = folder
        self._backend = backend
        self._given = identity
        self._refused: set[Path] = set()
        self._is_off = False  # it could not be written here

    @cached_property
    def _identity(self) -> dict[str, str]:
        info = self._backend.info
        known = {"backend": info.backend, "dtype": info.dtype, "device": info.device}
        return {**known, "threads": str(info.threads), **self._given()}

    def read(self, token_ids: Sequence[int]) -> State | None:
        """The state of exactly these tokens, if there is a file of it that fits."""
        path = self._path(token_ids)
        if len(token_ids) < FEWEST_TOKENS or path in self._refused or not path.is_file():
            return None
        try:
            ids, arrays = read_state(path, self._identity, self._backend.info.vocab_size)
            if ids == tuple(token_ids):
                return self._backend.load_state(arrays, len(ids))
            reason = "it is of other tokens"
        except TinykitError as error:
            reason = error.message
        _log.info("The kept beginning %s is not used, but made anew: %s", path.name, reason)
        self._refused.add(path)
        return None

    def lacks(self, token_ids: Sequence[int]) -> bool:
        """Whether a file of these tokens should be written."""
        path = self._path(token_ids)
        is_large = self._backend.info.bytes_per_token * len(token_ids) > MOST_BYTES
        if self._is_off or is_large or len(token_ids) < FEWEST_TOKENS:
            return False
        return path in self._refused or not path.is_file()

    def write(self, token_ids: Sequence[int], state: State) -> None:
        """Write the state, which has seen exactly these tokens, and remove the oldest of too many files."""
        path = self._path(token_ids)
        try:
            self._make_folder()
            arrays = {name: np.ascontiguousarray(array) for name, array in state.dump().items()}
            write_state(path, token_ids, arrays, self._identity, is_synced=False)
        except CacheError as error:
            self._is_off = True
            _log.info("The beginning of the prompt is not kept on disk: %s", error.message)
            return
        self._refused.discard(path)
        with suppress(OSError):  # others write and remove here, too
            files = sorted(self._folder.glob("*.state"), key=lambda file: file.stat().st_mtime_ns)
            for old in [file for file in files if file != path][: -(MOST_FILES - 1)]:
                old.unlink(missing_ok=True)

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            raise CacheError(f"{self._folder} cannot be made: {error}.", path=self._folder) from error

    def _path(self, token_ids: Sequence[int]) -> Path:
        facts = [*sorted(self._identity.items()), *token_ids]
        return self._folder / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}.state"

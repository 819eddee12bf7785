"""The parent's end of an engine's process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tinykit.errors import BackendError
from tinykit.optional import TELEMETRY_SWITCH
from tinykit.peers.engines import Peer
from tinykit.peers.work import FIRST, Ask

# The others are installed and have their bytecode; a clone of ours gets it with the first process.
_LEFT_OUT = ("PYTHONDONTWRITEBYTECODE",)
# what onnxruntime-genai and nncf would tell their makers of each run
_NO_REPORTS = {TELEMETRY_SWITCH: "1", "NNCF_CI": "1"}
_TIMEOUT_S = 900.0  # for one answer of the process, on a machine that is far too busy


@dataclass(frozen=True)
class Place:
    """Where an engine finds its weights and its packages.

    Attributes:
        files: A file, a folder, or a key of the registry.
        python: The interpreter; tinykit itself need not be installed there.
    """

    files: str
    python: str = sys.executable


class EngineProcess:
    """A running engine, which has titled its first message.

    Attributes:
        cold_s: From the start of the process to its first title.
        load_s: What of it was loading, imports of the engine's library included.

    Raises:
        BackendError: it cannot start, or fails later; the message ends with what it said last.
    """

    def __init__(self, name: str, peer: Peer, place: Place, *, threads: int, batch: int = 1) -> None:
        self.name = name
        setup = {
            "module": peer.module, "files": place.files, "threads": threads, "batch": batch,
            "options": peer.options, "first": FIRST,
        }  # fmt: skip
        self._errors = tempfile.TemporaryFile(  # noqa: SIM115
            mode="w+", encoding="utf-8", errors="replace"
        )
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [place.python, "-m", "tinykit.peers.child", json.dumps(setup)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, encoding="utf-8",
            env=environment(),
        )  # fmt: skip
        try:
            first = self._read()
        except BaseException:
            self.close()
            raise
        self.cold_s = time.perf_counter() - started
        self.load_s = float(first["load_s"])

    def ask(self, ask: Ask) -> dict[str, Any]:
        """What the process answers: see `tinykit.peers.child.answered`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asdict(ask)) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._failed(str(error)) from error
        return self._read()

    def close(self) -> None:
        """End the process and wait for it."""
        self._process.kill()
        self._process.wait(60)
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with suppress(OSError):  # what was not written goes nowhere
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        timer = threading.Timer(_TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise self._failed(f"the process ended with {self._process.wait(60)}{self._last_words()}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise self._failed(found["error"])
        return found

    def _last_words(self) -> str:
        self._errors.seek(0)
        said = [line for line in self._errors.read().splitlines() if line.strip()]
        return f" ({said[-1][:200]})" if said else ""

    def _failed(self, why: str) -> BackendError:
        return BackendError(f"{self.name} failed: {why}", hint="The other engines go on without it.")


def environment() -> dict[str, str]:
    """Ours, with this tinykit importable also where it is not installed."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    kept = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    return {**kept, **_NO_REPORTS, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}

"""What a worker is started with, and the name and the tag that follow from it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import tinykit
from tinykit.worker.places import SHORT_NAME_CHARS
from tinykit.worker.protocol import VERSION
from tinykit.worker.transport import Transport, transport_at


@dataclass(frozen=True)
class Launch:
    """One worker: the model and all that decides how it is loaded.

    Two sessions share a worker if all of it but `idle_s`, `folder` and `log` is the same.

    Attributes:
        spec: The model's entry, as plain values.
        options: Arguments of the session: device, backend, dtype, threads, fallback.
        home: Where models and caches are.
        cache_bytes: Memory for kept prompts.
        folder: Where it listens.
        log: Where it logs.
        idle_s: After so many seconds without a request it ends.
        is_loopback: Whether it listens on a port instead of a Unix socket.
    """

    spec: dict[str, Any]
    options: dict[str, Any]
    home: str
    cache_bytes: int
    folder: str
    log: str
    idle_s: int = 900
    is_loopback: bool = False
    version: str = field(default=tinykit.__version__)

    @property
    def name(self) -> str:
        """The name for people: model, what was asked for of backend, device and dtype, and some digits."""
        words = [self.spec["key"], *(str(self.options[one]) for one in _NAMED if self.options.get(one))]
        return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(words))[:80] + f"-{self.digest[:6]}"

    @property
    def digest(self) -> str:
        """What tells this worker from all others of the user."""
        parts = [self.spec, self.options, self.home, self.cache_bytes]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:SHORT_NAME_CHARS]

    @property
    def tag(self) -> dict[str, Any]:
        """What a worker answers with; one whose tag differs is of another version, and is replaced."""
        named = {name: self.options.get(name) or "auto" for name in _NAMED}
        return {"tinykit": self.version, "protocol": VERSION, "model": self.spec["key"], **named}

    def path(self, ending: str) -> Path:
        """A file of this worker in the runtime folder."""
        return Path(self.folder) / f"{self.digest}.{ending}"

    @property
    def transport(self) -> Transport:
        """Where it listens."""
        return transport_at(self.path("port" if self.is_loopback else "sock"))

    def with_log(self, log: Path) -> Self:
        """The same with this log, whose name may follow from that of the worker."""
        return replace(self, log=str(log))

    def save(self) -> Path:
        """Write down that it runs, for `tinykit worker`; who does that holds the worker's lock."""
        target = self.path("json")
        fresh = target.with_name(f"{target.name}.{os.getpid()}.{os.urandom(4).hex()}")
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(self.text)
        fresh.replace(target)
        return target

    @property
    def text(self) -> str:
        """It as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Self:
        """It again.

        Raises:
            ValueError, TypeError: the text is no launch.
        """
        return cls(**json.loads(text))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what was saved.

        Raises:
            OSError, ValueError, TypeError: there is no such file, or it is no launch.
        """
        return cls.of_text(path.read_text(encoding="utf-8"))


_NAMED = ("backend", "device", "dtype")

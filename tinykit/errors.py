"""Every exception that tinykit raises on purpose.

Each one derives from `TinykitError` and from the built-in a caller would guess. The message says what
happened, with the value; the hint, added as a note, says what to do; the facts are attributes.

    TinykitError
    ├── OptionError            (ValueError)       .name .value
    ├── MissingPackageError    (ImportError)      .name .extra
    ├── UnknownModelError      (LookupError)      .model .nearest
    ├── UnknownRecipeError     (LookupError)      .recipe .nearest
    ├── SourceError            (RuntimeError)
    │   ├── OfflineError       (ConnectionError)
    │   ├── DownloadError      (ConnectionError)  .url
    │   │   ├── AccessError       (PermissionError)  .repo .status
    │   │   ├── ProxyError
    │   │   ├── CertificateError
    │   │   ├── TruncatedError    (EOFError)
    │   │   └── WrongContentError (ValueError)
    │   ├── NotFoundError      (LookupError)      .package .version, or .repo .revision .nearest
    │   ├── ChecksumError      (ValueError)       .expected .actual .path
    │   ├── DiskSpaceError     (OSError)          .needed_bytes .free_bytes .path
    │   └── CacheError         (OSError)          .path
    ├── ModelFileError         (ValueError)       .path
    │   └── UnsupportedModelError
    ├── PromptTooLongError     (ValueError)       .prompt_tokens .context_length
    ├── BackendError           (RuntimeError)
    │   ├── ForwardInterrupted
    │   ├── DeviceError                           .asked .failures
    │   └── RestartNeededError
    ├── ClosedError            (RuntimeError)
    └── WorkerError            (RuntimeError)     .worker
        ├── UnknownWorkerError (LookupError)      .nearest
        ├── BusyError
        └── WorkerDiedError    (ConnectionError)  .log

`DeviceFallbackWarning` (UserWarning) tells of a device that could not be used where nothing is lost by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any


class TinykitError(Exception):
    """What all errors of tinykit have in common.

    Args:
        message: What happened, with the value that caused it.
        hint: What to do about it. Shown as a note below the traceback's last line.
        facts: Values a program may want to look at; each becomes an attribute.
    """

    hint: str | None

    def __init__(self, message: str, *, hint: str | None = None, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self._facts = facts
        if hint:
            self.add_note(hint)
        for name, value in facts.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        # ImportError and OSError have their own __str__, which would win without this.
        return self.message

    @property
    def facts(self) -> dict[str, object]:
        """The facts by name."""
        return dict(self._facts)

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (worker, Dask): hint and facts must survive pickling.
        return _rebuild, (type(self), self.message, self.hint, self._facts)

    if TYPE_CHECKING:
        # facts are set by name, so the type checker is told that there are such attributes
        def __getattr__(self, name: str) -> Any: ...


def _rebuild(
    kind: type[TinykitError], message: str, hint: str | None, facts: dict[str, object]
) -> TinykitError:
    return kind(message, hint=hint, **facts)


class OptionError(TinykitError, ValueError):
    """An argument or a setting has a value that is not allowed."""


class MissingPackageError(TinykitError, ImportError):
    """A package that this feature needs is not installed."""


class UnknownModelError(TinykitError, LookupError):
    """No model has this name, and no file is there either."""


class UnknownRecipeError(TinykitError, LookupError):
    """No recipe has this name, and no recipe file is there either."""


class SourceError(TinykitError, RuntimeError):
    """The files of a model could not be had."""


class OfflineError(SourceError, ConnectionError):
    """The network is needed, and is switched off or cannot be reached."""


class DownloadError(SourceError, ConnectionError):
    """The index answered, but the file did not arrive."""


class AccessError(DownloadError, PermissionError):
    """The files are there, but only for people who have logged in or were let in."""


class ProxyError(DownloadError):
    """The proxy between this machine and the server does not let us through."""


class CertificateError(DownloadError):
    """The server's certificate is not trusted."""


class TruncatedError(DownloadError, EOFError):
    """The transfer broke off again and again; what has arrived is kept for the next try."""


class WrongContentError(DownloadError, ValueError):
    """Something else arrived: a web page, a pointer to a file, or a file of another kind."""


class NotFoundError(SourceError, LookupError):
    """The package, repo, version or file is not where it was looked for."""


class ChecksumError(SourceError, ValueError):
    """A file is not the one that was promised."""


class DiskSpaceError(SourceError, OSError):
    """The disk has no room for what is to be written."""


class CacheError(SourceError, OSError):
    """The cache folder cannot be used."""


class ModelFileError(TinykitError, ValueError):
    """A weights file is corrupt, cut short or unreadable."""


class UnsupportedModelError(ModelFileError):
    """A weights file is fine, but of a kind that tinykit cannot run."""


class PromptTooLongError(TinykitError, ValueError):
    """The prompt has more tokens than the model can read."""


class BackendError(TinykitError, RuntimeError):
    """The library that computes the model failed."""


class ForwardInterrupted(BackendError):
    """A computation was stopped from outside before it had a result."""


class DeviceError(BackendError):
    """The model does not run on the device that was asked for."""


class RestartNeededError(BackendError):
    """The library failed to release a model, so that no other may be loaded over what is left of it."""


class ClosedError(TinykitError, RuntimeError):
    """The session was closed and cannot be used any more."""


class WorkerError(TinykitError, RuntimeError):
    """The shared worker cannot be started, reached or used."""


class UnknownWorkerError(WorkerError, LookupError):
    """No shared worker has this name."""


class BusyError(WorkerError):
    """The shared worker has so many requests waiting that it takes no more just now."""


class WorkerDiedError(WorkerError, ConnectionError):
    """The shared worker ended while it had something to do for us."""


class DeviceFallbackWarning(UserWarning):
    """A model runs on another device than the one asked for.

    Attributes:
        asked: The device that was asked for.
        used: The device that the model runs on.
        failures: Why the others do not: one `tinykit.devices.Failure` for each.
    """

    def __init__(
        self, message: str, *, asked: str = "", used: str = "", failures: Sequence[Any] = ()
    ) -> None:
        super().__init__(message)
        self.asked = asked
        self.used = used
        self.failures = tuple(failures)

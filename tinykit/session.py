"""`TinySession`: what notebooks, scripts and front ends use."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from tinykit import settings
from tinykit.answers import Answers
from tinykit.backends.base import BackendInfo, EncoderInfo
from tinykit.call_options import names_options
from tinykit.checkpoints import checked_plan
from tinykit.choosing import Choosing
from tinykit.devices import any_machine, this_machine
from tinykit.entitling import Entitling
from tinykit.errors import ClosedError, OptionError
from tinykit.failures import FailedRun
from tinykit.generation.engine import Engine
from tinykit.generation.judging import Judge
from tinykit.generation.request import checked_switch
from tinykit.loaded_model import Loaded, not_for_text
from tinykit.loading import DEFAULT_MODEL, FAILURES, checked_dtype, load
from tinykit.markup import Bundle
from tinykit.plurals import counted
from tinykit.progress import Progress, ProgressEvent
from tinykit.recipes import DEFAULT_RECIPE, Recipe, get_recipe
from tinykit.registry import ModelSpec, get_model
from tinykit.residents import release
from tinykit.views import session_view

if TYPE_CHECKING:
    from tinykit.worker.remote import WorkerStatus

RECIPE_NAME = "recipe.json"  # in an adapter's folder: the recipe that it was trained for


class TinySession(Entitling, Answers, Choosing):
    """A tiny language model, ready to title, chat and complete.

    Sessions of one process that ask for the same model, device, backend, dtype and threads share its weights
    and take turns with it; other options load it once more. What is kept of prompts is each session's own.

    Device, backend, dtype and threads are settled when a model is loaded, not at each call: a variable that
    changes later counts for the next session, or for this one after `unload`. So what runs is always what
    `info` says, and no call loads a model anew that another has just used.

    Args:
        model: A key from ``tinykit models``, a ``.gguf`` file, or a folder with ``config.json`` and
            safetensors. By default titles come from the title model, chats from the model it was made from.
        adapter: Folder of a LoRA adapter (PEFT layout) to merge into the model.
        recipe: How to make titles: a name, a JSON or TOML file, or a `Recipe`.
        device: Where to compute: ``cpu`` (the default), ``auto``, ``gpu``, or a device such as ``cuda``.
        backend: What to compute with: ``onnx``, ``mlx``, ``transformers``, or one that a package brings.
        dtype: Precision of the weights; ``auto`` takes the model's own recommendation.
        threads: Threads to compute with.
        fallback: False raises where the CPU would be used in place of what was asked for.
        progress: False shows nothing; a function gets `ProgressEvent`s; None follows the settings.
        offline: True never uses the network.
        lazy: Load at the first call that needs the model, not now. No title of ``first-words`` needs it.
        shared: Use the one process of the user that holds this model, which is started if it is not there,
            and stays for the next program: see `worker`.

    Raises:
        UnknownModelError, UnknownRecipeError, OptionError: what was asked for does not exist.
        SourceError: the model's files cannot be had; the kinds say why.
        WorkerError: the shared process cannot be started or reached.
        ModelFileError: they cannot be used.
        DeviceError: nothing that was asked for works, and `fallback` is False.
    """

    @names_options
    def __init__(
        self,
        model: str | Path | ModelSpec | None = None,
        *,
        adapter: str | Path | None = None,
        recipe: str | Path | Recipe | None = None,
        device: str | None = None,
        backend: str | None = None,
        dtype: str | None = None,
        threads: int | None = None,
        fallback: bool | None = None,
        progress: bool | Callable[[ProgressEvent], None] | None = None,
        offline: bool | None = None,
        lazy: bool = False,
        shared: bool = False,
    ) -> None:
        checked_switch(lazy, "lazy")
        checked_switch(shared, "shared")
        for name, value in (("threads", threads), ("fallback", fallback), ("offline", offline)):
            if value is not None:  # what variables and files say is read when a model is loaded
                settings.get(name, value)
        self._progress = Progress(progress)
        self.spec = model if isinstance(model, ModelSpec) else _spec(model, adapter)
        self.asked_for = tuple(None if name is None else str(name) for name in (model, adapter))
        wanted = recipe if recipe is not None else settings.get("recipe") or self.spec.recipe
        self.recipe = get_recipe(wanted or DEFAULT_RECIPE)
        checked_dtype(dtype, self.spec)
        checked_plan(device, backend, self.spec, detect=any_machine if shared else this_machine)
        self._load_options: dict[str, Any] = {
            "device": device,
            "backend": backend,
            "dtype": dtype,
            "threads": threads,
            "fallback": fallback,
            "progress": self._progress,
            "offline": offline,
        }
        self._lock = threading.Lock()
        self._loaded: dict[str, Loaded] = {}
        self._is_closed = False
        self._prefixes: dict[Recipe, int] = {}
        if not lazy and self.recipe.method == "model":
            self.load()

    def __new__(cls, *_: object, shared: bool = False, **__: object) -> Self:
        """A session of the kind that was asked for."""
        if shared and cls is TinySession:
            from tinykit.worker.session import SharedSession

            return object.__new__(cast(type[Self], SharedSession))
        return object.__new__(cls)

    @property
    def worker(self) -> WorkerStatus | None:
        """The process that a shared session's model runs in: pid, memory, uptime; None if there is none."""
        return None

    def prewarm(self) -> None:
        """Start a shared session's worker, but do not wait for it; what goes wrong the first call tells.

        Where the model is loaded in this process nothing is done: it would be in your way.
        """

    def load(self, *, progress: Callable[[ProgressEvent], None] | None = None) -> Loaded:
        """Load the model if it is not loaded, and return what was loaded.

        Args:
            progress: Gets this load's `ProgressEvent`s in place of the session's own display.
        """
        return self._load(self.spec, **({} if progress is None else {"progress": Progress(progress)}))

    def _load(self, spec: ModelSpec, **changes: Any) -> Loaded:
        with self._lock:
            if self._is_closed:
                raise ClosedError("This session was closed.", hint="Make a new TinySession.")
            if spec.key not in self._loaded:
                self._loaded[spec.key] = load(spec, **{**self._load_options, **changes})
            found = self._loaded[spec.key]
            found.runner.require_open()  # not closed by whoever else has it
            return found

    def _chat_engine(self) -> Engine:
        if self.spec.task == "judge":
            raise not_for_text(self.spec)
        return self._chooser().engine

    def _chooser(self) -> Loaded:
        """The model for chats and choices: one that was trained for titles alone has another for them."""
        chat_model = self.spec.chat_model
        return self._load(get_model(chat_model) if chat_model else self.spec)

    def _engines(self) -> list[Engine]:
        return [loaded.engine for loaded in list(self._loaded.values()) if not loaded.is_judge]

    def _judges(self) -> list[Judge]:
        return [loaded.judge for loaded in list(self._loaded.values()) if loaded.is_judge]

    @property
    def load_options(self) -> dict[str, Any]:
        """What the session was told about where and how to load, by keyword."""
        return dict(self._load_options)

    @property
    def is_loaded(self) -> bool:
        """Whether the session holds a model in memory."""
        return bool(self._loaded)

    @property
    def load_s(self) -> float:
        """Seconds spent loading models so far."""
        return sum(loaded.load_s for loaded in self._loaded.values())

    @property
    def info(self) -> BackendInfo | EncoderInfo:
        """What the session's model runs on, read back from the library; loads it if need be."""
        return self.load().info

    @property
    def failures(self) -> tuple[FailedRun, ...]:
        """Where this session's models failed lately; they are not tried there again for some minutes."""
        keys = {self.spec.key, self.spec.chat_model, *self._loaded}
        return tuple(run for run in FAILURES.all() if run.model in keys)

    def clear_failures(self) -> None:
        """Forget them, so that the next load tries every device again."""
        for run in self.failures:
            FAILURES.clear(run.model)

    def unload(self) -> None:
        """Release the memory of what is loaded; the next call that needs a model loads it again.

        Raises:
            RestartNeededError: a library failed to release a model. The session does not hold it any more.
        """
        with self._lock:
            self._release()

    def close(self) -> None:
        """Release the model's memory for good; closing twice is harmless.

        Streams that are still open end as cancelled when they are read on.

        Raises:
            RestartNeededError: as `unload`.
        """
        with self._lock:
            self._is_closed = True
            self._release()

    def _release(self) -> None:
        """Let go of the models only after the libraries have, and whether or not they could."""
        errors = []
        for loaded in list(self._loaded.values()):
            try:
                release(loaded.runner)
            except Exception as error:
                errors.append(error)
        self._loaded = {}
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    _loaded_where = "loaded"

    def _shown_model(self) -> Any:
        """What there is of the session's model now, with its info; None if it is not loaded."""
        return self._loaded.get(self.spec.key)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        """What a notebook shows: the facts that are the same on every machine; the others are metadata."""
        return session_view(self)

    def __repr__(self) -> str:
        if self.spec.key not in self._loaded:
            state = "closed" if self._is_closed else "not loaded"
            return f"<TinySession {self.spec.key}, {state}>"
        loaded = self._loaded[self.spec.key]
        info, does = loaded.info, "a judge" if loaded.is_judge else f"titles by {self.recipe.name}"
        place = info.device
        if place == "cpu" and loaded.asked not in ("auto", "cpu"):
            place += f", not {loaded.asked}"
        if info.device_share is not None and info.device_share < 1:
            place += f" with {info.device_share:.0%} of the work"
        return (
            f"<TinySession {self.spec.key} {info.dtype} on {place} "
            f"({info.backend}, {counted(info.threads, 'thread')}), {does}>"
        )


# what its arguments are is said by __init__ alone
_signature = inspect.signature(TinySession.__init__)
_parameters = list(_signature.parameters.values())[1:]
cast(Any, TinySession).__signature__ = _signature.replace(parameters=_parameters)


def _spec(model: str | Path | None, adapter: str | Path | None) -> ModelSpec:
    spec = get_model(model if model is not None else settings.get("model") or DEFAULT_MODEL)
    if adapter is None:
        return spec
    folder = _adapter_folder(adapter)
    key, recipe = f"{spec.key}+{folder.name}", folder / RECIPE_NAME
    if recipe.is_file():  # an adapter for titles: chats stay with the model it was made from
        chat_model = spec.chat_model or spec.key
        return replace(spec, key=key, adapter=folder, recipe=str(recipe), chat_model=chat_model)
    return replace(spec, key=key, adapter=folder, chat_model=None)


def _adapter_folder(adapter: str | Path) -> Path:
    try:
        if not str(adapter).strip():  # it would be the folder that the program was started in
            raise ValueError("it is empty")
        return Path(adapter).expanduser().resolve()
    except (TypeError, ValueError, RuntimeError, OSError) as error:  # RuntimeError: "~name" of nobody, a loop
        raise OptionError(
            f"adapter must be the path of a folder, not {adapter!r:.300}: {error}.",
            hint="A LoRA adapter's folder holds adapter_config.json and adapter_model.safetensors.",
            name="adapter",
            value=adapter,
        ) from error

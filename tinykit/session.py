"""`TinySession`: what notebooks, scripts and front ends use."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
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
from tinykit.errors import ClosedError, OptionError, TinykitError
from tinykit.failures import FailedRun
from tinykit.generation.batch import DEFAULT_BATCH_SIZE, Task
from tinykit.generation.engine import Engine
from tinykit.generation.judging import Judge
from tinykit.generation.result import Chunk
from tinykit.language import is_english
from tinykit.loaded_model import Loaded, not_for_text
from tinykit.loading import DEFAULT_MODEL, FAILURES, checked_dtype, load
from tinykit.many import as_done, as_list, checked_count, failed_title, run_in_order
from tinykit.markup import Bundle
from tinykit.progress import Progress, ProgressEvent
from tinykit.reasons import Reason, Step
from tinykit.recipes import DEFAULT_RECIPE, Recipe, get_recipe
from tinykit.registry import ModelSpec, get_model
from tinykit.residents import release
from tinykit.titles import has_task, has_text, prepare_conversation
from tinykit.titling import Title, first_words_title, fixed_prefix, model_title, no_task, title_task
from tinykit.tokenizer import Message, as_messages
from tinykit.views import session_view

if TYPE_CHECKING:
    from tinykit.worker.remote import WorkerStatus

RECIPE_NAME = "recipe.json"  # in an adapter's folder: the recipe that it was trained for


class TinySession(Answers, Choosing):
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
        self.spec = model if isinstance(model, ModelSpec) else _spec(model, adapter)
        self.asked_for = tuple(None if name is None else str(name) for name in (model, adapter))
        wanted = recipe if recipe is not None else settings.get("recipe") or self.spec.recipe
        self.recipe = get_recipe(wanted or DEFAULT_RECIPE)
        checked_dtype(dtype, self.spec)
        checked_plan(device, backend, self.spec, detect=any_machine if shared else this_machine)
        self._progress = Progress(progress)
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
            return self._loaded[spec.key]

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

    @names_options
    def title(
        self,
        message: str | Sequence[Message | Mapping[str, str]],
        *,
        recipe: str | Path | Recipe | None = None,
    ) -> str | None:
        """A short title for a message or a chat, or None if it needs none or none was found."""
        return self.title_result(message, recipe=recipe).text

    @names_options
    def title_result(
        self,
        message: str | Sequence[Message | Mapping[str, str]],
        *,
        recipe: str | Path | Recipe | None = None,
        on_chunk: Callable[[Chunk], object] | None = None,
    ) -> Title:
        """The same with the model's raw reply, every step from it to the title, and timings.

        Args:
            message: The first message of a chat, or its messages, of which the last six count.
            recipe: Another recipe than the session's, for this title.
            on_chunk: Called with each piece of the model's first answer, before the next is made. The checks
                may prefer another answer, or the message's own words.

        Raises:
            OptionError: `message` is neither text nor messages.
            KeyboardInterrupt: Ctrl-C; its `partial` is the `Title` so far, also from `title`.
        """
        chosen = self.recipe if recipe is None else get_recipe(recipe)
        text = message_text(message, chosen)
        if (found := without_model(text, chosen)) is not None:
            return found
        return self._title(text, chosen, on_chunk)

    def _title(self, text: str, recipe: Recipe, on_chunk: Callable[[Chunk], object] | None = None) -> Title:
        engine = self.load().engine
        prefix_tokens = self._prefix_tokens(engine, recipe)
        return model_title(engine, text, recipe, prefix_tokens, on_chunk=on_chunk)

    def _title_task(
        self, message: str | Sequence[Message | Mapping[str, str]], recipe: Recipe, exact: bool
    ) -> Task[Title]:
        text = message_text(message, recipe)
        if (found := without_model(text, recipe)) is not None:
            return found
        engine = self.load().engine
        prefix_tokens = self._prefix_tokens(engine, recipe)
        return (yield from title_task(engine, text, recipe, prefix_tokens, exact=exact))

    def _prefix_tokens(self, engine: Engine, recipe: Recipe) -> int:
        if recipe not in self._prefixes:
            self._prefixes[recipe] = fixed_prefix(engine.tokenizer, recipe)
        return self._prefixes[recipe]

    @names_options
    def titles(
        self,
        messages: Iterable[str | Sequence[Message | Mapping[str, str]]],
        *,
        recipe: str | Path | Recipe | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        exact: bool = False,
    ) -> list[str | None]:
        """Titles for many messages, in their order; None as `title` gives it, and where one failed."""
        results = self.title_results(messages, recipe=recipe, batch_size=batch_size, exact=exact)
        failed = [result.error for result in results if result.error is not None]
        if failed:
            warnings.warn(
                f"{len(failed)} of {len(results)} titles failed; title_results() tells why. "
                f"The first: {failed[0]}",
                stacklevel=2,
            )
        return [result.text for result in results]

    @names_options
    def title_results(
        self,
        messages: Iterable[str | Sequence[Message | Mapping[str, str]]],
        *,
        recipe: str | Path | Recipe | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        exact: bool = False,
        progress: bool | Callable[[ProgressEvent], None] | None = None,
    ) -> list[Title]:
        """The same with all that `title_result` tells; what failed has its `error`, and loses no other.

        Args:
            messages: Texts or chats.
            recipe: Another recipe than the session's.
            batch_size: Messages under way at once; more are faster up to a point, and need more memory.
            exact: Each as if it were alone, to the last bit, where `batch_size` could make a difference.
            progress: Another than the session's, for the titles of this call.

        Raises:
            KeyboardInterrupt: Ctrl-C; its `partial` lists each `Title` so far (also from `titles`), those
                under way as far as they got, and None for those that wait.
        """
        chosen = self.recipe if recipe is None else get_recipe(recipe)
        size = checked_count(batch_size, "batch_size")
        shown = self._progress if progress is None else Progress(progress)
        return self._titles(as_list(messages, "messages"), chosen, size, exact, shown)

    def _titles(
        self, messages: Sequence[Any], recipe: Recipe, size: int, exact: bool, progress: Progress
    ) -> list[Title]:
        tasks = [self._title_task(message, recipe, exact) for message in messages]
        engine = self.load().engine if recipe.method == "model" and tasks else None
        failed = partial(failed_title, recipe=recipe)
        return run_in_order(engine, tasks, failed, batch_size=size, progress=progress, unit="titles")

    def titles_as_done(
        self,
        messages: Iterable[str | Sequence[Message | Mapping[str, str]]],
        *,
        recipe: str | Path | Recipe | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        exact: bool = False,
    ) -> Iterator[tuple[int, Title]]:
        """The same one by one, each with its message's number, as soon as it is done.

        A message is taken when its turn has come, so there may be any number of them. After a cancel no
        further ones come.
        """
        chosen = self.recipe if recipe is None else get_recipe(recipe)
        size = checked_count(batch_size, "batch_size")
        tasks = (self._title_task(message, chosen, exact) for message in messages)
        engine = self.load().engine if chosen.method == "model" else None
        for index, found in as_done(engine, tasks, batch_size=size):
            yield index, failed_title(found, chosen) if isinstance(found, TinykitError) else found

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
            f"({info.backend}, {info.threads} threads), {does}>"
        )


# what its arguments are is said by __init__ alone
_signature = inspect.signature(TinySession.__init__)
_parameters = list(_signature.parameters.values())[1:]
cast(Any, TinySession).__signature__ = _signature.replace(parameters=_parameters)


def without_model(message: str, recipe: Recipe) -> Title | None:
    """The title of a message that no model need be asked about."""
    if not has_text(message):
        return Title(None, "", (Step(Reason.NO_TEXT),), recipe.name)
    if not has_task(message):
        return no_task(recipe)
    if recipe.method == "first-words":
        return first_words_title(message, recipe)
    if recipe.languages == "english" and not is_english(message):
        return first_words_title(message, recipe, Step(Reason.LANGUAGE))
    return None


def message_text(message: str | Sequence[Message | Mapping[str, str]], recipe: Recipe) -> str:
    """A message or a chat as the text that a title is made for.

    Raises:
        OptionError: it is neither.
    """
    return message if isinstance(message, str) else _chat_text(message, recipe)


def _chat_text(messages: Sequence[Message | Mapping[str, str]], recipe: Recipe) -> str:
    """A chat as one text: as a block for recipes that were made for it, else what the person asked."""
    if not isinstance(messages, (list, tuple)):
        raise OptionError(
            f"The message must be text or a list of messages, not {type(messages).__name__}.",
            hint='Give a text, or messages such as {"role": "user", "content": "Hello"}.',
            name="message",
            value=messages,
        )
    turns = as_messages(messages)
    if recipe.method == "model" and recipe.preparation.style == "clean":
        return prepare_conversation([turn._asdict() for turn in turns], recipe.preparation)
    return "\n\n".join(turn.content for turn in turns if turn.role == "user" and has_task(turn.content))


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

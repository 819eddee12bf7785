"""`TinySession(shared=True)`: the same calls, answered by a worker that other programs use as well."""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from tinykit.answers import Asked
from tinykit.backends.base import BackendInfo, EncoderInfo
from tinykit.choosing import Options, Scores
from tinykit.entitling import deadline_after, left_s, message_text, without_model
from tinykit.errors import OptionError, TinykitError, WorkerError
from tinykit.failures import FailedRun
from tinykit.generation.batch import DEFAULT_BATCH_SIZE
from tinykit.generation.engine import Engine
from tinykit.generation.judging import Judge, state_text
from tinykit.generation.lookup import VerifyEvent
from tinykit.generation.questions import Answer, Question
from tinykit.generation.request import GenerationOptions, checked_timeout_s
from tinykit.generation.result import Chunk, Completion
from tinykit.generation.slots import checked_slot
from tinykit.generation.stream import Stream, read_all
from tinykit.interrupts import keep_partial
from tinykit.many import checked_count, failed_completion, failed_title, prompt_messages
from tinykit.model_spec import ModelSpec
from tinykit.progress import Progress, ProgressEvent
from tinykit.recipes import Recipe
from tinykit.registry import get_model
from tinykit.session import TinySession
from tinykit.titling import Title, late_title
from tinykit.tokenizer import Message as TurnMessage
from tinykit.worker.crashes import CRASHES
from tinykit.worker.errands import Errand
from tinykit.worker.remote import RemoteModel, WorkerStatus, as_path
from tinykit.worker.remote_run import RemoteRun, answer_params
from tinykit.worker.wire import completion_of, options_values, question_values, title_of

T = TypeVar("T")

_log = logging.getLogger("tinykit")


class SharedSession(TinySession):
    """A session whose models run in workers; made by ``TinySession(shared=True)``.

    What is special: `unload` and `close` only leave the worker, which serves others and ends when nobody
    asks for a while. A stream is made ahead of its reader from its first piece on. `save_state` needs a slot.
    """

    _remotes: dict[str, RemoteModel]

    def load(self, *, progress: Callable[[ProgressEvent], None] | None = None) -> Any:
        """Start the worker if it is not there, and let it load the model if it has not."""
        model = self._remote(self.spec)
        model.load(None if progress is None else Progress(progress))
        return model

    def start(self, *, is_loading: bool = True) -> int:
        """Start the worker if it is not there, and let it load the model; returns its pid.

        Raises: as `load`.
        """
        model = self._remote(self.spec)
        client = model.attach()
        if is_loading:
            model.load()
        return client.pid

    @property
    def worker_name(self) -> str:
        """What `tinykit worker` calls the worker of the session's model."""
        return self._remote(self.spec).launch.name

    def prewarm(self) -> None:
        """Start the worker's process if it is not there; returns at once. The model is not loaded."""
        model = self._remote(self.spec)

        def start() -> None:
            try:
                model.attach()
            except TinykitError as error:
                _log.debug("prewarming failed: %s", error)

        threading.Thread(target=start, name="tinykit prewarm", daemon=True).start()

    @property
    def worker(self) -> WorkerStatus | None:
        """The process of the session's model: pid, memory, uptime; None if it does not run."""
        return self._remote(self.spec).status()

    @property
    def info(self) -> BackendInfo | EncoderInfo:
        """What the model runs on, as the worker read it back; loads it if need be."""
        info: BackendInfo | EncoderInfo = self.load().info
        return info

    @property
    def load_s(self) -> float:
        """Seconds spent waiting for workers and for models so far."""
        return sum(model.load_s for model in self._models())

    @property
    def failures(self) -> tuple[FailedRun, ...]:
        """Where this session's workers have died lately."""
        found = []
        for model in self._models():
            device, dtype = str(model.launch.options["device"] or "cpu"), str(model.launch.options["dtype"])
            found += [
                FailedRun(model.spec.key, device, dtype, crash.reason, crash.at_s)
                for crash in CRASHES.of(model.launch)
            ]
        return tuple(found)

    def clear_failures(self) -> None:
        """Forget them, here and in the workers, so that everything is tried again."""
        for model in self._models():
            CRASHES.clear(model.launch)
            model.quick("clear_failures")

    def cancel(self) -> int:
        """End whatever this session is doing, from another thread; returns how many requests that was."""
        answers = [model.quick("cancel") for model in self._models()]
        return sum(answer["number"] for answer in answers if answer)

    def save_state(self, path: str | Path, *, slot: int | str | None = None) -> int:
        """Write the state of a slot to a file; returns its size in bytes.

        Raises: as `TinySession.save_state`, and OptionError without a slot.
        """
        name = checked_slot(slot)
        if name is None:
            raise OptionError(
                "A shared session saves the state of a slot, since the last chat may be another program's.",
                hint="Chat in a slot and name it here: slot=0.",
                name="slot",
                value=slot,
            )
        return self._state_call("save_state", path, name)

    def restore_state(self, path: str | Path, *, slot: int | str | None = None) -> int:
        """Go on from a file of `save_state`; as `TinySession.restore_state`."""
        return self._state_call("restore_state", path, checked_slot(slot))

    def free_slot(self, slot: int | str) -> bool:
        """Forget a slot's state; False if there was none. Raises: as `TinySession.free_slot`."""
        name = checked_slot(slot)
        models = [model for model in self._models() if model.info is not None and not model.is_judge]
        freed = [model.result("free_slot", {"slot": name})["number"] for model in models if name is not None]
        return any(freed)

    def _state_call(self, op: str, path: str | Path, slot: int | str | None) -> int:
        try:
            place = as_path(path)
        except (TypeError, RuntimeError) as error:
            raise OptionError(
                f"path must name a file, not {path!r}: {error}", name="path", value=path
            ) from error
        number: int = self._chat_remote().result(op, {"path": place, "slot": slot})["number"]
        return number

    def _remote(self, spec: ModelSpec) -> RemoteModel:
        with self._lock:
            remotes = self.__dict__.setdefault("_remotes", {})
            if self._is_closed:
                from tinykit.errors import ClosedError

                raise ClosedError("This session was closed.", hint="Make a new TinySession.")
            if spec.key not in remotes:
                remotes[spec.key] = RemoteModel(spec, self._load_options, self._progress)
                weakref.finalize(self, remotes[spec.key].detach)
            found: RemoteModel = remotes[spec.key]
            return found

    def _chat_remote(self) -> RemoteModel:
        chat_model = self.spec.chat_model
        return self._remote(get_model(chat_model) if chat_model else self.spec)

    def _models(self) -> list[RemoteModel]:
        return list(self.__dict__.get("_remotes", {}).values())

    def _engines(self) -> list[Engine]:
        return []

    def _judges(self) -> list[Judge]:
        return []

    def _answer(
        self,
        asked: Asked,
        n: int | None,
        on_chunk: Callable[[Chunk], object] | None,
        on_verify: Callable[[VerifyEvent], object] | None,
    ) -> Completion | list[Completion]:
        if n is None:
            return read_all(self._open(asked), on_chunk=on_chunk, on_verify=on_verify)
        found = self._chat_remote().result("answer", {**answer_params(asked), "n": n})
        return [completion_of(one, asked.options.constraint) for one in found["completions"]]

    def _open(self, asked: Asked) -> Stream:
        run = RemoteRun(self._chat_remote(), asked)
        return Stream(run, run.steps(), run.send_cancel)

    def _answer_all(
        self,
        prompts: Sequence[Any],
        system: str | None,
        options: GenerationOptions,
        size: int,
        started: float,
        progress: Progress,
    ) -> list[Completion]:
        found: list[Completion | TinykitError | None] = [None] * len(prompts)
        asked: dict[int, list[list[str]]] = {}
        for index, prompt in enumerate(prompts):
            try:
                asked[index] = [list(turn) for turn in prompt_messages(prompt, system)]
            except TinykitError as error:
                found[index] = error
        params = {"options": options_values(options), "batch_size": size, "timeout_s": options.timeout_s}
        errand = Errand(
            "answer_all",
            "prompts",
            params,
            read=lambda values: completion_of(values["completion"], options.constraint),
            late=lambda _: Completion.nothing(cancelled_by="timeout"),
        )
        return self._ask_for_all(
            self._chat_remote, errand, asked, found, failed_completion, progress, "completions"
        )

    def _title(
        self,
        text: str,
        recipe: Recipe,
        timeout_s: float | None,
        on_chunk: Callable[[Chunk], object] | None = None,
    ) -> Title:
        found: list[Title | TinykitError | None] = [None]
        _titles_errand(recipe, timeout_s=timeout_s).run(self._remote(self.spec), {0: text}, found)
        if isinstance(found[0], TinykitError):
            raise found[0]
        title = failed_title(None, recipe) if found[0] is None else found[0]
        if on_chunk is not None and title.completion is not None:  # titles come whole from a worker
            on_chunk(Chunk(title.completion.text, title.completion.token_ids, is_last=True))
        return title

    def _titles(
        self,
        messages: Sequence[Any],
        recipe: Recipe,
        size: int,
        exact: bool,
        timeout_s: float | None,
        progress: Progress,
    ) -> list[Title]:
        found: list[Title | TinykitError | None] = [None] * len(messages)
        asked: dict[int, str] = {}
        for index, message in enumerate(messages):
            try:
                text = message_text(message, recipe)
                found[index] = without_model(text, recipe)
            except TinykitError as error:
                found[index] = error
            if found[index] is None:
                asked[index] = text
        errand = _titles_errand(recipe, batch_size=size, exact=exact, timeout_s=timeout_s)
        failed = partial(failed_title, recipe=recipe)
        return self._ask_for_all(
            lambda: self._remote(self.spec), errand, asked, found, failed, progress, "titles"
        )

    def titles_as_done(
        self,
        messages: Iterable[str | Sequence[TurnMessage | Mapping[str, str]]],
        *,
        recipe: str | Path | Recipe | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        exact: bool = False,
        timeout_s: float | None = None,
    ) -> Iterator[tuple[int, Title]]:
        """Titles with their messages' numbers, group by group; a group is taken when its turn has come."""
        size, waiting, number = checked_count(batch_size, "batch_size"), iter(messages), 0
        given: dict[str, Any] = {"recipe": recipe, "batch_size": size, "exact": exact}
        timeout_s = checked_timeout_s(timeout_s)
        if timeout_s is not None:
            self.load()  # whose time does not count
        deadline_s = deadline_after(timeout_s)
        while group := list(islice(waiting, size)):
            for title in self.title_results(group, timeout_s=left_s(deadline_s), **given):
                yield number, title
                number += 1

    def _ask_for_all(
        self,
        remote: Callable[[], RemoteModel],
        errand: Errand[T],
        asked: Mapping[int, Any],
        found: list[T | TinykitError | None],
        failed: Callable[[TinykitError | None], T],
        progress: Progress,
        unit: str,
    ) -> list[T]:
        """What a worker finds for each of many texts."""
        try:
            with progress.stage(unit, total=len(found), unit=unit) as stage:
                stage.advance(len(found) - len(asked))
                if asked:
                    errand.run(remote(), asked, found, lambda: stage.advance(1))
        except KeyboardInterrupt as error:
            so_far = [failed(one) if isinstance(one, TinykitError) else one for one in found]
            keep_partial(error, so_far)
            raise
        return [failed(one) if one is None or isinstance(one, TinykitError) else one for one in found]

    def _scores(self, options: Options) -> Scores:
        params = {
            "question": question_values(options.question),
            "state": options.state,
            "system": options.system,
            "prompts": list(options.prompts),
            "texts": list(options.texts),
            "normalize": options.how.normalize,
            "calibrate": options.how.calibrate,
        }
        found = self._chat_remote().result("scores", params)
        return list(found["scores"]), tuple(tuple(one) for one in found["logprobs"])

    def _judged(self, state: object, questions: Mapping[str, Question]) -> dict[str, Answer]:
        params = {
            "state": state_text(state),
            "questions": [question_values(one) for one in questions.values()],
        }
        logits = self._chat_remote().result("judge", params)["logits"]
        return {
            name: question.answer(scores)
            for (name, question), scores in zip(questions.items(), logits, strict=True)
        }

    def _release(self) -> None:
        for model in self._models():
            with contextlib.suppress(WorkerError):
                model.close() if self._is_closed else model.detach()

    _loaded_where = "loaded, shared"

    def _shown_model(self) -> Any:
        model = self.__dict__.get("_remotes", {}).get(self.spec.key)
        return None if self._is_closed or model is None or model.info is None else model

    def __repr__(self) -> str:
        model = self._models()[0] if self._models() else None
        if self._is_closed or model is None or model.info is None:
            state = "closed" if self._is_closed else "not loaded"
            return f"<TinySession {self.spec.key}, shared, {state}>"
        info = model.info
        return f"<TinySession {self.spec.key} {info.dtype} on {info.device} ({info.backend}), shared>"


def _titles_errand(recipe: Recipe, **params: Any) -> Errand[Title]:
    return Errand(
        "titles",
        "messages",
        {"recipe": recipe.to_dict(), **params},
        read=lambda values: title_of(values["title"]),
        late=partial(late_title, recipe=recipe),
    )

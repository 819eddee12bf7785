"""From pairs to an adapter: check the data, train, compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tinykit import settings
from tinykit.convert.adapter import CONFIG_NAME
from tinykit.convert.importer import Source, open_source
from tinykit.devices import default_threads
from tinykit.errors import OptionError
from tinykit.loading import float_weights
from tinykit.optional import require
from tinykit.progress import Progress, ProgressEvent, Stage
from tinykit.recipes import Recipe, get_recipe
from tinykit.registry import ModelSpec, get_model
from tinykit.session import RECIPE_NAME
from tinykit.tokenizer import Tokenizer
from tinykit.tune.comparison import compare, original_model
from tinykit.tune.families import require_trainable
from tinykit.tune.interrupts import stop_on_interrupt
from tinykit.tune.options import TrainingOptions
from tinykit.tune.pairs import Pair, checked_pairs, split
from tinykit.tune.prompts import ExampleSet, encode_pairs
from tinykit.tune.result import TuneResult

if TYPE_CHECKING:
    from tinykit.tune.decoder import Decoder
    from tinykit.tune.trainer import Trainer

Show = bool | Callable[[ProgressEvent], None] | None


def tune(
    cases: Any,
    *,
    base: str | Path = "smollm2-135m",
    minutes: float | None = 20,
    out: str | Path | None = None,
    recipe: str | Path | Recipe = "titles",
    rank: int = 16,
    alpha: float | None = None,
    first_layer: int | None = None,
    epochs: float = 3,
    learning_rate: float = 1e-3,
    batch_size: int = 8,
    threads: int | None = None,
    seed: int = 1,
    held_out: float = 0.1,
    resume: bool = False,
    base_name: str | None = None,
    progress: Show = None,
    offline: bool | None = None,
) -> TuneResult:
    """Train an adapter that gives titles like those of `cases`, and compare it with what there was before.

    Ctrl-C ends the training after the step in work, and what was best so far is kept.

    Args:
        cases: Messages with their titles: see `read_pairs`.
        base: The model to train on top of: a key, a ``.gguf`` file or a folder. Of a title model the
            adapter is where the training starts from.
        minutes: Time for the training at most; the comparison takes one or two more. None for no limit.
        out: Folder for the adapter; by default ``<base>-adapter`` in the current one.
        recipe: What the titles are asked for with.
        rank: Rank of the adapter; more can learn more and is slower.
        alpha: Weight of the adapter, twice the rank if None.
        first_layer: Layers below this one stay as they are; a third of them if None.
        epochs: Times that each pair is seen, if the time allows.
        learning_rate: Of AdamW, at its highest.
        batch_size: Pairs in a step.
        threads: Threads to compute with; all cores if None.
        seed: The same seed, pairs and number of threads give the same steps.
        held_out: Share of the pairs that is kept out, half of it to choose the best state by and half for
            the scores; with 0 there are no scores.
        resume: Go on with the training that `out` holds.
        base_name: What `peft` is told about the base; its key if None.
        progress: False shows nothing; a function gets `ProgressEvent`s; None follows the settings.
        offline: True never uses the network.

    Raises:
        MissingPackageError: torch is not installed.
        OptionError: the pairs or an argument cannot be used; nothing has been done then.
        UnknownModelError, UnknownRecipeError, SourceError, ModelFileError: as of `TinySession`.
    """
    require("torch", extra="tune", purpose="training")
    spec = get_model(base)
    chosen = _trainable(get_recipe(recipe))
    options = TrainingOptions(
        minutes=minutes,
        epochs=epochs,
        rank=rank,
        alpha=2 * rank if alpha is None else alpha,
        first_layer=0 if first_layer is None else first_layer,
        learning_rate=learning_rate,
        batch_size=batch_size,
        threads=settings.get("threads", threads) or default_threads(),
        seed=seed,
    )
    given = checked_pairs(cases, chosen)
    parts = split(given.pairs, held_out)
    folder = _folder(out, spec, resume)
    source = open_source(float_weights(spec, progress=Progress(progress), offline=offline))
    require_trainable(source)
    options = _fitted(options, spec, source, keeps_layers=first_layer is not None)
    examples = _encoded([*parts[0], *parts[1]], source, chosen, spec, Progress(progress))
    trainer = _trainer(spec, source, examples, len(parts[0]), options, folder, base_name or spec.key)
    if resume:
        _take_up(trainer, folder)
    folder.mkdir(parents=True, exist_ok=True)
    chosen.save(folder / RECIPE_NAME)
    is_stopped = _train(trainer, spec, Progress(progress))
    result = TuneResult(
        folder=folder,
        base=str(original_model(base)),
        recipe=chosen.name,
        pairs=len(parts[0]),
        left_out=given.left_out,
        steps=trainer.step,
        seconds=trainer.seconds,
        history=tuple(trainer.history),
        stopped=is_stopped,
    )
    if parts[2] and not is_stopped:
        result = _scored(result, parts[2], base=base, recipe=chosen, progress=progress, offline=offline)
    result.save(folder / "training" / "result.json")
    return result


def _trainable(recipe: Recipe) -> Recipe:
    if recipe.method != "model":
        raise OptionError(
            f"The recipe {recipe.name!r} asks no model, so there is nothing to train.",
            name="recipe",
            value=recipe.name,
        )
    return recipe


def _folder(out: str | Path | None, spec: ModelSpec, resume: bool) -> Path:
    """Where the adapter goes; never over another one."""
    if out is None:
        if resume:
            raise OptionError("resume=True needs the folder to go on in, as out.", name="out", value=None)
        names = [f"{spec.key}-adapter", *(f"{spec.key}-adapter-{number}" for number in range(2, 1000))]
        out = next(name for name in names if not Path(name).exists())
    folder = Path(out).expanduser().resolve()
    if (folder / CONFIG_NAME).exists() and not resume:
        raise OptionError(
            f"{folder} holds an adapter already.",
            hint="Give another folder, or go on with that training: resume=True.",
            name="out",
            value=str(folder),
        )
    return folder


def _fitted(
    options: TrainingOptions, spec: ModelSpec, source: Source, *, keeps_layers: bool
) -> TrainingOptions:
    """The options with what depends on the model: its layers, and the adapter that it has."""
    from tinykit.tune.adapters import adapter_shape

    layers = source.architecture.layers
    if spec.adapter is not None:
        shape = adapter_shape(spec.adapter)
        return replace(options, rank=shape.rank, alpha=shape.alpha, first_layer=shape.first_layer)
    if not keeps_layers:
        return replace(options, first_layer=layers // 3)
    if options.first_layer >= layers:
        raise OptionError(
            f"first_layer must be below {layers}, the number of layers, not {options.first_layer}.",
            name="first_layer",
            value=options.first_layer,
        )
    return options


def _encoded(
    pairs: Sequence[Pair], source: Source, recipe: Recipe, spec: ModelSpec, progress: Progress
) -> ExampleSet:
    """The pairs as tokens of the model's own tokenizer.

    Raises:
        OptionError: a prompt does not fit into the model's context.
    """
    with TemporaryDirectory() as folder:
        source.write_tokenizer(Path(folder))
        tokenizer = Tokenizer.from_folder(Path(folder))
    with progress.stage(f"{spec.key}: read", total=len(pairs), unit="pairs", model=spec.key) as stage:
        found = encode_pairs(pairs, tokenizer, recipe, source.architecture.eos_ids, advance=stage.advance)
    room = source.architecture.context_length - len(found.prefix)
    for pair, example in zip(pairs, found.examples, strict=True):
        if len(example.token_ids) > room:
            raise OptionError(
                f"Row {pair.row} has {len(example.token_ids):,} tokens; the model reads {room:,}.",
                hint="Take a recipe whose preparation cuts messages to a smaller size.",
                name="cases",
                value=pair.row,
            )
    return found


def _trainer(
    spec: ModelSpec,
    source: Source,
    examples: ExampleSet,
    trained: int,
    options: TrainingOptions,
    folder: Path,
    base_name: str,
) -> Trainer:
    """A trainer on the first `trained` examples; the others are for choosing the best state."""
    from tinykit.tune.adapters import load_adapter
    from tinykit.tune.decoder import Decoder
    from tinykit.tune.trainer import Trainer

    decoder: Decoder = Decoder(
        source,
        rank=options.rank,
        alpha=options.alpha,
        first_layer=options.first_layer,
        seed=options.seed,
    )
    if spec.adapter is not None:
        load_adapter(decoder, spec.adapter)
    return Trainer(
        decoder,
        examples.prefix,
        examples.examples[:trained],
        examples.examples[trained:],
        options=options,
        folder=folder,
        base_name=base_name,
        fingerprint=examples.fingerprint(),
    )


def _take_up(trainer: Trainer, folder: Path) -> None:
    if not trainer.resume():
        raise OptionError(
            f"{folder} holds no training to go on with.",
            hint="Begin one: resume=False.",
            name="resume",
            value=True,
        )


def _train(trainer: Trainer, spec: ModelSpec, progress: Progress) -> bool:
    """Train with progress shown; returns whether Ctrl-C ended it."""

    def say_that_it_stops() -> None:
        progress.note("Stopping after one last check; press Ctrl-C again to leave that out.", model=spec.key)

    with (
        progress.stage(
            f"{spec.key}: tune", total=trainer.steps, unit="steps", model=spec.key, initial=trainer.step
        ) as stage,
        stop_on_interrupt(say_that_it_stops) as stop,
    ):
        trainer.run(stop, lambda: _show_step(trainer, stage))
        stage.unit = "steps"
    return stop.is_set()


def _show_step(trainer: Trainer, stage: Stage) -> None:
    minutes = trainer.left_s / 60
    stage.total = trainer.planned_steps
    stage.unit = f"steps, {minutes:.0f} min left" if minutes >= 1 else "steps, less than a minute left"
    stage.advance(1)


def _scored(
    result: TuneResult,
    pairs: Sequence[Pair],
    *,
    base: str | Path,
    recipe: Recipe,
    progress: Show,
    offline: bool | None,
) -> TuneResult:
    """The result with its scores; Ctrl-C leaves them out."""
    try:
        scores = compare(pairs, result.folder, base=base, recipe=recipe, progress=progress, offline=offline)
    except KeyboardInterrupt:
        return replace(result, stopped=True)
    return replace(result, scores=scores)

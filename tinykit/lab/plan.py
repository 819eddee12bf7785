"""What a run is to do: cases × variants × repeats, as data that can be stored and sent to other processes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from tinykit.errors import OptionError
from tinykit.generation.batch import DEFAULT_BATCH_SIZE
from tinykit.generation.request import checked_switch
from tinykit.lab.cases import case_fields
from tinykit.lab.datasets import Case
from tinykit.lab.names import unknown
from tinykit.many import checked_count
from tinykit.plurals import counted
from tinykit.recipes import RECIPES, Recipe, get_recipe

BASELINE = "first-words"
_BLOCK_BATCHES = 4  # batches of one recipe before the next one has its turn, so a partial run can be compared


@dataclass(frozen=True)
class Target:
    """A model, and where and how it is computed; what is None is as a `TinySession` would choose it.

    Attributes:
        name: What it is called in tables; by default made of the rest.
        model, adapter, device, backend, dtype, threads: As for `TinySession`.
    """

    model: str | None = None
    adapter: str | None = None
    device: str | None = None
    backend: str | None = None
    dtype: str | None = None
    threads: int | None = None
    name: str = ""

    @property
    def label(self) -> str:
        """What it is called in tables."""
        parts = [Path(self.model).name if self.model else "default", self.dtype, self.device, self.backend]
        if self.adapter:
            parts[0] = f"{parts[0]}+{Path(self.adapter).name}"
        threads = counted(self.threads, "thread") if self.threads else None
        return self.name or " ".join(part for part in (*parts, threads) if part)

    def options(self) -> dict[str, Any]:
        """The arguments of a `TinySession`."""
        return {name: value for name, value in asdict(self).items() if name != "name"}

    @classmethod
    def of(cls, model: Any) -> Self:
        """A target for a model's key or path, or a target as it is."""
        if isinstance(model, cls):
            return model
        if not isinstance(model, str | Path):
            raise OptionError(
                f"A model is a key, a path or a lab.Target, not {model!r}.",
                hint="List the keys with: tinykit models",
                name="models",
                value=model,
            )
        return cls(model=str(model))


@dataclass(frozen=True)
class Variant:
    """One way to make titles: a recipe, with a model unless it needs none."""

    recipe: Recipe
    target: Target | None = None
    name: str = ""

    @property
    def label(self) -> str:
        """What it is called in tables."""
        return self.name or self.recipe.name


@dataclass(frozen=True)
class Cell:
    """One title that is wanted."""

    case: str
    variant: str
    repeat: int


@dataclass(frozen=True)
class Job:
    """Titles of one variant that are made one after the other or in batches; it can be pickled.

    Attributes:
        variant: What makes them.
        cells: The titles that are wanted.
        messages: The messages, one for each cell.
        facts: What the model was found to run on; it is in the rows' keys.
    """

    variant: Variant
    cells: tuple[Cell, ...]
    messages: tuple[str, ...]
    batch_size: int
    exact: bool
    facts: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """Everything that a run needs to know, and to be told from another one."""

    cases: tuple[Case, ...]
    variants: tuple[Variant, ...]
    repeats: int = 1
    batch_size: int = DEFAULT_BATCH_SIZE
    exact: bool = False

    @property
    def targets(self) -> tuple[Target, ...]:
        """The models in the order of their first use."""
        return tuple(dict.fromkeys(variant.target for variant in self.variants if variant.target))

    @property
    def size(self) -> int:
        """How many titles are wanted."""
        return len(self.cases) * len(self.variants) * self.repeats

    def variant(self, label: str) -> Variant:
        """The variant of that name.

        Raises:
            OptionError: there is none.
        """
        for variant in self.variants:
            if variant.label == label:
                return variant
        raise unknown("variant", label, [variant.label for variant in self.variants], "The run has no")

    def cells(self, variant: Variant) -> Iterator[Cell]:
        """The titles of a variant, one repeat of all cases after the other."""
        for repeat in range(self.repeats):
            for case in self.cases:
                yield Cell(case.id, variant.label, repeat)

    def jobs(self, target: Target | None, wanted: Iterable[Cell], facts: dict[str, Any]) -> Iterator[Job]:
        """The wanted titles of a model, in an order that shares prompts and lets a partial run be compared.

        Cases come in an order that has nothing to do with their content, in blocks; each variant does the
        whole block, so that its fixed part of the prompt is computed once and kept.
        """
        messages = {case.id: case.message for case in self.cases}
        by_variant: dict[str, list[Cell]] = {}
        for cell in wanted:
            by_variant.setdefault(cell.variant, []).append(cell)
        for cells in by_variant.values():
            cells.sort(key=lambda cell: (cell.repeat, _shuffled(cell.case)))
        size = _BLOCK_BATCHES * max(self.batch_size, 4)
        for start in range(0, max(map(len, by_variant.values()), default=0), size):
            for variant in self.variants:
                cells = by_variant.get(variant.label, [])[start : start + size]
                if cells and variant.target == target:
                    texts = tuple(messages[cell.case] for cell in cells)
                    yield Job(variant, tuple(cells), texts, self.batch_size, self.exact, facts)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the header; the cases have a file of their own."""
        return {
            "variants": [
                {
                    "label": variant.label,
                    "recipe": variant.recipe.to_dict(),
                    "target": asdict(variant.target) if variant.target else None,
                }
                for variant in self.variants
            ],
            "repeats": self.repeats,
            "batch_size": self.batch_size,
            "exact": self.exact,
            "cases": digest([case_fields(case) for case in self.cases]),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any], cases: Sequence[Case]) -> Self:
        """The plan of a header."""
        known = {field.name for field in fields(Target)}
        variants = []
        for value in values["variants"]:
            found = value["target"]
            target = Target(**{k: v for k, v in found.items() if k in known}) if found else None
            variants.append(Variant(Recipe.from_dict(value["recipe"]), target, value["label"]))
        return cls(tuple(cases), tuple(variants), values["repeats"], values["batch_size"], values["exact"])


def digest(values: Any) -> str:
    """One name for plain values."""
    text = json.dumps(values, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def new_plan(
    cases: Sequence[Case],
    recipes: Any = None,
    models: Any = None,
    *,
    repeats: int = 1,
    batch_size: int = DEFAULT_BATCH_SIZE,
    exact: bool = False,
    baseline: bool = True,
) -> Plan:
    """The plan for recipes with models; a recipe that needs none comes once.

    Raises:
        OptionError: two variants or two models have the same name, or a number is out of its range.
    """
    checked_switch(baseline, "baseline")
    variants = _variants(_listed(recipes), [Target.of(model) for model in _listed(models)] or [Target()])
    if baseline and not any(variant.recipe.method == BASELINE for variant in variants):
        variants.insert(0, Variant(RECIPES[BASELINE]))
    _check_names(variants)
    return Plan(
        tuple(cases),
        tuple(replace(variant, name=variant.label) for variant in variants),
        checked_count(repeats, "repeats"),
        checked_count(batch_size, "batch_size"),
        checked_switch(exact, "exact"),
    )


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    is_one = isinstance(given, str | Path | Recipe | Variant | Target) or not isinstance(given, Iterable)
    return [given] if is_one else list(given)


def _variants(recipes: list[Any], targets: list[Target]) -> list[Variant]:
    found = []
    for given in recipes or [None]:
        if isinstance(given, Variant):
            found.append(given)
            continue
        if given is None:
            found += [Variant(_natural_recipe(target), target) for target in targets]
            continue
        recipe = get_recipe(given)
        if recipe.method != "model":
            found.append(Variant(recipe))
        else:
            found += [Variant(recipe, target) for target in targets]
    return _named(found)


def _natural_recipe(target: Target) -> Recipe:
    """The recipe that a session of this model would use."""
    from tinykit.session import TinySession

    return TinySession(lazy=True, **target.options()).recipe


def _named(variants: list[Variant]) -> list[Variant]:
    """Variants with the model in their name, where there is more than one."""
    targets = {variant.target for variant in variants if variant.target}
    if len(targets) < 2:
        return variants
    return [
        v
        if v.name or v.target is None
        else Variant(v.recipe, v.target, f"{v.recipe.name} @ {v.target.label}")
        for v in variants
    ]


def _check_names(variants: Sequence[Variant]) -> None:
    seen: dict[str, Variant] = {}
    for variant in variants:
        if variant.label in seen:
            raise OptionError(
                f"Two variants are called {variant.label!r}.",
                hint="Give the recipes names of their own, or use lab.Variant(recipe, target, name).",
                name="recipes",
                value=variant.label,
            )
        seen[variant.label] = variant


def _shuffled(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()

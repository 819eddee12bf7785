"""Cases: messages with what is known about a good title."""

import dataclasses
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tinykit.errors import OptionError


@dataclass(frozen=True)
class Case:
    """A first message of a chat, and what a good title for it must hold.

    Attributes:
        id: Unique name.
        message: The message as its author wrote it.
        category: Kind of message: coding, data, writing, everyday, long, multilingual, none, adversarial.
        language: BCP-47 tag.
        tags: What is special about it.
        references: Titles that a demanding person would be pleased with.
        keywords: Groups of alternatives; a faithful title has one of every group.
        expect_none: Whether the right answer is no title.
    """

    id: str
    message: str
    category: str = ""
    language: str = ""
    tags: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    keywords: tuple[tuple[str, ...], ...] = ()
    expect_none: bool = False


def titles() -> list[Case]:
    """The 160 title cases that come with tinykit."""
    text = (resources.files("tinykit.lab") / "data" / "titles.jsonl").read_text(encoding="utf-8")
    return _parse(text, "titles.jsonl")


def load(path: str | Path) -> list[Case]:
    """Cases from a file with one JSON object a line; only `id` and `message` must be there.

    Raises:
        OptionError: A line is no case, or an id comes twice.
    """
    return _parse(Path(path).read_text(encoding="utf-8"), str(path))


def _parse(text: str, origin: str) -> list[Case]:
    cases: dict[str, Case] = {}
    # not splitlines, which would also split at characters that JSON allows inside a string
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            case = _case(line, f"{origin}, line {number}")
            if case.id in cases:
                raise OptionError(
                    f"{origin}, line {number}: the id {case.id!r} comes twice.", name="id", value=case.id
                )
            cases[case.id] = case
    return list(cases.values())


def _case(line: str, where: str) -> Case:
    try:
        values = json.loads(line)
        fields = {name: _frozen(value) for name, value in values.items()}
        case = Case(**fields)
    except (ValueError, TypeError, AttributeError) as error:
        known = ", ".join(field.name for field in dataclasses.fields(Case))
        raise OptionError(
            f"{where} is no case: {error}.",
            hint=f"A case has the fields {known}.",
            name="case",
            value=line[:200],
        ) from error
    for name in ("id", "message"):
        if not isinstance(getattr(case, name), str):
            raise OptionError(f"{where}: {name} must be text.", name=name, value=getattr(case, name))
    return case


def _frozen(value: Any) -> Any:
    return tuple(_frozen(inner) for inner in value) if isinstance(value, list) else value

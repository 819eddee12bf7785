"""Cases out of what users have: texts, chats, a table, a file, an export of an app.

An id that is not given is made from the message, so the same message has the same id in every run, wherever
it stands in its list.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinykit.errors import OptionError
from tinykit.lab.datasets import Case
from tinykit.rows import read_rows
from tinykit.tokenizer import Message
from tinykit.tune.exports import chat_title, first_message, is_chat

_KNOWN = {field.name for field in dataclasses.fields(Case)}
_ID_DIGITS = 10
_LISTS = ("tags", "references", "keywords")


def read_cases(source: Any, *, message: str = "message", titles_count: bool = True) -> list[Case]:
    """Cases from a list, a DataFrame, a file or a chat export.

    Args:
        source: In a list: texts, `Case`s, dicts with a `message` and whatever else a `Case` has,
            ``(message, title)``, chats of an export, or lists of turns (``role`` and ``content``), of which
            the first user message counts. Or a DataFrame of pandas or polars, or the path of a JSONL, CSV or
            JSON file with the same. In a table `tags` and `references` may be texts with ``|`` between them.
        message: The column or field that holds the message, if it is called otherwise.
        titles_count: Whether a `title` counts as a reference; a title that is None (null, or an empty cell of
            a CSV file) then says that no title is right.

    Raises:
        OptionError: something in it is no case, or an id comes twice. The message names the row.
    """
    cases: dict[str, Case] = {}
    given: set[str] = set()
    for number, row in enumerate(read_rows(source, columns=(message,)), start=1):
        fields = _fields(row, number, message, titles_count)
        if fields is None:
            continue
        name = fields.get("id")
        if name is not None:
            if name in given:
                raise OptionError(
                    f"Row {number}: the id {name!r} comes twice.",
                    hint="An id must be unique; without ids they are made from the messages.",
                    name="id",
                    value=name,
                )
            given.add(name)
        case = Case(**{**fields, "id": name if name is not None else _new_id(fields["message"], cases)})
        cases[case.id] = case
    if not cases:
        raise OptionError(
            "There are no cases.", hint="Give at least one message.", name="cases", value=source
        )
    return list(cases.values())


def write_cases(cases: Iterable[Case], path: str | Path) -> None:
    """Write cases as JSON lines, as `read_cases` and `lab.datasets.load` read them."""
    Path(path).write_bytes(b"".join(json_bytes(case_fields(case)) for case in cases))


def json_bytes(values: Any, *, indent: int | None = None) -> bytes:
    """Values as a line of JSON, or as several; lone surrogates, which have no bytes in UTF-8, as escapes."""
    try:
        return json.dumps(values, ensure_ascii=False, indent=indent).encode("utf-8") + b"\n"
    except UnicodeEncodeError:
        return json.dumps(values, indent=indent).encode("ascii") + b"\n"


def case_fields(case: Case) -> dict[str, Any]:
    """A case as plain values; fields that say nothing are left out."""
    return {
        name: value for name, value in dataclasses.asdict(case).items() if value or name in ("id", "message")
    }


def message_id(message: str) -> str:
    """The id of a message that has none: a digest of its text."""
    return "m-" + hashlib.sha256(message.encode("utf-8", "surrogatepass")).hexdigest()[:_ID_DIGITS]


def _new_id(message: str, taken: Mapping[str, Case]) -> str:
    first = name = message_id(message)
    number = 1
    while name in taken:  # the same message again
        number += 1
        name = f"{first}-{number}"
    return name


def _fields(row: Any, number: int, message: str, titles_count: bool) -> dict[str, Any] | None:
    """What a row says of a case; None for a chat in which no user says anything."""
    if isinstance(row, str):
        return {"message": row}
    if isinstance(row, Case):
        return {field: getattr(row, field) for field in _KNOWN}
    if isinstance(row, Mapping):
        if is_chat(row) and message not in row:
            return _of_chat(row, titles_count)
        return _of_mapping(row, number, message, titles_count)
    if isinstance(row, Sequence) and row and all(map(_is_turn, row)):
        turns = [turn._asdict() if isinstance(turn, Message) else turn for turn in row]
        text = first_message({"messages": turns})
        return None if text is None else {"message": text}
    if isinstance(row, Sequence) and not isinstance(row, bytes) and len(row) == 2:
        return _of_mapping({message: row[0], "title": row[1]}, number, message, titles_count)
    raise _no_case(number, f"is {str(row)[:60]!r}")


def _is_turn(value: object) -> bool:
    return isinstance(value, Message) or (isinstance(value, Mapping) and "role" in value)


def _of_chat(chat: Mapping[str, Any], titles_count: bool) -> dict[str, Any] | None:
    text, title = first_message(chat), chat_title(chat)
    if text is None:
        return None
    fields: dict[str, Any] = {"message": text}
    if isinstance(chat.get("id"), str):
        fields["id"] = chat["id"]
    if titles_count and title is not None:
        fields["references"] = (" ".join(title.split()),)
    return fields


def _of_mapping(row: Mapping[str, Any], number: int, message: str, titles_count: bool) -> dict[str, Any]:
    if message not in row:
        raise _no_case(number, f"has the fields {', '.join(map(str, row))}, but no {message!r}")
    text = row[message]
    if not isinstance(text, str):
        raise _no_case(number, f"has a {message} that is {type(text).__name__}, not text")
    fields: dict[str, Any] = {"message": text}
    for name in _KNOWN - {"id", "message"}:
        if name in row and row[name] is not None:
            fields[name] = _value(name, row[name], number)
    if row.get("id") is not None:
        fields["id"] = str(row["id"])
    if titles_count and "title" in row and "references" not in fields:
        fields |= _of_title(row["title"], number)
    return fields


def _of_title(title: object, number: int) -> dict[str, Any]:
    if title is None:
        return {"expect_none": True}
    if not isinstance(title, str):
        raise _no_case(number, f"has a title that is {type(title).__name__}, not text")
    return {"references": (" ".join(title.split()),)} if title.strip() else {}


def _value(name: str, value: Any, number: int) -> Any:
    if name == "expect_none":
        return _flag(value, number)
    if name not in _LISTS:
        return str(value)
    if isinstance(value, str):
        value = _listed(value)
    if not isinstance(value, Sequence):
        raise _no_case(number, f"has {name} that are {type(value).__name__}, not a list")
    if name == "keywords":
        groups = ([group] if isinstance(group, str) else group for group in value)
        return tuple(tuple(map(str, group)) for group in groups)
    return tuple(map(str, value))


def _flag(value: object, number: int) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    if value in (0, 1):  # also numpy's
        return bool(value)
    raise _no_case(number, f"has an expect_none that is {value!r}, not true or false")


def _listed(text: str) -> list[Any]:
    """A list out of a table's cell: as JSON, or with bars between its items."""
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except ValueError:
            pass
        else:
            return list(found)
    return [part.strip() for part in text.split("|") if part.strip()]


def _no_case(number: int, what: str) -> OptionError:
    return OptionError(
        f"Row {number} {what}; a case has a message.",
        hint=f"A case may have the fields {', '.join(sorted(_KNOWN))}.",
        name="cases",
        value=number,
    )

"""How results look in a notebook: plain text and HTML with the same facts, the fleeting ones as metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tinykit.generation.result import Completion
from tinykit.markup import Bundle, Table, block, bundle, note
from tinykit.plurals import counted

if TYPE_CHECKING:
    from tinykit.session import TinySession
    from tinykit.titling import Title

_NO_TITLE = "(no title)"


def title_view(title: Title, *, why: bool = False, stats: bool = False, **facts: Any) -> Bundle:
    """A title, or that there is none and why; on request its steps and its tokens and seconds.

    Args:
        title: What to show.
        why: Also show the steps from the reply to the title.
        stats: Also show tokens and seconds.
        facts: More for the metadata.
    """
    shown = title.text if title.text is not None else _NO_TITLE
    notes = []
    if title.error is not None:
        notes.append(f"(failed: {title.error})")
    elif title.text is None and title.why and not why:
        notes.append(title.why[-1].reason.explanation)
    if why:
        notes += [f"reply: {title.raw!r}" if title.raw else "The model was not asked.", title.explain()]
    if stats:
        notes.append(title_stats(title))
    completion = title.completion
    more = {
        "recipe": title.recipe,
        "why": [step.reason.value for step in title.why],
        "usage": asdict(title.usage) if title.usage else None,
        "timings": asdict(completion.timings) if completion else None,
    }
    return bundle("\n".join([shown, *notes]), block(shown) + "".join(map(_lines, notes)), more | facts)


def title_stats(title: Title) -> str:
    """What a title cost, in one line."""
    if title.completion is None:
        return f"recipe {title.recipe}, no model was asked"
    return f"recipe {title.recipe}, {title.completion.stats}"


def completion_view(completion: Completion, *, stats: bool = False, **facts: Any) -> Bundle:
    """An answer, that it is not whole if so, and on request its tokens and seconds."""
    notes = [completion.note] if completion.note else []
    if stats:
        notes.append(completion.stats)
    text = "\n".join([part for part in (completion.text, *notes) if part])
    return bundle(text, block(completion.text) + "".join(map(note, notes)), completion.facts | facts)


def _lines(text: str) -> str:
    return "".join(map(note, text.splitlines()))


def titles_table(
    messages: Iterable[object], titles: Sequence[Title], *, why: bool = False, stats: bool = False
) -> Table:
    """Messages and their titles side by side."""
    header = ["message", "title"] + ["why"] * why + ["seconds"] * stats
    rows = []
    for message, title in zip(messages, titles, strict=True):
        row = [short(message), title.text if title.text is not None else _none_text(title)]
        if why:
            row.append(", ".join(step.reason.value for step in title.why) or "-")
        if stats:
            row.append(f"{title.completion.timings.total_s:.3f}" if title.completion else "-")
        rows.append(row)
    got = sum(title.text is not None for title in titles)
    return Table.of(
        f"{got} of {counted(len(titles), 'message')} {'has' if got == 1 else 'have'} a title",
        header,
        rows,
        {3} if why else {2},
    )


def _none_text(title: Title) -> str:
    reason = title.why[-1].reason.value if title.why else "failed"
    return f"(no title: {reason})"


def completions_table(
    prompts: Iterable[object], completions: Sequence[Completion], *, stats: bool = False
) -> Table:
    """Prompts and their answers side by side."""
    header = ["prompt", "answer", *(["tokens", "seconds"] if stats else [])]
    rows = []
    for prompt, one in zip(prompts, completions, strict=True):
        row = [short(prompt), "\n".join(part for part in (one.text, one.note) if part)]
        if stats:
            row += [str(one.usage.completion_tokens), f"{one.timings.total_s:.3f}"]
        rows.append(row)
    whole = sum(not one.note for one in completions)
    return Table.of(f"{counted(len(completions), 'answer')}, {whole} of them whole", header, rows, {2, 3})


def short(message: object, chars: int = 80) -> str:
    """A message, or the last one of a chat, in one line."""
    if isinstance(message, list | tuple) and message:
        last = message[-1]
        message = last.get("content", last) if isinstance(last, Mapping) else last
    text = " ".join(str(message).split())
    return text if len(text) <= chars else text[: chars - 1] + "…"


def session_view(session: TinySession) -> Bundle:
    """A session's model and what it runs on; threads, memory and seconds are metadata."""
    rows = [("model", session.spec.key)]
    facts: dict[str, Any] = {"model": session.spec.key}
    loaded = session._shown_model()
    if loaded is None:
        rows.append(("state", "closed" if session._is_closed else "not loaded"))
    else:
        info = loaded.info
        instead = "" if loaded.asked in ("auto", info.device) else f", not {loaded.asked}"
        rows += [
            ("state", session._loaded_where),
            ("precision", info.dtype),
            ("device", info.device + instead),
            ("backend", info.backend),
        ]
        rows += [(f"not on {failure.device}", failure.reason) for failure in getattr(loaded, "failures", ())]
        facts |= {"threads": info.threads, "weights_bytes": info.weights_bytes, "load_s": loaded.load_s}
    rows.append(("titles by", session.recipe.name))
    table = Table.of("TinySession", ("what", "value"), rows)
    return bundle(table.text(), table.html(), facts)

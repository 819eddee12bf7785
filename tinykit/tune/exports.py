"""First messages and titles out of chat exports.

Three shapes are known: ``{"title", "messages": [{"role", "content"}]}``; the same one level down under
``"chat"``, as Open WebUI exports it; and ChatGPT's ``{"title", "mapping"}``, a tree of messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_UNNAMED = frozenset({"", "new chat", "new conversation", "untitled", "untitled chat"})


def is_chat(value: object) -> bool:
    """Whether a value looks like one chat of an export."""
    return isinstance(value, Mapping) and any(name in value for name in ("messages", "mapping", "chat"))


def first_exchange(chat: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first user message of a chat and its title; None if there is no message, or no real title."""
    message, title = first_message(chat), chat_title(chat)
    return None if message is None or title is None else (message, title)


def first_message(chat: Mapping[str, Any]) -> str | None:
    """The first user message of a chat that is not blank."""
    return next((text for text in _user_texts(_inner(chat)) if text.strip()), None)


def chat_title(chat: Mapping[str, Any]) -> str | None:
    """The title of a chat, if somebody or something gave it one."""
    title = chat.get("title") or _inner(chat).get("title")
    return title if isinstance(title, str) and title.strip().casefold() not in _UNNAMED else None


def _inner(chat: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = chat.get("chat")
    return inner if isinstance(inner, Mapping) else chat


def _user_texts(chat: Mapping[str, Any]) -> Iterator[str]:
    messages = chat.get("messages")
    turns = messages if isinstance(messages, list) else _tree_turns(chat.get("mapping"))
    for turn in turns:
        if isinstance(turn, Mapping) and _role(turn) == "user":
            yield _text(turn.get("content"))


def _role(turn: Mapping[str, Any]) -> object:
    author = turn.get("author")
    return author.get("role") if isinstance(author, Mapping) else turn.get("role")


def _text(content: object) -> str:
    """The text of a message, which may come in parts; images and files in it are left out."""
    if isinstance(content, Mapping):
        content = content.get("parts", content.get("text", ""))
    if isinstance(content, list):
        texts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _tree_turns(mapping: object) -> Iterable[object]:
    """The messages of a tree, each before its answers, the first branch first."""
    if not isinstance(mapping, Mapping):
        return
    nodes = {name: node for name, node in mapping.items() if isinstance(node, Mapping)}
    waiting = [name for name, node in nodes.items() if node.get("parent") not in nodes][::-1]
    seen: set[object] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in nodes:
            continue
        seen.add(name)
        yield nodes[name].get("message")
        waiting += list(nodes[name].get("children") or ())[::-1]

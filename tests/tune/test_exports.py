import json

import pytest

from tinykit.recipes import RECIPES
from tinykit.tune.exports import first_exchange, is_chat
from tinykit.tune.pairs import checked_pairs, read_pairs


def turn(role, content):
    return {"role": role, "content": content}


def node(parent, children, role=None, text=""):
    message = (
        {"author": {"role": role}, "content": {"content_type": "text", "parts": [text]}} if role else None
    )
    return {"message": message, "parent": parent, "children": children}


TREE = {
    "title": "Flaky test",
    "mapping": {
        "d": node("c", [], "assistant", "answer"),
        "c": node("b", ["d"], "user", "fix my test"),
        "b": node("a", ["c", "e"], "system", ""),
        "e": node("b", [], "user", "another branch"),
        "a": node(None, ["b"]),
    },
}
MESSAGES = [
    turn("system", "be nice"),
    turn("user", "fix my test"),
    turn("assistant", "ok"),
    turn("user", "no"),
]

CHATS = {
    "plain": {"title": "Flaky test", "messages": MESSAGES},
    "Open WebUI": {"id": "1", "title": "Flaky test", "chat": {"title": "x", "messages": MESSAGES}},
    "title inside": {"chat": {"title": "Flaky test", "messages": MESSAGES}},
    "ChatGPT": TREE,
    "parts": {"title": "Flaky test", "messages": [turn("user", [{"type": "text", "text": "fix my test"}, {"type": "image_url"}])]},
    "empty turn first": {"title": "Flaky test", "messages": [turn("user", " "), *MESSAGES]},
}  # fmt: skip


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
def test_first_user_message_and_title_are_found(chat):
    assert is_chat(chat)
    assert first_exchange(chat) == ("fix my test", "Flaky test")


NOTHING = {
    "no user": {"title": "a", "messages": [turn("assistant", "hello")]},
    "new chat": {"title": "New chat", "messages": MESSAGES},
    "no title": {"title": None, "messages": MESSAGES},
    "no messages": {"title": "a", "messages": []},
    "messages of no kind": {"title": "a", "messages": "text"},
    "tree of no kind": {"title": "a", "mapping": ["x"]},
    "circle": {"title": "a", "mapping": {"x": node("y", ["y"]), "y": node("x", ["x"])}},
}


@pytest.mark.parametrize("chat", NOTHING.values(), ids=NOTHING)
def test_chat_without_message_or_title_gives_nothing(chat):
    assert first_exchange(chat) is None


def test_export_file_gives_pairs_and_says_what_it_left_out(tmp_path):
    chats = [{"title": f"Task {i} done", "messages": [turn("user", f"do task {i}")]} for i in range(25)]
    path = tmp_path / "export.json"
    path.write_text(json.dumps([*chats, *NOTHING.values()]), encoding="utf-8")
    assert [pair.title for pair in read_pairs(path)] == [chat["title"] for chat in chats]
    found = checked_pairs(path, RECIPES["titles"])
    assert found.left_out == {"chats without a title": len(NOTHING)}

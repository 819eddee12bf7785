"""TAB behind the magics, as the shell's own completer answers."""

import pytest

from tinykit.magics.completion import candidates


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("%title --s", ["--stats", "--show"]),
        ("%title --st", ["--stats"]),
        ("%%title --wh", ["--why"]),
        ("x = %title --wh", ["--why"]),
        ("%tiny --max", ["--max-tokens"]),
        ("%title -r first", ["first-words"]),
        ("%title --stats -r ", ["plain", "titles", "first-words"]),
        ("%title -m smollm2-135m-", ["smollm2-135m-titles"]),
        ("%tiny use smollm2-135m", ["smollm2-135m-titles", "smollm2-135m"]),
        ("%tiny use qwen3-0", ["qwen3-0.6b"]),
        ("%tiny use x -d webg", ["webgpu"]),
        ("%tiny mod", ["models"]),
        ("%tiny recipe p", ["plain"]),
        ("%title -o ", []),
        ("%title a message --st", ["--stats"]),
        ("%title a message", []),
        ("%title", None),
        ("print(1)", None),
        ("%timeit x", None),
        ("%tinyness --s", None),
    ],
    ids=repr,
)
def test_what_may_stand_there(before, expected):
    assert candidates(before) == expected


def test_all_options_or_commands_are_offered_for_an_empty_word():
    assert {"--stats", "-m", "use", "doctor"} <= set(candidates("%tiny "))
    assert "use" not in candidates("%tiny --stats ")
    assert "--max-tokens" not in candidates("%title ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("%title --sta", ["--stats"]),
        ("%title -m smollm2-135m-t", ["smollm2-135m-titles"]),
        ("%tiny use lfm2.5-2", ["lfm2.5-230m"]),
        ("x = %title -r fir", ["first-words"]),
        ("%tiny use llama3.2:1", ["llama3.2:1b"]),
    ],
)
def test_shell_completes_whole_words(shell, text, words):
    assert shell.complete(text) == words


def test_shell_completes_where_nothing_was_typed(shell):
    assert "first-words" in shell.complete("%title -r ")

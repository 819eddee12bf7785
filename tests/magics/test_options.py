"""Options of magics as a table of lines (detail 6 of the notebook's rules)."""

import pytest

from tinykit.errors import OptionError
from tinykit.magics.options import OPTIONS, MagicOptions, help_text, options_of, parse

SCHEMA = {"type": "object"}
NAMES = {"n": 7, "model": "qwen3-0.6b", "schema": SCHEMA, "text": "a -m b", "none": None}


@pytest.mark.parametrize(
    ("magic", "line", "options", "text"),
    [
        ("title", "why is it slow", {}, "why is it slow"),
        ("title", "  spaces   stay  inside ", {}, "spaces   stay  inside"),
        ("title", "-m smollm2-135m plan it", {"model": "smollm2-135m"}, "plan it"),
        ("title", "--model=smollm2-135m plan it", {"model": "smollm2-135m"}, "plan it"),
        ("title", "-d cpu --dtype q8 x", {"device": "cpu", "dtype": "q8"}, "x"),
        ("title", "-r first-words don't panic", {"recipe": "first-words"}, "don't panic"),
        ("title", "--why --stats x --why", {"why": True, "stats": True}, "x --why"),
        ("title", "-o t --show x", {"output": "t", "show": True}, "x"),
        ("title", "-- -m is an option of git", {}, "-m is an option of git"),
        ("title", "-5 degrees outside", {}, "-5 degrees outside"),
        ("title", "- a list item", {}, "- a list item"),
        ("title", "{{text}} and more", {}, "{{text}} and more"),
        ("title", "-m {{ model }} x", {"model": "qwen3-0.6b"}, "x"),
        ("tiny", "--max-tokens 5 hi", {"max_tokens": 5}, "hi"),
        ("tiny", "--max-tokens {{n}} hi", {"max_tokens": 7}, "hi"),
        ("tiny", "--seed 3 --temperature 0.5 hi", {"seed": 3, "temperature": 0.5}, "hi"),
        ("tiny", "--system 'Be brief.' hi", {"system": "Be brief."}, "hi"),
        ("tiny", "--system \"Say 'yes'\" hi", {"system": "Say 'yes'"}, "hi"),
        ("tiny", "--system {{text}} hi", {"system": "a -m b"}, "hi"),
        ("tiny", "--schema {{schema}} hi", {"schema": SCHEMA}, "hi"),
        ("tiny", "--chat talk hi", {"chat": "talk"}, "hi"),
        ("tiny", "-h", {"help": True}, ""),
        ("tiny", "", {}, ""),
        ("tiny_eval", "-r titles,plain", {"recipe": "titles,plain"}, ""),
    ],
    ids=str,
)
def test_line_is_options_and_then_text(magic, line, options, text):
    assert parse(line, magic, NAMES) == (MagicOptions(**options), text)


@pytest.mark.parametrize(
    ("magic", "line", "message", "hint"),
    [
        ("title", "--stat x", "Unknown option '--stat' of %title", "Did you mean --stats?"),
        ("tiny", "--maxtokens 5 x", "Unknown option '--maxtokens'", "Did you mean --max-tokens?"),
        ("title", "--max-tokens 5 x", "Unknown option '--max-tokens' of %title", "It is an option of %tiny."),
        ("tiny", "--why x", "Unknown option '--why' of %tiny", "It is an option of %title."),
        ("title", "-q x", "Unknown option '-q'", "What follows -- is text."),
        ("title", "-m", "-m needs a value: -m MODEL", None),
        ("title", "-m --why x", "-m needs a value", None),
        ("title", "--why=yes x", "--why takes no value", None),
        ("title", "-m a --model b x", "--model is given twice", None),
        ("title", "--show x", "--show goes with -o NAME", None),
        ("title", "-o 2x y", "-o must be a name for a variable, not '2x'", None),
        ("title", "-o class y", "-o must be a name", None),
        ("tiny", "--max-tokens many x", "--max-tokens must be a whole number, not 'many'", None),
        ("tiny", "--temperature hot x", "--temperature must be a number", None),
        ("tiny", "--schema no-such-file.json x", "must be a file with a JSON schema", None),
        ("title", "-d {{n}} x", "-d must be text, not 7", None),
        ("title", "-m {{none}} x", "-m must be text, not None", None),
        ("title", "-m {{modell}} x", "there is no variable 'modell'", "Did you mean 'model'?"),
    ],
    ids=str,
)
def test_wrong_option_is_said_with_the_nearest_right_one(magic, line, message, hint):
    with pytest.raises(OptionError) as caught:
        parse(line, magic, NAMES)
    assert message in str(caught.value)
    assert hint is None or hint in caught.value.hint


def test_schema_is_read_from_a_file(tmp_path):
    (tmp_path / "a schema.json").write_text('{"type": "object"}')
    options, _ = parse(f'--schema "{tmp_path}/a schema.json" x', "tiny", {})
    assert options.schema == '{"type": "object"}'


@pytest.mark.parametrize("magic", ["title", "tiny", "tiny_eval"])
def test_help_names_every_option(magic):
    text = help_text(magic, "usage")
    for option in OPTIONS:
        assert (option.flags[-1] in text) == (option in options_of(magic))

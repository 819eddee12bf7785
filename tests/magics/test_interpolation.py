"""``{{name}}``, strictly (detail 7 of the notebook's rules)."""

from types import SimpleNamespace

import numpy as np
import pytest

from tinykit.errors import OptionError
from tinykit.generation.result import Completion
from tinykit.magics.interpolation import filled, value_of

CALLS = []


def call():
    CALLS.append(1)
    return "called"


NAMES = {
    "message": "fix the login",
    "row": SimpleNamespace(text="a row", _secret="no"),
    "items": ["zero", "one"],
    "by": {"key": {"a b": "deep"}},
    "number": 3,
    "none": None,
    "raw": b"bytes",
    "array": np.array(["x"]),
    "answer": Completion.nothing(),
    "call": call,
    "braces": "{{message}}",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("{{message}}!", "fix the login!"),
        ("{{ message }} {{message}}", "fix the login fix the login"),
        ("{{row.text}}.", "a row."),
        ("{{items[0]}} {{items[-1]}}", "zero one"),
        ("{{by['key'][\"a b\"]}}.", "deep."),
        ("{{number}}.", "3."),
        ("<{{answer}}>", "<>"),
        ("{{braces}} once", "{{message}} once"),
        ("{{'{{'}}x}}", "{{x}}"),
        ('{"a": {"b": [1, {}]}}', '{"a": {"b": [1, {}]}}'),
        ("costs $5, {x} and ${y}, f'{z}'", "costs $5, {x} and ${y}, f'{z}'"),
        ("}} {{message}} {", "}} fix the login {"),
    ],
    ids=str,
)
def test_two_braces_are_a_variable_and_the_rest_is_text(text, expected):
    assert filled(text, NAMES) == expected


def test_json_goes_through_byte_for_byte():
    text = '{\n "properties": {"kind": {"enum": ["bug", "idea"]}},\n\t"x": "$HOME {message}"}'
    assert filled(text, NAMES) == text


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("{{mesage}}", "there is no variable 'mesage'", "Did you mean 'message'?"),
        ("{{row.txt}}", "there is no attribute 'txt'", "Did you mean 'text'?"),
        ("{{by['kee']}}", "there is no item 'kee'", "Did you mean 'key'?"),
        ("{{items[7]}}", "there is no item '7'", None),
        ("{{number[0]}}", "there is no item '0'", None),
        ("{{call()}}", "is not the name of a variable", None),
        ("{{message.upper()}}", "is not the name of a variable", None),
        ("{{message + 'x'}}", "is not the name of a variable", None),
        ("{{items[number]}}", "is not the name of a variable", None),
        ("{{items[0:1]}}", "is not the name of a variable", None),
        ("{{items[True]}}", "is not the name of a variable", None),
        ("{{row._secret}}", "is not the name of a variable", None),
        ("{{row.__class__}}", "is not the name of a variable", None),
        ("{{(lambda: 1)}}", "is not the name of a variable", None),
        ("{{}}", "is not the name of a variable", "{{'{{'}}"),
        ("{{a b}}", "is not the name of a variable", None),
        ("{{none}} x", "is None, which is no text", None),
        ("{{raw}} x", "is b'bytes', which is no text", None),
        ("{{items}} x", "is a list, which does not fit into a text", "{{items[0]}}"),
        ("{{array}} x", "is a ndarray, which does not fit into a text", "Alone"),
    ],
    ids=str,
)
def test_what_is_not_there_is_an_error_that_names_it(text, message, hint):
    with pytest.raises(OptionError) as caught:
        filled(text, NAMES)
    assert message in str(caught.value)
    assert hint is None or hint in caught.value.hint
    assert not CALLS


def test_placeholder_alone_is_the_object_itself():
    for name in ("items", "none", "array", "answer"):
        assert value_of(f" {{{{{name}}}}} ", NAMES) is NAMES[name]
    assert value_of("{{message}}{{message}}", NAMES) == "fix the loginfix the login"

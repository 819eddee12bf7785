import pytest

from tests.generation import vocabularies
from tinykit.errors import OptionError
from tinykit.generation.constraint import Constraint
from tinykit.generation.gbnf import gbnf_to_lark
from tinykit.generation.grammar import Grammars

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws ( string ":" ws value   # a pair
    ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
MOVES = """root ::= (
    "1. " move " " move "\\n"
    ([1-9] [0-9]? ". " move " " move "\\n")+
)
move ::= (pawn | castle) [+#]?
pawn ::= ([a-h] "x")? [a-h] [1-8] |
  "e.p."
castle ::= "O-O" "-O"?"""
SUM = 'root ::= expr\nexpr ::= term ([-+] term)*\nterm ::= [0-9]+ | "(" expr ")"\n'


@pytest.fixture(scope="module")
def takes():
    pytest.importorskip("llguidance")
    tokenizer = vocabularies.byte_level()
    grammars = Grammars(tokenizer, (0, 2), 384)

    def takes(grammar, text):
        matcher = grammars.matcher(Constraint.gbnf(grammar))
        for index in tokenizer.encode(text):
            if not matcher.allowed()[index]:
                return False
            matcher.accept(index)
        return bool(matcher.allowed()[0])

    return takes


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (JSON, ["{}", '{"a": [1, 2, {"b": null}]}', '{"a": 1.5, "\\u00e9":"x"}', '{"a":\n\t"b"}'], ["[1]", '{"a": 1', '{"a":}', '{"a": 01}']),
        (MOVES, ["1. e4 e5\n2. e5 O-O-O#\n", "1. axb8 e.p.\n2. O-O e4\n"], ["1. e4 e5\n", "1. e9"]),
        (SUM, ["1+(2-3)+45", "7"], ["1+", "(1", "1+()"]),
        ('root ::= "a" root | "b"', ["aab", "b"], ["a", "ba"]),
        ('root ::= root "a" | "b"', ["baa"], ["ab"]),
        ('root ::= [a-z]* "end"', ["enxend", "end"], ["en"]),
        ('root ::= "\\u00e9" [ぁ-ゟ]+ "\\U0001F600" "\\x41"', ["éぁあ😀A"], ["é😀A"]),
        ('root ::= "x"*', ["", "xxx"], ["y"]),
        ('root ::= | "x"', ["", "x"], ["xx"]),
        ("root ::= [^a-c\\]-]", ["d", "日", "\n"], ["a", "]", "-"]),
        ("root ::= [a-]", ["a", "-"], ["b"]),
        ("root ::= .{2,3}", ["a\n", "日本語"], ["a", "abcd"]),
        ('root ::= "a"{2}{2}', ["aaaa"], ["aa"]),
        ('root ::= ("a" | "b" "c")+ # end', ["abc", "bcbc"], ["ab"]),
        ('root ::= fooBar foo-Bar\nfooBar ::= "a"\nfoo-Bar ::= "b"', ["ab"], ["ba"]),
        ('root ::= "/" "\\"" "\\\\"', ['/"\\'], ["/"]),
    ],
    ids=range(16),
)  # fmt: skip
def test_texts_of_a_grammar(takes, grammar, good, bad):
    for text in good:
        assert takes(grammar, text), text
    for text in bad:
        assert not takes(grammar, text), text


@pytest.mark.parametrize(
    ("grammar", "match"),
    [
        ("", "line 1, column 1: no rule 'root'"),
        ('root := "a"', "line 1, column 6: ':' where '::=' after 'root' is expected"),
        ('root ::= "a', "line 1, column 10: a text that is not closed"),
        ("root ::= [a", "column 10: a class that is not closed"),
        ("root ::= [z-a]", "column 10: a class that goes from 'z' down to 'a'"),
        ("root ::= []", "an empty class"),
        ("root ::= foo", "line 1, column 10: no rule 'foo'"),
        ('root ::= ("a"', "a '\\(' that is not closed"),
        ('root ::= "a")', "'\\)' where the end of the line is expected"),
        ('root ::= "a"{3,1}', "numbers from 0 to 10,000 in order"),
        ('root ::= "a"{99999}', "numbers from 0 to 10,000"),
        ('root ::= "a"{x}', "a repetition such as"),
        ('root ::= "\\q"', "a known escape"),
        ('root ::= "\\ud800"', "which is no character"),
        ('root ::= "\\UFFFFFFFF"', "which is no character"),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 1: a second rule 'root'"),
        ('root ::= "a" |\n | ]', "line 2, column 4: ']' where"),
        ("root ::= !<x>", "exclude a token by its number"),
        ("root ::= <x", "a token such as"),
        ("root ::= " + "(" * 200, "more than 100 brackets"),
    ],
)
def test_invalid_grammar_says_where(grammar, match):
    with pytest.raises(OptionError, match=match) as caught:
        gbnf_to_lark(grammar)
    assert (caught.value.name, caught.value.value) == ("gbnf", grammar)


def test_what_does_not_refer_to_itself_is_one_word():
    assert gbnf_to_lark('root ::= a "b"\na ::= "c"').splitlines()[0] == "start: W_0"


def test_words_are_bounded():
    lines = ["root ::= r0", *(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(100)), 'r100 ::= "ab"']
    written = gbnf_to_lark("\n".join(lines))
    assert "start: r_0" in written
    assert "W_101: " in written
    assert len(written) < 10_000


def test_tokens():
    assert "<[12]> <think> <[^3]>" in gbnf_to_lark("root ::= <[12]> <think> !<[3]>")

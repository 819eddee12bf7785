import json
import re
import subprocess
import sys
import threading

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models

from tests.generation import vocabularies
from tinykit.errors import BackendError, MissingPackageError, OptionError, UnsupportedModelError
from tinykit.generation.constraint import Constraint
from tinykit.generation.grammar import Grammars
from tinykit.tokenizer import Tokenizer

pytest.importorskip("llguidance")

SIZE = 400  # logits have room for more than the 384 tokens
EOS = vocabularies.EOS
CONTROL = (0, 1, 2, 3)
few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Both:
    """A tokenizer and its grammars."""

    def __init__(self, tokenizer, size=SIZE, eos=EOS):
        self.tokenizer = tokenizer
        self.texts = tokenizer.token_bytes()
        self.grammars = Grammars(tokenizer, eos, size)

    def matcher(self, constraint):
        return self.grammars.matcher(constraint)

    def shown(self, ids):
        return {self.texts[index].decode("utf-8", "replace") for index in ids}

    def next_texts(self, matcher):
        return self.shown(i for i in np.flatnonzero(matcher.allowed()) if i not in EOS)

    def takes(self, constraint, text):
        """Whether a text is allowed token by token, and may end there."""
        matcher = self.matcher(constraint)
        for index in self.tokenizer.encode(text):
            if not matcher.allowed()[index]:
                return False
            matcher.accept(index)
        return bool(matcher.allowed()[EOS[0]])


@pytest.fixture(scope="module")
def bytes_():
    return Both(vocabularies.byte_level())


BYTES = Both(vocabularies.byte_level())
PIECES = Both(vocabularies.sentencepiece(), size=len(vocabularies.sentencepiece().token_bytes()))


def walk(data, both, constraint, steps=200):
    """Random allowed tokens to an end of text; forced ones are taken now and then. Returns the text, or None."""
    matcher, ids = both.matcher(constraint), []
    for step in range(steps):
        allowed = [int(i) for i in np.flatnonzero(matcher.allowed())]
        ends = [i for i in allowed if i in EOS]
        assert ends in ([], list(EOS))
        assert not set(allowed) & (set(CONTROL[:3]) - set(EOS))
        assert matcher.is_finished == (allowed == ends)
        if ends and (allowed == ends or step > steps // 2 or data.draw(st.integers(0, 3)) == 0):
            matcher.accept(data.draw(st.sampled_from(ends)))
            assert matcher.is_finished
            return both.tokenizer.decode(ids)
        more = [i for i in allowed if i not in EOS]
        forced = matcher.forced()
        if forced:
            said = b"".join(both.texts[i] for i in forced)
            for index in allowed:
                text = both.texts[index]
                assert said.startswith(text) or text.startswith(said)
        taken = forced if forced and data.draw(st.booleans()) else [data.draw(st.sampled_from(more))]
        for index in taken:
            matcher.accept(index)
            ids.append(index)
    return None


literals = st.sampled_from(["a", "b", "yes", "no", "é", "日本", " ", "12", r"\.", "-", "/", "x y"])
# no \d: which digits there are depends on the version of Unicode
classes = st.sampled_from(["[ab]", "[a-z]", "[^a]", "[0-9]", "[é日]", "[A-Z0-9_]", r"[\[\]]"])
finite = st.recursive(
    literals | classes,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        inner.map(lambda one: f"(?:{one})?"),
        inner.map(lambda one: f"(?:{one}){{1,3}}"),
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("both", [BYTES, PIECES], ids=["bytes", "pieces"])
@few
@given(pattern=finite, data=st.data())
def test_any_allowed_path_matches_the_regex(both, pattern, data):
    text = walk(data, both, Constraint.regex(pattern))
    if both is PIECES and text is not None and not re.fullmatch(pattern, text):
        text = " " + text  # its decoder drops a space at the beginning
    assert text is not None
    assert re.fullmatch(pattern, text)


@few
@given(pattern=finite, data=st.data())
def test_what_matches_the_regex_is_allowed(pattern, data):
    text = data.draw(
        st.from_regex(pattern, fullmatch=True, alphabet=st.characters(exclude_categories=["Cs"]))
    )
    ascii_digits = pattern.replace(r"\d", "[0-9]")
    if re.fullmatch(ascii_digits, text):
        assert BYTES.takes(Constraint.regex(pattern), text)


@pytest.mark.parametrize("both", [BYTES, PIECES], ids=["bytes", "pieces"])
@few
@given(
    choices=st.lists(st.text('ab /\\"[.|é日\n-', min_size=1, max_size=6), min_size=1, max_size=5),
    data=st.data(),
)
def test_any_allowed_path_is_one_of_the_choices(both, choices, data):
    text = walk(data, both, Constraint.choices(choices))
    assert text in choices or (both is PIECES and f" {text}" in choices)


values = st.none() | st.booleans() | st.integers(-99, 99) | st.text('ab"\\é\n', max_size=4)
schemas = st.recursive(
    st.one_of(
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.just({"type": "integer", "minimum": -5, "maximum": 120}),
        st.just({"type": "integer"}),
        st.integers(0, 5).map(lambda n: {"type": "string", "maxLength": n}),
        st.just({"type": "string", "pattern": "^[a-c]{1,3}$"}),
        st.lists(values, min_size=1, max_size=3).map(lambda some: {"enum": some}),
        values.map(lambda one: {"const": one}),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.integers(0, 2)).map(lambda t: {"type": "array", "items": t[0], "maxItems": t[1]}),
        st.tuples(
            st.dictionaries(st.sampled_from(["a", "b b", "é", "type", "required"]), inner, max_size=3),
            st.booleans(),
        ).map(lambda t: {"type": "object", "properties": t[0], "required": list(t[0]) if t[1] else []}),
        st.tuples(inner, inner).map(lambda two: {"anyOf": list(two)}),
    ),
    max_leaves=4,
)


@pytest.mark.parametrize("both", [BYTES, PIECES], ids=["bytes", "pieces"])
@few
@given(schema=schemas, data=st.data())
def test_any_allowed_path_fits_the_schema(both, schema, data):
    constraint = Constraint.json_schema(schema)
    text = walk(data, both, constraint)
    assert text is not None
    value = constraint.parse(text)
    jsonschema.validate(value, schema)
    assert json.dumps(value, ensure_ascii=False).count("\n") == 0


@few
@given(pattern=finite, data=st.data())
def test_rollback_restores_what_was_allowed(pattern, data):
    matcher = BYTES.matcher(Constraint.regex(pattern))
    masks = [matcher.allowed().copy()]
    while not matcher.is_finished and len(masks) < 12:
        matcher.accept(int(data.draw(st.sampled_from(list(np.flatnonzero(masks[-1]))))))
        masks.append(matcher.allowed().copy())
    while len(masks) > 1:
        count = data.draw(st.integers(0, len(masks) - 1))
        matcher.rollback(count)
        del masks[len(masks) - count :]
        assert (matcher.allowed() == masks[-1]).all()
        matcher.forced()  # looks ahead and must leave no trace
        assert (matcher.allowed() == masks[-1]).all()
        if count == 0:
            break


def test_end_is_allowed_exactly_where_a_choice_ends(bytes_):
    matcher = bytes_.matcher(Constraint.choices(["yes", "yes, sure", "no"]))
    for letter in "yes":
        assert not matcher.allowed()[list(EOS)].any()
        matcher.accept(bytes_.tokenizer.encode(letter)[0])
    assert matcher.allowed()[list(EOS)].all()
    assert not matcher.is_finished
    assert bytes_.next_texts(matcher) == {","}
    matcher.accept(EOS[1])
    assert matcher.is_finished
    assert list(np.flatnonzero(matcher.allowed())) == list(EOS)
    with pytest.raises(BackendError, match="does not fit the choices constraint after 'yes'"):
        matcher.accept(EOS[0])
    matcher.rollback(1)
    assert not matcher.is_finished


def test_room_of_the_logits_beyond_the_tokens_is_never_allowed(bytes_):
    mask = bytes_.matcher(Constraint.regex(r"(?s:.)*")).allowed()
    assert mask.shape == (SIZE,)
    assert not mask[384:].any()
    assert not mask[[1, 3]].any()
    assert mask[list(EOS)].all()
    assert mask.sum() > 200
    with pytest.raises(ValueError, match="read-only"):
        mask[1] = True


def test_model_without_an_end_finishes_where_nothing_more_can_come():
    both = Both(vocabularies.byte_level(), eos=())
    matcher = both.matcher(Constraint.regex("ab"))
    for index in both.tokenizer.encode("ab"):
        assert not matcher.is_finished
        matcher.accept(index)
    assert matcher.is_finished
    assert not matcher.allowed().any()
    assert Both(vocabularies.byte_level(), eos=(9999, -1)).matcher(Constraint.regex("a|ab")).allowed().any()


def test_fewer_logits_than_tokens():
    both = Both(vocabularies.byte_level(), size=300)
    assert both.matcher(Constraint.regex(".*")).allowed().shape == (300,)


SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["title", "n"],
}


def test_forced_tokens_are_those_of_the_tokenizer(bytes_):
    matcher = bytes_.matcher(Constraint.json_schema(SCHEMA))
    forced = matcher.forced()
    said = bytes_.tokenizer.decode(forced)
    assert '{"title": "'.startswith(said)
    assert len(said) > 8
    assert forced == bytes_.tokenizer.encode(said)
    for index in forced:
        matcher.accept(index)
    assert matcher.forced() == []  # never twice, and the last one is left to the model


def test_forced_to_the_end(bytes_):
    matcher = bytes_.matcher(Constraint.json_schema({"const": {"café": [1, None]}}))
    text = '{"café": [1, null]}'
    assert matcher.forced() == bytes_.tokenizer.encode(text)
    for index in matcher.forced():
        matcher.accept(index)
    assert matcher.is_finished
    assert matcher.forced() == []


def test_nothing_is_forced_where_the_text_may_end(bytes_):
    matcher = bytes_.matcher(Constraint.choices(["a", "abc"]))
    matcher.accept(bytes_.tokenizer.encode("a")[0])
    assert matcher.forced() == []


def test_json_is_written_as_json_dumps_writes_it(bytes_):
    constraint = Constraint.json_schema(SCHEMA)
    assert bytes_.takes(constraint, '{"title": "é \\n", "n": -12}')
    assert not bytes_.takes(constraint, '{"title":"é", "n": 1}')
    assert not bytes_.takes(constraint, '{"title": "é",  "n": 1}')
    assert not bytes_.takes(constraint, '{"title": "é", "n": 1, "more": 2}')
    assert not bytes_.takes(constraint, '{"n": 1, "title": "é"}')
    assert not bytes_.takes(constraint, '{"title": "é", "n": 1234567890123456}')


def test_extra_keys_come_if_the_schema_says_so(bytes_):
    constraint = Constraint.json_schema({**SCHEMA, "additionalProperties": {"type": "null"}})
    assert bytes_.takes(constraint, '{"title": "é", "n": 1, "more": null}')


def test_pydantic_class_comes_back_as_its_object(bytes_):
    class Tag(BaseModel):
        name: str

    class Note(BaseModel):
        title: str
        tags: list[Tag] = []

    constraint = Constraint.json_schema(Note)
    text = '{"title": "x", "tags": [{"name": "y"}]}'
    assert bytes_.takes(constraint, text)
    assert constraint.parse(text) == Note(title="x", tags=[Tag(name="y")])


def test_pieces_begin_without_their_space():
    matcher = PIECES.matcher(Constraint.choices(["yes", "no"]))
    ids = {PIECES.texts[i] for i in np.flatnonzero(matcher.allowed())}
    assert {b" yes", b"yes", b" no", b"no"} <= ids
    spaced = PIECES.texts.index(b" yes")
    assert PIECES.tokenizer.decode([spaced]) == "yes"
    matcher.accept(spaced)
    assert matcher.is_finished
    matcher.rollback(1)
    matcher.accept(PIECES.texts.index(b" no"))
    assert matcher.is_finished


def test_token_bytes_are_what_llguidance_says():
    for both in (BYTES, PIECES):
        both.matcher(Constraint.regex("a"))
        words = both.grammars._words
        for index, text in enumerate(both.texts):
            assert words.bytes_of(index) == text or text == b"\xff", index  # 255 is in no text


@pytest.mark.real
def test_real_vocabulary(real_session):
    engine = real_session.load().engine
    both = Both(engine.tokenizer, size=engine.backend.info.vocab_size, eos=sorted(engine.eos_ids))
    matcher = both.matcher(Constraint.json_schema(SCHEMA))
    words = both.grammars._words
    assert all(words.bytes_of(index) == text or text == b"\xff" for index, text in enumerate(both.texts))
    assert both.tokenizer.decode(matcher.forced()) == '{"title":'
    for index in both.tokenizer.encode('{"title": "Fix the café bug", "n": 12}'):
        assert matcher.allowed()[index]
        matcher.accept(index)
    assert matcher.is_finished


INVALID = [
    (Constraint.regex("a("), r"The regex 'a\(' is not valid at character 2: unclosed group"),
    (Constraint.regex("ab(?=c)"), "at character 3: look-around"),
    (Constraint.regex(r"(a)\1"), "at character 4: backreferences are not supported"),
    (Constraint.regex(r"a\bc"), "lookarounds not supported"),
    (Constraint.regex("x\\"), "ends with a backslash"),
    (Constraint.regex("[z-a]"), "at character 2: invalid character class range"),
    (Constraint.regex(r"[^\s\S]"), "allows no text at all"),
    (Constraint.lark('start: "a"\n  | | )\n'), "The Lark grammar is not valid at line 2, column 7: expecting"),
    (Constraint.lark("start: missing"), "line 1, column 8: unknown name: \"missing\""),
    (Constraint.lark('other: "a"'), "no start rule"),
    (Constraint.lark("start: /a(/"), "line 1, column 8: unclosed group"),
    (Constraint.lark("start: start"), "allows no text at all"),
    (Constraint.lark(""), "not valid"),
    (Constraint.json_schema({"type": "text"}), "The JSON schema is not valid: Invalid type: text"),
    (Constraint.json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
    (Constraint.json_schema({"type": "integer", "minimum": 5, "maximum": 3}), "greater than maximum"),
    (Constraint.json_schema({"$ref": "#/nowhere"}), "not valid"),
    (Constraint.json_schema({"$ref": "#"}), "allows no text at all"),
    (Constraint.gbnf('root ::= "a'), "line 1, column 10: a text that is not closed"),
]  # fmt: skip


@pytest.mark.parametrize(("constraint", "match"), INVALID, ids=[c.text[:20] for c, _ in INVALID])
def test_invalid_grammar_says_what_and_where(bytes_, constraint, match):
    with pytest.raises(OptionError, match=match) as caught:
        bytes_.matcher(constraint)
    assert caught.value.name == constraint.kind
    assert "llguidance {" not in str(caught.value)
    assert len(str(caught.value)) < 400


def doubled(n, rule):
    return "\n".join([f"start: {rule}0", *(f"{rule}{i}: {rule}{i + 1} {rule}{i + 1}" for i in range(n)), f'{rule}{n}: "ab"'])  # fmt: skip


def chained(n, rule):
    return "\n".join(
        [f"start: {rule}0", *(f"{rule}{i}: {rule}{i + 1}" for i in range(n)), f'{rule}{n}: "ab"']
    )


TOO_LARGE = [
    ("words_doubled", Constraint.lark(doubled(40, "R"))),
    ("chain", Constraint.lark(chained(5000, "r"))),
    ("chain_of_words", Constraint.lark(chained(5000, "R"))),
    ("brackets", Constraint.lark("start: " + "(" * 5000)),
    ("regex_brackets", Constraint.regex("(" * 5000 + "a" + ")" * 5000)),
    ("references", Constraint.json_schema({"$ref": "#/$defs/r0", "$defs": {f"r{i}": {"$ref": f"#/$defs/r{i + 1}"} for i in range(1500)}})),
    ("gbnf_brackets", Constraint.gbnf("root ::= " + "(" * 5000)),
    ("deep_schema", Constraint.json_schema('{"items":' * 800 + "{}" + "}" * 800)),
]  # fmt: skip


@pytest.mark.parametrize("constraint", [c for _, c in TOO_LARGE], ids=[name for name, _ in TOO_LARGE])
def test_too_large_grammar_is_an_error_not_a_hang(bytes_, constraint):
    with pytest.raises(OptionError, match=r"too complex|nest|within each other") as caught:
        bytes_.matcher(constraint)
    assert len(str(caught.value)) < 400


ENDLESS = [
    ("a_million", Constraint.regex("a{1000}{1000}")),
    ("rules_doubled", Constraint.lark(doubled(200, "r"))),
    ("for_ever", Constraint.lark('start: "ab" start')),
    ("json_for_ever", Constraint.json_schema({"type": "object", "properties": {"ab": {"$ref": "#"}}, "required": ["ab"]})),
    ("gbnf_words_doubled", Constraint.gbnf("root ::= r0\n" + "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(200)) + 'r200 ::= "ab"')),
]  # fmt: skip


@pytest.mark.parametrize("constraint", [c for _, c in ENDLESS], ids=[name for name, _ in ENDLESS])
def test_endless_forced_text_comes_in_bounded_parts(bytes_, constraint):
    matcher = bytes_.matcher(constraint)
    for _ in range(3):
        forced = matcher.forced()
        assert 0 < len(forced) <= 64
        for index in forced:
            matcher.accept(index)
    assert not matcher.is_finished


def test_deep_grammar_compiles_in_a_thread_with_a_small_stack(bytes_):
    """Where rules lie a thousand deep the stack must not overflow, which would end the process."""
    code = (
        "import threading\n"
        "from tests.generation import vocabularies\n"
        "from tinykit.generation.constraint import Constraint\n"
        "from tinykit.generation.grammar import Grammars\n"
        "text = 'start: r0\\n' + ''.join(f'r{i}: \"a\" (\"x\" (r{i+1} | \"b\")?)*\\n' for i in range(900)) + 'r900: \"ab\"'\n"
        "grammars = Grammars(vocabularies.byte_level(), (0, 2), 384)\n"
        "def work():\n"
        "    print(grammars.matcher(Constraint.lark(text)).allowed().any())\n"
        "threading.stack_size(512 * 1024)\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start()\n"
        "thread.join()\n"
        "assert threading.stack_size() == 512 * 1024\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout.strip()) == (0, "True"), run.stderr


def test_token_that_does_not_fit_changes_nothing(bytes_):
    matcher = bytes_.matcher(Constraint.regex("ab"))
    wrong = bytes_.tokenizer.encode("z")[0]
    for index in (wrong, EOS[0], 1, 399, 10**6, -1):
        with pytest.raises(BackendError, match="does not fit"):
            matcher.accept(index)
    assert bytes_.next_texts(matcher) >= {"a"}
    with pytest.raises(ValueError, match="2 tokens"):
        matcher.rollback(2)


def test_lark_may_ask_for_control_tokens(bytes_):
    matcher = bytes_.matcher(Constraint.lark('start: <|im_start|> "a" | "b"'))
    assert matcher.allowed()[1]
    assert matcher.forced() == []
    matcher.accept(1)
    assert bytes_.next_texts(matcher) == {"a"}


def test_compiled_grammars_are_kept_and_independent(bytes_):
    first = bytes_.matcher(Constraint.regex("ab"))
    first.accept(bytes_.tokenizer.encode("a")[0])
    second = bytes_.matcher(Constraint.regex("ab"))
    assert "a" in bytes_.next_texts(second)
    assert bytes_.next_texts(first) == {"b"}
    for number in range(40):
        bytes_.matcher(Constraint.regex(f"x{number}"))
    assert len(bytes_.grammars._compiled) == 32


def test_several_threads_get_their_own_matchers(bytes_):
    found = []

    def work(number):
        matcher = bytes_.matcher(Constraint.choices([f"t{number}", "other"]))
        for index in bytes_.tokenizer.encode(f"t{number}"):
            matcher.accept(index)
        found.append(matcher.is_finished)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 8


def test_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingPackageError, match="constraints") as caught:
        Grammars(vocabularies.byte_level(), EOS, SIZE).matcher(Constraint.regex("a"))
    assert "tinykit[grammar]" in caught.value.hint


def test_unknown_kind_of_tokenizer_is_an_error():
    raw = RawTokenizer(models.WordPiece(vocab={"a": 0, "##b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    with pytest.raises(UnsupportedModelError, match="tokenizer"):
        Grammars(Tokenizer(raw, {}, None), (2,), 3).matcher(Constraint.regex("a"))

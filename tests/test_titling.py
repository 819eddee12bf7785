import dataclasses

import numpy as np
import pytest

from tests import tiny_models as tiny
from tests.generation.test_engine import tokenizer
from tinykit import titles, titling
from tinykit.backends.scripted import ScriptedBackend
from tinykit.generation.engine import Engine
from tinykit.reasons import Reason
from tinykit.recipes import RECIPES, Recipe

MESSAGE = "the login test is flaky on slow CI runners since we moved to Node 18, can you fix it?"
RECIPE = dataclasses.replace(RECIPES["titles"], max_tokens=60, min_words=2, branches=0)
IM_START, IM_END = 1, 2


class Ranked(ScriptedBackend):
    """Prefers the first answer, and after a beginning that it did not choose the first that goes on from there."""

    def __init__(self, answers, tokenizer):
        super().__init__(self.rank, vocab_size=len(tiny.VOCABULARY))
        self.answers = [[*tokenizer.encode(f"{answer}</title>"), IM_END] for answer in answers]
        self.start = tokenizer.encode("<title>")

    def rank(self, ids):
        logits = np.zeros(len(tiny.VOCABULARY), np.float32)
        starts = [i for i in range(len(ids)) if ids[i : i + len(self.start)] == self.start]
        if not starts:  # a long prompt goes in by pieces
            return logits
        begun = ids[starts[-1] + len(self.start) :]
        for rank, answer in enumerate(reversed(self.answers)):
            if answer[: len(begun)] == begun:
                logits[answer[len(begun)]] = 1 + rank
        return logits


def make_title(*answers, message=MESSAGE, **changes):
    text = tokenizer()
    backend = Ranked(answers, text)
    engine = Engine(backend, text, [IM_END], cache_bytes=1 << 20)
    recipe = dataclasses.replace(RECIPE, **changes)
    return titling.model_title(engine, message, recipe, titling.fixed_prefix(text, recipe)), engine


def reasons(title):
    return [step.reason for step in title.why]


def test_true_title_is_taken_as_it_is():
    title, _ = make_title("Flaky login test on slow CI runners")
    assert (title.text, title.why) == ("Flaky login test on slow CI runners", ())
    assert title.recipe == "titles"
    assert title.completion.finish_reason == "stop"


def test_invented_number_is_replaced_where_it_stands():
    title, _ = make_title("Flaky login test on Node 20", "Flaky login test on Node 18")
    assert title.text == "Flaky login test on Node 18"
    assert reasons(title) == [Reason.INVENTED]
    assert title.why[0].before == "Flaky login test on Node 20"


def test_invented_name_at_the_start_is_replaced_too():
    title, _ = make_title("PYTHON3 login test", "Login test on slow runners")
    assert title.text == "Login test on slow runners"
    assert reasons(title) == [Reason.INVENTED]


def test_first_words_stand_in_when_no_answer_is_true():
    title, _ = make_title("Node 20 login", "Node 21 login", "Node 22 login", "Node 23 login", "Node 24 login")
    assert title.text.startswith("The login test is flaky")
    assert reasons(title)[:2] == [Reason.INVENTED, Reason.TOO_SHORT]
    assert Reason.FALLBACK in reasons(title)


def test_without_fallback_the_best_answer_stays():
    title, _ = make_title("Node 20 login", "Node 21 login", fallback="none")
    assert title.text == "Node 20 login"


def test_short_title_goes_on_from_where_it_was_closed():
    title, _ = make_title("Flaky login", "Flaky login test on CI", min_words=5)
    assert title.text == "Flaky login test on CI"
    assert reasons(title) == [Reason.TOO_SHORT]


def test_short_message_needs_no_long_title():
    title, _ = make_title("Login test", "Login test on CI", message="fix login test", min_words=5)
    assert (title.text, title.why) == ("Login test", ())


def test_short_title_that_cannot_go_on_stays():
    title, _ = make_title("Flaky login", min_words=5, candidates=2)
    assert title.text == "Flaky login"
    assert Reason.FALLBACK not in reasons(title)


def test_recipe_with_one_candidate_is_not_checked():
    title, _ = make_title("Flaky login test on Node 20", candidates=1)
    assert title.text == "Flaky login test on Node 20"
    assert title.why == ()


def test_no_title_for_a_short_message_is_believed():
    title, _ = make_title("-", "Something", message="you there my friend ok")
    assert title.text is None
    assert reasons(title) == [Reason.NO_TITLE]


def test_no_title_for_a_long_message_is_not_believed():
    message = f"{MESSAGE} {'It fails about once in ten runs. ' * 5}"
    title, _ = make_title("-", "Flaky login test on CI", message=message)
    assert title.text == "Flaky login test on CI"
    assert reasons(title) == [Reason.NO_TITLE]


def test_answer_that_ends_at_once_is_asked_for_again():
    class Silent(Ranked):
        def rank(self, ids):
            logits = super().rank(ids)
            logits[IM_END] = 50 if ids[-len(self.start) :] == self.start else 0
            return logits

    text = tokenizer()
    engine = Engine(Silent(["Flaky login test on CI"], text), text, [IM_END], cache_bytes=1 << 20)
    title = titling.model_title(engine, MESSAGE, RECIPE, 0)
    assert title.text == "Flaky login test on CI"
    assert reasons(title) == [Reason.EMPTY]


def test_message_is_cut_to_a_small_context():
    text = tokenizer()
    backend = Ranked(["Many words"], text)
    backend.info = dataclasses.replace(backend.info, context_length=600)
    engine = Engine(backend, text, [IM_END], cache_bytes=1 << 20)
    recipe = dataclasses.replace(RECIPES["plain"], system="Title it.")
    title = titling.model_title(engine, "many words " * 400, recipe, 0)
    assert title.text == "Many words"
    assert title.completion.usage.prompt_tokens <= 600 - recipe.max_tokens


def test_prefix_is_computed_once_and_kept():
    title, engine = make_title("Node 20 login", "Node 21 login", "Node 22 login", "Node 23 login")
    prefix = titling.fixed_prefix(engine.tokenizer, RECIPE)
    assert engine.cache.size_bytes == 8 * prefix
    assert title.completion.usage.kv_reused_tokens == 0
    again = titling.model_title(engine, "another message about Node 18", RECIPE, prefix)
    assert again.completion.usage.kv_reused_tokens == prefix > 0


@pytest.mark.parametrize("recipe", ["plain", "titles"])
def test_fixed_prefix_ends_where_the_message_begins(recipe):
    text = tokenizer()
    prefix = titling.fixed_prefix(text, RECIPES[recipe])
    first, second = (
        titling.title_prompt(text, RECIPES[recipe], RECIPES[recipe].template.format(message=m))
        for m in ("one thing", "another")
    )
    assert first[:prefix] == second[:prefix]
    assert RECIPES[recipe].system in text.decode(first[:prefix])


def test_blank_system_text_is_left_out():
    recipe = Recipe(name="r", system="  ", template="{message}", prefill="<title>")
    ids = titling.title_prompt(tokenizer(), recipe, "hi")
    assert ids.count(IM_START) == 2
    assert np.array(ids[1:5]).tolist() == tokenizer().encode("user")


class Torn(Ranked):
    """As `Ranked`, but nearly as likely to say any of the answers, the first the most."""

    def forward(self, token_ids, state, *, rows=1):
        logits = super().forward(token_ids, state, rows=rows)
        return np.where(logits > 0, logits * np.float32(0.3), np.float32(-50))


def torn_title(*answers, message=MESSAGE, **changes):
    text = tokenizer()
    engine = Engine(Torn(answers, text), text, [IM_END], cache_bytes=1 << 20)
    recipe = dataclasses.replace(RECIPE, **{"branches": 3, **changes})
    return titling.model_title(engine, message, recipe, titling.fixed_prefix(text, recipe)), engine


def test_alternative_that_says_more_is_chosen():
    title, _ = torn_title("Flaky test", "Flaky login test on CI runners")
    assert title.text == "Flaky login test on CI runners"
    assert title.raw == title.text
    assert title.completion.text == "login test on CI runners"  # what came after the branch


def test_letters_that_the_message_has_count_double():
    assert titling._worth("Login test", MESSAGE) == pytest.approx(2 * titling._worth("Maths exam", MESSAGE))
    assert titling._worth("the of and", MESSAGE) == 0


def test_alternative_that_is_not_true_is_passed_over():
    title, _ = torn_title("Flaky login test", "Flaky login test on Node 20 runners")
    assert title.text == "Flaky login test"
    assert reasons(title) == [Reason.INVENTED]


def test_alternative_longer_than_a_title_is_left_out():
    title, _ = torn_title("Flaky login test", "Flaky login test is on slow CI runners since we moved")
    assert (title.text, title.why) == ("Flaky login test", ())


def test_first_answer_is_mended_when_no_alternative_is_true():
    title, _ = torn_title("Node 20 login", "Node 21 login", "Node 18 login test", branches=1)
    assert title.text == "Node 18 login test"
    assert Reason.INVENTED in reasons(title)


def test_no_title_has_no_alternatives():
    title, _ = torn_title("-", "Something else entirely", message="you there my friend ok")
    assert title.text is None
    assert reasons(title) == [Reason.NO_TITLE]


def test_usage_counts_the_prompt_once_and_the_tokens_of_all_answers():
    title, _ = torn_title("Flaky test", "Flaky login test on CI runners")
    usage = title.usage
    assert usage.prompt_tokens < title.completion.usage.prompt_tokens  # which had the beginning too
    assert usage.kv_reused_tokens == 0
    assert usage.completion_tokens > title.completion.usage.completion_tokens
    one, _ = make_title("Flaky login test on slow CI runners")
    assert one.usage == one.completion.usage


def test_later_candidates_reuse_the_whole_prompt():
    title, engine = make_title("Node 20 login", "Node 21 login", "Node 18 login")
    prompt = titling.title_prompt(engine.tokenizer, RECIPE, titles.user_turn(MESSAGE, RECIPE))
    assert title.text == "Node 18 login"
    fed = [len(call) for call in engine.backend.calls]
    assert sum(fed[:2]) == len(prompt)  # in two pieces
    assert max(fed[2:]) <= len(title.raw)
    assert title.usage.completion_tokens > title.completion.usage.completion_tokens


def test_answer_is_over_when_a_stop_text_begins():
    title, engine = torn_title("Flaky login test")
    assert title.completion.token_ids == tuple(engine.tokenizer.encode("Flaky login test<"))
    assert title.text == "Flaky login test"


def test_stop_texts_stay_whole_where_the_message_has_their_beginning():
    message = "why is <b>Login</b> not bold in the header of our login page, the closing tag is there"
    title, _ = torn_title("Login</b> not bold in header", message=message)
    assert title.raw == "Login</b> not bold in header"


def test_first_answer_is_heard_piece_by_piece_and_no_other():
    text = tokenizer()
    engine = Engine(
        Ranked(["Flaky login test on Node 20", "Flaky login test on Node 18"], text),
        text,
        [IM_END],
        cache_bytes=1 << 20,
    )
    heard = []
    prefix_tokens = titling.fixed_prefix(text, RECIPE)
    title = titling.model_title(engine, MESSAGE, RECIPE, prefix_tokens, on_chunk=heard.append)
    assert title.text == "Flaky login test on Node 18"
    assert "".join(heard) == "Flaky login test on Node 20"
    assert len(heard) > 10


@pytest.fixture
def clock(monkeypatch):
    """A clock that forwards move on by a second each."""

    class Clock:
        now_s = 0.0

        def ticking(self, engine):
            forward = engine.backend.forward

            def ticked(*args, **named):
                self.now_s += 1
                return forward(*args, **named)

            engine.backend.forward = ticked
            return engine

    found = Clock()
    monkeypatch.setattr("time.perf_counter", lambda: found.now_s)
    return found


def late_titles(clock, kind, *answers, **changes):
    """What comes of each deadline, from the one that is over to one that is never reached."""
    text = tokenizer()
    recipe = dataclasses.replace(RECIPE, **changes)
    prefix_tokens = titling.fixed_prefix(text, recipe)
    found = []
    for seconds in range(200):
        engine = clock.ticking(Engine(kind(answers, text), text, [IM_END], cache_bytes=1 << 20))
        clock.now_s = 0.0
        title = titling.model_title(engine, MESSAGE, recipe, prefix_tokens, deadline_s=seconds)
        assert clock.now_s <= seconds
        assert not list(engine.slots.items())
        found.append(title)
        if Reason.TIMEOUT not in reasons(title):
            return found
    raise AssertionError("it never came to its end")


def outcomes(found):
    """The different ones, in order."""
    pairs = [(title.text, reasons(title)) for title in found]
    return [pair for pair, before in zip(pairs, [None, *pairs], strict=False) if pair != before]


def test_deadline_leaves_the_answer_that_is_whole(clock):
    answer = "Flaky login test on Node 20"
    found = late_titles(clock, Ranked, answer, "Flaky login test", fallback="none")
    nothing, first, *later = outcomes(found)
    assert nothing == (None, [Reason.TIMEOUT])
    assert first == (answer, [Reason.INVENTED, Reason.TIMEOUT])
    for text, why in later:  # the attempts at a better one, each among the steps once it was whole
        assert text == answer and why[0] is Reason.INVENTED
    assert len(later) > 1 and Reason.TIMEOUT not in later[-1][1]
    assert (found[0].raw, found[0].completion) == ("", None)
    cut = next(title for title in found if title.raw)
    assert "Flaky login test on Node 20".startswith(cut.raw) and cut.completion.cancelled_by == "timeout"
    assert found[0].explain().endswith("No title.") and "time was up" in found[0].explain()


def test_deadline_leaves_the_fallback_where_no_answer_is_whole_or_true(clock):
    found = late_titles(clock, Ranked, "Flaky login test on Node 20", "Flaky login test")
    words = "The login test is flaky on slow"
    nothing, first, *later = [(text, why[: why.index(Reason.FALLBACK)]) for text, why in outcomes(found)]
    assert nothing == (words, [Reason.TIMEOUT])
    assert first == (words, [Reason.INVENTED, Reason.TIMEOUT])
    assert len(later) > 1 and {text for text, _ in later} == {words} and Reason.TIMEOUT not in later[-1][1]


def test_deadline_among_the_alternatives_leaves_the_best_so_far(clock):
    answers = "Flaky test", "Flaky login test on CI runners"
    found = late_titles(clock, Torn, *answers, branches=3, fallback="none")
    assert outcomes(found) == [(None, [Reason.TIMEOUT]), ("Flaky test", [Reason.TIMEOUT]), (answers[1], [])]

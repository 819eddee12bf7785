"""The engine on the embedded model: the ways to ask that must say the same, and an interrupt from outside.

`benchmarks/agreement.py` compares all ways over all title cases.
"""

import os
import subprocess
import sys
import textwrap

import pytest

from tinykit import TinySession
from tinykit.lab import datasets

pytestmark = pytest.mark.real
MESSAGES = [case.message for case in datasets.titles()][:160:40]
CHAT = [{"role": "user", "content": "Name three colors of the rainbow."}]


def test_streamed_cached_and_fresh_answers_are_the_same(real_session):
    for message in MESSAGES:
        called = real_session.complete(message[:200], max_tokens=12)
        stream = real_session.stream(message[:200], max_tokens=12)
        assert "".join(stream) == called.text
        assert stream.result == called
        assert real_session.complete(message[:200], max_tokens=12, reuse=False) == called


def test_exact_titles_equal_titles_one_at_a_time(real_session):
    alone = [real_session.title(message, recipe="titles") for message in MESSAGES]
    assert real_session.titles(MESSAGES, recipe="titles", exact=True) == alone


def test_float_weights_answer_alike_alone_drafted_and_in_a_batch(use_real_home):
    with TinySession("smollm2-135m", dtype="fp32", progress=False) as session:
        prompts = [message[:80] for message in MESSAGES[:3]]
        alone = [session.complete(prompt, max_tokens=10) for prompt in prompts]
        assert session.complete_many(prompts, max_tokens=10) == alone
        assert [session.complete(prompt, max_tokens=10, draft=True) for prompt in prompts] == alone
        assert [session.complete(prompt, max_tokens=10, reuse=False) for prompt in prompts] == alone


def test_samples_are_reproduced_by_their_seeds(real_session):
    found = real_session.complete("Name a fruit.", n=3, temperature=1.0, seed=11, max_tokens=8)
    assert [one.seed for one in found] == [11, 12, 13]
    again = real_session.complete("Name a fruit.", n=3, temperature=1.0, seed=11, max_tokens=8)
    assert again == found


def test_schema_gives_an_object(real_session):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "legs": {"type": "integer"}},
        "required": ["name", "legs"],
        "additionalProperties": False,
    }
    completion = real_session.complete("Describe a spider as JSON.", schema=schema, max_tokens=60)
    assert completion.finish_reason == "stop"
    assert set(completion.parsed) == {"name", "legs"}
    assert isinstance(completion.parsed["legs"], int)


SECOND_PROCESS = """
    import sys
    from tinykit import TinySession

    with TinySession("smollm2-135m", progress=False) as session:
        session.restore_state(sys.argv[1], slot="chat")
        chat = eval(sys.argv[2])
        completion = session.chat(chat, slot="chat", max_tokens=12)
        print(repr((completion.token_ids, completion.usage.kv_reused_tokens)))
"""


def test_saved_chat_goes_on_in_another_process(real_session, use_real_home, tmp_path):
    first = real_session.chat(CHAT, slot="chat", max_tokens=12)
    real_session.save_state(tmp_path / "chat.state", slot="chat")
    turns = [
        *CHAT,
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "And one more?"},
    ]
    expected = real_session.chat(turns, slot="chat", max_tokens=12)
    real_session.free_slot("chat")
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SECOND_PROCESS), str(tmp_path / "chat.state"), repr(turns)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TINYKIT_HOME": str(use_real_home)},
    )
    assert child.stdout.strip() == repr((expected.token_ids, expected.usage.kv_reused_tokens))
    assert expected.usage.kv_reused_tokens > 20


INTERRUPTED = """
    import _thread, threading
    from tinykit import TinySession

    with TinySession("smollm2-135m", progress=False) as session:
        prompt = "Tell me a long story about a fox. " * {times}
        expected = session.complete("Name a color.", max_tokens=5)
        session.complete("Something else entirely.", max_tokens=3)
        threading.Timer({after_s}, _thread.interrupt_main).start()
        try:
            session.complete(prompt, max_tokens=500)
        except KeyboardInterrupt as error:
            print(error.partial.finish_reason, error.partial.cancelled_by)
        print(session.complete("Name a color.", max_tokens=5) == expected)
"""


@pytest.mark.parametrize("times", [2, 300], ids=["decode", "prefill"])
def test_interrupt_leaves_partial_text_and_a_usable_session(use_real_home, times):
    code = textwrap.dedent(INTERRUPTED).format(times=times, after_s=0.3)
    child = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TINYKIT_HOME": str(use_real_home)},
    )
    assert child.stdout.split() == ["cancelled", "interrupt", "True"]


def test_titles_are_the_same_with_and_without_the_beginning_from_disk(use_real_home, monkeypatch):
    found = {}
    for setting in ("0", "1", "1"):  # computed, computed and written unless it was there, read
        monkeypatch.setenv("TINYKIT_KEEP_PREFIXES", setting)
        for message in MESSAGES:
            with TinySession(progress=False) as session:
                result = session.title_result(message)
            known = found.setdefault(message, result)
            assert (result.text, result.raw, result.why) == (known.text, known.raw, known.why)
            if result.completion:
                assert result.completion.token_ids == known.completion.token_ids
    assert any(found[message].completion for message in MESSAGES)
    assert list(use_real_home.glob("models/smollm2-135m-titles/*/prefixes/*.state"))

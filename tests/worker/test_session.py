"""A shared session answers as a session of one's own does, from a process of its own."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from tests.worker.conftest import PATIENCE_S, is_alive, wait_until
from tinykit import ChoiceQuestion, TinySession
from tinykit.errors import (
    BackendError,
    ClosedError,
    ForwardInterrupted,
    ModelFileError,
    OptionError,
    PromptTooLongError,
)
from tinykit.reasons import Reason
from tinykit.recipes import RECIPES
from tinykit.titling import late_title

ONE_WORKER = True  # all tests here ask the same one

MESSAGES = ["why does my docker container exit with code 137", "hi there!", "plan a trip to Lisbon", 5, ""]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, who are you?"}]


def values(completion):
    """All of a completion but its times, and how much of its prompt was known from others."""
    names = "text token_ids finish_reason cancelled_by seed logprobs parsed notes".split()
    usage = replace(completion.usage, kv_reused_tokens=0)
    return {"usage": usage, **{name: getattr(completion, name) for name in names}}


def test_shared_is_a_session_of_its_own_kind(shared):
    assert isinstance(shared, TinySession)
    assert type(shared).__name__ == "SharedSession"
    assert "shared, not loaded" in repr(shared)
    shared.load()
    assert repr(shared) == "<TinySession tiny none on none (scripted), shared>"
    assert shared.info.vocab_size == 261
    assert shared.load_s > 0


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"max_tokens": 0},
        {"temperature": 1.0, "seed": 7, "top_k": 5, "logit_bias": {65: float("-inf"), 66: 2.5}},
        {"stop": ["q"], "logprobs": 3},
        {"draft": (1, 4)},
        {"exact": True, "tokens_per_step": 4},
        {"regex": "[0-9]{4}"},
        {"schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
        {"choices": ["yes", "no"], "slot": "ada"},
    ],
    ids=lambda asked: ",".join(asked) or "plain",
)
def test_completions_are_those_of_a_session_of_ones_own(shared, alone, asked):
    asked = {"max_tokens": 24, **asked}
    assert values(shared.complete("Name a color.", **asked)) == values(
        alone.complete("Name a color.", **asked)
    )
    ours, theirs = shared.stream(CHAT, **asked), alone.stream(CHAT, **asked)
    assert [(piece, piece.token_ids, piece.logprobs, piece.is_last) for piece in ours] == [
        (piece, piece.token_ids, piece.logprobs, piece.is_last) for piece in theirs
    ]
    assert values(ours.result) == values(theirs.result)


def test_everything_else_is_that_of_a_session_of_ones_own(shared, alone):
    def asked(session):
        verified = []
        session.complete("Name a color.", max_tokens=20, draft=True, on_verify=verified.append)
        return [
            session.titles(MESSAGES[:3]),
            [(one.text, one.raw, one.why, str(one.error)) for one in session.title_results(MESSAGES)],
            session.title(CHAT),
            session.title("hi there!"),
            [values(one) for one in session.complete("A name?", n=3, temperature=1.0, seed=4, max_tokens=8)],
            [values(one) for one in session.complete_many(["one", CHAT, "three"], max_tokens=8)],
            [str(one.error) for one in session.complete_many(["one", ""], max_tokens=3)],
            session.choose("Late. The customer is", ["happy", "angry"], calibrate=True),
            session.yes_no("Is this urgent?", "now").probability,
            session.score("How angry?", ["calm", "furious"], "hm").value,
            [replace(one, ttft_s=None) for one in verified],
        ]

    for ours, theirs in zip(asked(shared), asked(alone), strict=True):
        assert ours == theirs


def test_parsed_objects_are_of_the_users_own_class(shared):
    import pydantic

    class Answer(pydantic.BaseModel):
        a: int

    completion = shared.complete("A number?", schema=Answer, max_tokens=40)
    assert completion.finish_reason == "length" or isinstance(completion.parsed, Answer)
    assert completion.parsed is None or completion.parsed.a == json.loads(completion.text)["a"]


def test_errors_are_of_our_classes_with_hint_and_facts(shared):
    with pytest.raises(PromptTooLongError, match="tokens") as caught:
        shared.complete("word " * 5000)
    assert caught.value.hint == "Shorten the text."
    assert caught.value.prompt_tokens > caught.value.context_length
    with pytest.raises(OptionError, match="no judge model"):
        shared.judge("text", {"q": ChoiceQuestion("Which?", ["a", "b"])})
    with pytest.raises(OptionError, match="nonsense"):
        shared.complete("x", nonsense=1)
    with pytest.raises(OptionError, match="slot"):
        shared.save_state("a.state")


def test_errors_of_the_model_reach_the_one_who_asked_and_the_worker_stays(shared, backend):
    assert shared.complete("a", max_tokens=3).text
    pid = shared.worker.pid
    backend.on("fail")
    for _ in range(5):
        with pytest.raises(BackendError, match="told to fail") as caught:
            shared.complete("a", max_tokens=4)
        assert caught.value.hint == "remove the file"
    assert [str(one.error) for one in shared.title_results(["what is a fork bomb"])] == [
        "it was told to fail"
    ]
    backend.off("fail")
    assert shared.complete("a", max_tokens=3).text
    assert shared.worker.pid == pid


def test_two_sessions_use_one_process_and_one_load(shared, backend, options):
    with TinySession(shared=True, **options) as other:
        assert other.complete("a", max_tokens=2) == shared.complete("a", max_tokens=2)
        assert other.worker.pid == shared.worker.pid != os.getpid()
        assert other.worker.clients >= 2
    assert backend.lines("loads") == 0 or backend.lines("loads") == 1
    shared.complete("a", max_tokens=2)  # the worker stays for the others


def test_other_settings_have_another_worker_and_no_fight(shared, options):
    with TinySession(shared=True, **{**options, "dtype": "fp32"}) as other:
        for _ in range(3):
            assert other.complete("a", max_tokens=2) == shared.complete("a", max_tokens=2)
        assert other.worker.pid != shared.worker.pid
        assert is_alive(other.worker.pid) and is_alive(shared.worker.pid)


def test_slots_and_their_files_are_a_clients_own(shared, alone, options, tmp_path):
    turns = [{"role": "user", "content": "a long enough beginning"}]
    first = shared.chat(turns, slot="ada", max_tokens=8)
    turns += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "and?"}]
    size = shared.save_state(tmp_path / "ada.state", slot="ada")
    assert size == (tmp_path / "ada.state").stat().st_size
    assert shared.chat(turns, slot="ada", max_tokens=4).usage.kv_reused_tokens > 0
    with TinySession(shared=True, **options) as other:
        assert not other.free_slot("ada")
        assert other.restore_state(tmp_path / "ada.state", slot=3) > 0
        assert other.chat(turns, slot=3, max_tokens=4).usage.kv_reused_tokens > 0
        assert other.free_slot(3) and not other.free_slot("3")
    assert alone.restore_state(tmp_path / "ada.state", slot="ada") > 0
    (tmp_path / "bad.state").write_bytes(b"nothing")
    with pytest.raises(ModelFileError, match="bad.state"):
        shared.restore_state(tmp_path / "bad.state")


def test_cancel_from_another_thread_returns_what_there_is(shared, backend, in_thread):
    shared.load()
    backend.on("hold")
    call = in_thread(lambda: shared.complete("a", max_tokens=200))
    backend.wait_for("held")
    assert shared.cancel() == 1
    backend.off("hold")
    completion = call.get()
    assert (completion.finish_reason, completion.cancelled_by) == ("cancelled", "cancel")
    assert shared.cancel() == 0
    assert shared.complete("a", max_tokens=3).finish_reason == "length"


def test_cancel_reaches_a_choice(shared, alone, backend, in_thread):
    options = [f"option {number}" for number in range(8)]
    expected = alone.choose("Which?", options)
    shared.load()
    backend.on("hold")
    call = in_thread(lambda: shared.choose("Which?", options))
    backend.wait_for("held")
    assert shared.cancel() == 1
    with pytest.raises(ForwardInterrupted, match="cancelled"):  # though the model stands still
        call.get()
    backend.off("hold")
    assert shared.choose("Which?", options) == expected


def test_leaving_a_stream_cancels_it(shared, backend):
    backend.on("hold-later")  # else all may be there before the reader has come so far
    stream = shared.stream("a", max_tokens=1000)
    for number, _ in enumerate(stream):
        if number == 3:
            break
    stream.close()
    backend.off("hold-later")
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.cancelled_by == "close"
    assert len(stream.result.token_ids) >= 4
    wait_until(lambda: shared.worker.running == 0)


def test_deadline_counts_while_a_request_waits(shared, backend, in_thread):
    shared.load()
    backend.on("hold")
    long = in_thread(lambda: shared.complete("a", max_tokens=3))
    backend.wait_for("held")
    late = shared.complete("b", timeout_s=0.2)  # answered although the model stands still
    assert late.cancelled_by == "timeout" and late.text == ""
    backend.off("hold")
    assert long.get().finish_reason == "length"


def test_deadline_of_titles_and_of_many_answers_counts_while_they_wait(shared, backend, in_thread):
    shared.load()
    backend.on("hold")
    long = in_thread(lambda: shared.complete("a", max_tokens=3))
    backend.wait_for("held")
    recipe = RECIPES["titles"]
    late = [late_title(message, recipe) for message in (MESSAGES[0], MESSAGES[2])]
    found = shared.title_results(MESSAGES, recipe=recipe, timeout_s=0.2)
    assert [found[0], found[2]] == late and late[0].text
    assert [step.reason for one in found[1::2] for step in one.why] == [Reason.NO_TASK, Reason.FAILED]
    assert shared.title_result(MESSAGES[0], recipe=recipe, timeout_s=0.2) == late[0]
    one_by_one = shared.titles_as_done(MESSAGES[:3], recipe=recipe, batch_size=1, timeout_s=0.2)
    assert [(at, title.text) for at, title in one_by_one] == [(0, late[0].text), (1, None), (2, late[1].text)]
    answers = shared.complete_many(["b", "c"], timeout_s=0.2)
    assert [one.cancelled_by for one in answers] == ["timeout"] * 2
    backend.off("hold")
    assert long.get().finish_reason == "length"


def test_title_that_is_under_way_when_its_time_is_up_ends_with_what_there_is(shared, backend, in_thread):
    shared.load()
    backend.on("hold")
    call = in_thread(
        lambda: shared.title_results([MESSAGES[0], MESSAGES[2]], recipe="plain", batch_size=1, timeout_s=0.2)
    )
    backend.wait_for("held")
    time.sleep(0.3)  # until it is late in any case
    backend.off("hold")
    cut, waiting = call.get()
    for title in (cut, waiting):
        assert title.text is None and [step.reason for step in title.why] == [Reason.TIMEOUT]
    assert cut.completion.cancelled_by == "timeout" and waiting.completion is None


@pytest.mark.parametrize("timeout_s", [None, 3600])
def test_titles_in_time_are_those_without_a_deadline(shared, alone, timeout_s):
    expected = alone.titles(MESSAGES[:3], recipe="plain")
    assert shared.titles(MESSAGES[:3], recipe="plain", timeout_s=timeout_s) == expected
    assert shared.title(MESSAGES[0], recipe="plain", timeout_s=timeout_s) == expected[0]


def test_ping_and_status_do_not_wait_for_the_model(shared, backend, in_thread):
    shared.load()
    backend.on("hold")
    call = in_thread(lambda: shared.complete("a", max_tokens=3))
    backend.wait_for("held")
    status = shared.worker
    assert status.running == 1 and status.state == "ready"
    assert status.memory_bytes > 10**6 and status.uptime_s > 0
    backend.off("hold")
    call.get()


def test_prewarm_returns_before_the_worker_is_there(worker_dir, backend, options):
    shared = TinySession(shared=True, lazy=True, **{**options, "threads": 3})  # another worker
    assert shared.worker is None
    shared.prewarm()
    wait_until(lambda: shared.worker is not None)
    assert shared.worker.state == "not loaded"
    assert backend.lines("loads") == 0
    shared.close()


def test_closed_session_says_so_and_leaves_the_worker(shared):
    shared.complete("a", max_tokens=2)
    pid = shared.worker.pid
    shared.close()
    shared.close()
    with pytest.raises(ClosedError):
        shared.complete("a")
    assert is_alive(pid)


def test_unloaded_session_comes_back(shared):
    first = shared.complete("a", max_tokens=3)
    pid = shared.worker.pid
    shared.unload()
    assert shared.complete("a", max_tokens=3) == first
    assert shared.worker.pid == pid


def test_session_of_this_process_has_no_worker(alone):
    assert alone.worker is None
    assert alone.prewarm() is None


CLIENT = """
import sys
from tinykit import TinySession
session = TinySession({model!r}, backend="scripted", shared=True, progress=False)
print(session.title("why does my docker container exit with code 137"))
print(session.complete("a", max_tokens=4).text, session.choose("b", ["x", "y"]))
for piece in session.stream("a", max_tokens=4):
    pass
session.close()
bad = {{"onnxruntime", "tokenizers", "mlx", "torch", "transformers", "onnx", "gguf", "jinja2"}} & set(sys.modules)
assert not bad, bad
print("clean")
"""


def test_no_native_library_is_loaded_in_the_client(shared, model_path):
    shared.load()
    done = subprocess.run(
        [sys.executable, "-c", CLIENT.format(model=str(model_path))],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout.endswith("clean\n"), done.stderr
    assert done.returncode == 0 and done.stderr == ""


INTERRUPTED = """
from tinykit import TinySession
session = TinySession({model!r}, backend="scripted", shared=True, progress=False)
stream = session.stream("a", max_tokens=1024)
try:
    for number, piece in enumerate(stream):
        if number == 2:
            print("begun", flush=True)
            {wait}
except KeyboardInterrupt as error:
    print(len(error.partial.token_ids) > 2, error.partial.cancelled_by)
print(session.complete("a", max_tokens=3).finish_reason)
"""


def test_interrupt_gives_what_there_is_and_the_worker_serves_on(shared, backend, model_path):
    shared.load()
    code = INTERRUPTED.format(
        model=str(model_path), wait=f"open({str(backend.folder / 'hold')!r}, 'w').close()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n"
    backend.wait_for("held")
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "True interrupt\n"
    backend.off("hold")
    assert process.stdout.readline() == "length\n"
    assert process.wait(PATIENCE_S) == 0
    process.stdout.close()
    wait_until(lambda: shared.worker.running == 0)


def test_many_threads_of_one_session_are_answered(shared, alone, in_thread):
    expected = [alone.complete(f"question {number}", max_tokens=6) for number in range(12)]
    gate = threading.Barrier(12, timeout=PATIENCE_S)
    calls = [
        in_thread(lambda number=number: (gate.wait(), shared.complete(f"question {number}", max_tokens=6))[1])
        for number in range(12)
    ]
    assert [call.get() for call in calls] == expected

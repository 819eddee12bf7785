"""Frames as bytes, and requests and results as plain values."""

import json
import math
from dataclasses import replace

import pytest

from tinykit import errors
from tinykit.backends.base import BackendInfo, EncoderInfo
from tinykit.errors import AccessError, ModelFileError, TinykitError, WorkerError
from tinykit.events import ProgressEvent
from tinykit.generation.constraint import Constraint
from tinykit.generation.questions import ChoiceQuestion, ScoreQuestion, YesNoQuestion
from tinykit.generation.request import Draft, GenerationOptions
from tinykit.generation.result import Chunk, Completion, Timings, Usage
from tinykit.generation.sampling import Sampling, TokenLogprob
from tinykit.reasons import Reason, Step
from tinykit.registry import MODELS, get_model
from tinykit.titling import Title
from tinykit.worker import wire
from tinykit.worker.protocol import MAX_FRAME_BYTES, FrameError, Frames, pack

MESSAGES = [{"id": 1, "op": "ping"}, {"text": "naïve 🦊 \ud800", "number": 0.1 + 0.2, "low": -math.inf}, {}]
LOGPROBS = (TokenLogprob(3, -0.1, ((3, -0.1), (4, -2.5))),)
COMPLETION = Completion(
    "text", (3, 4), "stop", Usage(5, 2, 1, 2, 0, 3, 1), Timings(0.1, 0.2, None, 0.4, 0.5),
    cancelled_by=None, seed=7, logprobs=LOGPROBS, notes=("a note",),
)  # fmt: skip


def through(values):
    return json.loads(json.dumps(values))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_messages_come_out_as_they_went_in_however_they_are_cut(size):
    data = b"".join(map(pack, MESSAGES))
    frames, found = Frames(), []
    for start in range(0, len(data), size):
        frames.feed(data[start : start + size])
        while (message := frames.take()) is not None:
            found.append(message)
    assert found == MESSAGES


def test_frame_above_the_limit_is_refused_on_both_sides():
    with pytest.raises(FrameError, match="is the limit") as caught:
        pack({"text": "x" * MAX_FRAME_BYTES})
    assert not caught.value.is_fatal
    frames = Frames(100)
    frames.feed((101).to_bytes(4, "big"))
    with pytest.raises(FrameError, match="101 bytes was announced") as caught:
        frames.take()
    assert caught.value.is_fatal


@pytest.mark.parametrize(
    "body", [b"", b"nope", b"[1]", b"3", b"null", b"\xff\xfe", b"[" * 100_000], ids=range(7)
)
def test_frame_that_is_no_object_is_skipped(body):
    frames = Frames()
    frames.feed(len(body).to_bytes(4, "big") + body + pack({"id": 1}))
    with pytest.raises(FrameError) as caught:
        frames.take()
    assert not caught.value.is_fatal
    assert frames.take() == {"id": 1}


@pytest.mark.parametrize(
    "options",
    [
        GenerationOptions(),
        GenerationOptions(
            7, ("a", "b"), Sampling(temperature=0.7, top_k=3, logit_bias={5: -math.inf}, seed=4),
            Constraint.regex("a+"), Draft(1, 3), 5, 2, 1.5, True, frozenset({9, 8}),
        ),
    ],
    ids=["default", "all"],
)  # fmt: skip
def test_options_come_back_equal(options):
    assert wire.options_of(through(wire.options_values(options))) == options


def test_results_come_back_equal():
    def shown(completion):
        return vars(completion) | {"error": str(completion.error)}

    assert shown(wire.completion_of(through(wire.completion_values(COMPLETION)))) == shown(COMPLETION)
    failed = Completion.nothing(error=ModelFileError("broken", path=None))
    assert shown(wire.completion_of(through(wire.completion_values(failed)))) == shown(failed)
    chunk = Chunk(
        "ab",
        (1, 2),
        logprobs=LOGPROBS,
        drafted_tokens=2,
        accepted_tokens=1,
        correction_token_id=4,
        is_last=True,
    )
    back = wire.chunk_of(through(wire.chunk_values(chunk)))
    assert (back, vars(back)) == (chunk, vars(chunk))
    title = Title(
        "A title", "raw", (Step(Reason.CASING, "a", "A"),), "titles", COMPLETION, None, COMPLETION.usage
    )
    back = wire.title_of(through(wire.title_values(title)))
    assert back == title and shown(back.completion) == shown(COMPLETION)


def test_object_of_a_schema_is_made_where_the_class_is():
    import pydantic

    class Answer(pydantic.BaseModel):
        a: int

    def back(text):
        completion = Completion(text, (), "stop", Usage(1, 1, 0), Timings(0, 0, None, 0, 0))
        return wire.completion_of(through(wire.completion_values(completion)), Constraint.json_schema(Answer))

    assert back('{"a": 3}').parsed == Answer(a=3)
    assert back('{"a": "x"}').parsed is None
    assert "does not meet its constraint" in back('{"a": "x"}').notes[0]


@pytest.mark.parametrize(
    "question",
    [
        ChoiceQuestion("Which?", ["a", "b"]),
        ChoiceQuestion("Which?", {"a": "it is a", "b": None}),
        YesNoQuestion("Is it?"),
        ScoreQuestion("How?", ["low", "high"]),
    ],
    ids=["labels", "rubrics", "yes-no", "score"],
)
def test_questions_come_back_with_the_same_options(question):
    back = wire.question_of(through(wire.question_values(question)))
    assert type(back) is type(question)
    assert (back.text, tuple(back.texts)) == (question.text, tuple(question.texts))


@pytest.mark.parametrize("key", MODELS)
def test_entries_of_models_come_back_equal(key, tmp_path):
    spec = get_model(key)
    assert wire.spec_of(through(wire.spec_values(spec))) == spec


def test_entry_of_a_folder_comes_back_equal(model_path):
    spec = replace(get_model(str(model_path)), adapter=model_path, refusals=(("mlx", "it is too large"),))
    assert wire.spec_of(through(wire.spec_values(spec))) == spec


def test_info_and_events_come_back_equal():
    info = BackendInfo("onnx", "cpu", ("CPU",), "q8", 10, 20, 2, 8, True, False, None, 4, None, 100)
    assert wire.info_of(through(wire.info_values(info))) == info
    judge = EncoderInfo("onnx", "cpu", ("CPU",), "q8", 20, 2)
    assert wire.info_of(through(wire.info_values(judge))) == judge
    event = ProgressEvent("progress_total", "m", "n", loaded_bytes=1, total_bytes=2, files={"a": (1, 2)})
    assert wire.event_of(through(wire.event_values(event))) == event


@pytest.mark.parametrize(
    "kind", [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, TinykitError)]
)
def test_errors_come_back_as_what_they_were(kind, tmp_path):
    error = kind("It broke at 3", hint="Mend it", path=tmp_path, number=3, odd={1j}, name="n")
    error.add_note("and more")
    back = wire.error_of(through(wire.error_values(error)))
    assert type(back) is kind
    assert (str(back), back.hint, back.path, back.number, back.odd) == (
        str(error),
        "Mend it",
        tmp_path,
        3,
        "{1j}",
    )
    assert back.__notes__ == ["Mend it", "and more"]


def test_errors_that_are_not_ours_are_the_workers():
    back = wire.error_of(through(wire.error_values(ZeroDivisionError("by zero"))))
    assert type(back) is WorkerError and str(back) == "The worker failed: ZeroDivisionError: by zero"
    assert type(wire.error_of({"type": "os.system", "message": "no"})) is WorkerError
    assert type(wire.error_of({})) is WorkerError
    assert (
        type(wire.error_of({"type": "AccessError", "message": "no", "facts": {"message": 1}})) is AccessError
    )

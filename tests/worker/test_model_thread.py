"""The thread of the model, run here step by step: batches, turns, slots, deadlines."""

import threading
from contextlib import contextmanager

import pytest

from tests import tiny_judge
from tests.worker.conftest import PATIENCE_S, wait_until
from tinykit import RECIPES, ChoiceQuestion, TinySession
from tinykit.generation.request import GenerationOptions
from tinykit.worker import model_thread, wire
from tinykit.worker.fair_queue import FairQueue
from tinykit.worker.jobs import Job
from tinykit.worker.model_thread import ModelThread

TEXTS = [f"why does build number {number} fail on the runner" for number in range(20)]


class Bench:
    """A model's thread, and what it has sent to whom."""

    def __init__(self, spec, dtype="auto"):
        self.queue, self.sent, self.jobs = FairQueue(), [], []
        self.progress = []
        self.poisoned = threading.Event()
        self.thread = ModelThread(
            spec, {"backend": "scripted", "dtype": dtype}, self.queue,
            on_progress=self.progress.append, on_poisoned=self.poisoned.set,
        )  # fmt: skip

    def ask(self, client, op, **params):
        number = len(self.jobs)
        job = Job(client, {"id": number, "op": op, "params": params}, self.sent.append)
        self.jobs.append(job)
        self.queue.put(client, job)
        return job

    def answer(self, client, text="a", max_tokens=6, **params):
        options = wire.options_values(GenerationOptions(max_tokens, **params.pop("options", {})))
        return self.ask(client, "answer", turns=[["user", text]], options=options, **params)

    def titles(self, client, texts, **params):
        return self.ask(client, "titles", messages=texts, recipe=RECIPES["plain"].to_dict(), **params)

    def run(self):
        """Until everything is answered."""
        with self.running():
            pass

    @contextmanager
    def running(self):
        """While the block lasts, and then until everything is answered."""
        runner = threading.Thread(target=self.thread.run)
        runner.start()
        try:
            yield
            for job in self.jobs:
                wait_until(lambda job=job: job.is_settled)
            wait_until(lambda: not self.thread.jobs)
        finally:
            self.thread.stop()
            runner.join(PATIENCE_S)
        assert not runner.is_alive()

    def result(self, job):
        found = [message for message in self.sent if message["id"] == job.number and "event" not in message]
        assert len(found) == 1
        return found[0].get("error") or found[0]["result"]

    def events(self, kind):
        return [message for message in self.sent if message.get("event") == kind]


@pytest.fixture
def spec(backend, options):
    return TinySession(lazy=True, **options).spec


@pytest.fixture
def bench(backend, spec):
    return Bench(spec)


def test_requests_that_wait_together_share_their_steps_and_get_what_each_gets_alone(bench, alone):
    jobs = [bench.answer(client, text) for client, text in enumerate(TEXTS)]
    bench.run()
    for job, text in zip(jobs, TEXTS, strict=True):
        found = wire.completion_of(bench.result(job)["completion"])
        expected = alone.complete(text, max_tokens=6)
        assert found == expected and found.usage.completion_tokens == expected.usage.completion_tokens
    rows = [len(call) for call in bench.thread.loaded.engine.backend.batch_calls]
    assert max(rows) == 16


def test_titles_of_two_clients_are_made_in_turns(bench, alone):
    many, few = bench.titles(1, TEXTS[:12], batch_size=2), bench.titles(2, TEXTS[:2], batch_size=2)
    bench.run()
    order = [message["id"] for message in bench.sent if message.get("event") == "part" or "result" in message]
    assert order.index(few.number) < 4
    last_of_few = max(at for at, number in enumerate(order) if number == few.number)
    assert order[last_of_few:].count(many.number) > 4
    assert bench.result(many) == bench.result(few) == {}
    found = {
        message["part"]: wire.title_of(message["title"]).text
        for message in bench.events("part")
        if message["id"] == many.number
    }
    assert [found[part] for part in range(12)] == alone.titles(TEXTS[:12], recipe="plain")


def test_one_slot_is_used_by_one_request_at_a_time_and_in_order(bench):
    jobs = [bench.answer(1, text, slot="ada") for text in TEXTS[:3]]
    bench.answer(2, TEXTS[0], slot="ada")
    bench.run()
    ends = [message["id"] for message in bench.sent if "event" not in message and message["id"] in {0, 1, 2}]
    assert ends == [job.number for job in jobs]


def test_drafts_and_models_that_cannot_batch_have_streams_of_their_own(backend, spec, alone):
    bench = Bench(spec, dtype="fp32")
    jobs = [
        bench.answer(1, TEXTS[0]),
        bench.answer(2, TEXTS[1], options={"draft": True}),
        bench.titles(3, TEXTS[:3]),
        bench.answer(4, TEXTS[2], n=2),
    ]
    bench.run()
    assert bench.thread._batching is None
    assert wire.completion_of(bench.result(jobs[0])["completion"]) == alone.complete(TEXTS[0], max_tokens=6)
    assert wire.completion_of(bench.result(jobs[1])["completion"]) == alone.complete(TEXTS[1], max_tokens=6)
    assert len(bench.events("part")) == 3
    assert len(bench.result(jobs[3])["completions"]) == 2
    chunks = [wire.chunk_of(message["chunk"]) for message in bench.events("chunk") if message["id"] == 0]
    assert "".join(chunks) == alone.complete(TEXTS[0], max_tokens=6)


def test_pieces_of_an_answer_in_a_batch_are_its_text(bench):
    job = bench.answer(1, TEXTS[0], max_tokens=9)
    bench.answer(2, TEXTS[1], max_tokens=9)
    bench.run()
    chunks = [
        wire.chunk_of(message["chunk"]) for message in bench.events("chunk") if message["id"] == job.number
    ]
    found = wire.completion_of(bench.result(job)["completion"])
    assert "".join(chunks) == found.text
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == found.token_ids
    assert [chunk.is_last for chunk in chunks].count(True) == 1 and chunks[-1].is_last
    assert found.timings.total_s >= found.timings.queue_s > 0


def test_what_was_cancelled_or_is_late_before_its_turn_is_not_begun(bench):
    late, cancelled = bench.answer(1, timeout_s=0), bench.titles(2, TEXTS)
    cancelled.cancel("cancel")
    fine = bench.answer(3)
    bench.run()
    assert wire.completion_of(bench.result(late)["completion"]).cancelled_by == "timeout"
    assert bench.result(cancelled) == {"cancelled_by": "cancel"}
    assert not bench.events("part")
    assert "completion" in bench.result(fine)


def test_load_that_fails_is_told_to_all_who_wait_and_tried_again_by_the_next(bench, backend):
    backend.on("poison")
    loads = backend.lines("loads")
    first, second = bench.answer(1), bench.answer(2)
    bench.run()
    assert bench.result(first)["type"] == bench.result(second)["type"] == "RestartNeededError"
    assert backend.lines("loads") == loads + 1 and bench.poisoned.is_set()


def test_requests_of_nonsense_are_errors_of_their_own(bench):
    jobs = [
        bench.ask(1, "answer", turns=[["nobody", "a"]], options=wire.options_values(GenerationOptions())),
        bench.ask(1, "answer", turns=[["user", "a"]], options={}),
        bench.ask(1, "answer"),
        bench.ask(1, "scores", question={"kind": "os"}),
        bench.ask(1, "judge", state="a", questions=[]),
        bench.ask(1, "restore_state", path="/nowhere/at/all", slot=None),
    ]
    fine = bench.answer(2)
    bench.run()
    kinds = [bench.result(job)["type"] for job in jobs]
    assert kinds == [
        "OptionError",
        "WorkerError",
        "WorkerError",
        "WorkerError",
        "OptionError",
        "ModelFileError",
    ]
    assert "completion" in bench.result(fine)


def cancel(bench, job):
    """As a worker does it."""
    job.cancel("cancel")
    bench.thread.interrupt(job)


def test_cancelled_choice_stops_where_it_is_and_the_others_go_on(bench, backend, alone):
    question, options = "Which?", [f"option {number}" for number in range(12)]
    expected, whole = alone.choose(question, options), len(alone.load().engine.backend.calls)
    values = {
        "question": wire.question_values(ChoiceQuestion("Which option fits best?", options)),
        "state": question, "system": "", "prompts": [question], "texts": options,
        "normalize": "tokens", "calibrate": False,
    }  # fmt: skip
    backend.on("hold")
    job = bench.ask(1, "scores", **values)
    with bench.running():
        backend.wait_for("held")
        fine = bench.ask(2, "scores", **values)
        cancel(bench, job)
        assert bench.result(job)["type"] == "ForwardInterrupted"  # at once
        calls = bench.thread.loaded.engine.backend.calls
        begun = len(calls)
        backend.off("hold")
        wait_until(lambda: fine.is_settled)
    assert tuple(bench.result(fine)["scores"]) == expected.scores
    assert len(calls) - begun == whole  # those of the second one


def test_cancelled_judgment_is_stopped_within_the_model(tmp_path, monkeypatch):
    folder = tiny_judge.write_judge(tmp_path / "julia")
    bench = Bench(TinySession(folder, lazy=True, progress=False).spec)
    bench.thread._options = {}
    question = wire.question_values(ChoiceQuestion("Q", ["a", "b"]))
    values = {"state": "The app crashes.", "questions": [question]}
    started = threading.Event()

    class Slow:
        def run(self, names, feeds, options):
            started.set()
            while not options.terminate:
                threading.Event().wait(0.005)
            raise RuntimeError("Exiting due to terminate flag being set to true.")

    first = bench.ask(1, "judge", **values)
    with bench.running():
        wait_until(lambda: first.is_settled)
        graph = bench.thread.loaded.judge.backend._graph
        whole = graph._session
        monkeypatch.setattr(graph, "_session", Slow())
        job = bench.ask(1, "judge", **values)
        assert started.wait(PATIENCE_S)
        cancel(bench, bench.ask(2, "judge", **values))  # which has not begun
        cancel(bench, job)
        wait_until(lambda: job not in bench.thread.jobs)
        monkeypatch.setattr(graph, "_session", whole)
        fine = bench.ask(3, "judge", **values)
    assert bench.result(job)["type"] == "ForwardInterrupted"
    assert bench.result(fine) == bench.result(first)


def test_memory_is_given_back_once_nobody_has_asked_for_a_while(bench, monkeypatch):
    waited, given = [], []
    wait = bench.queue.wait
    monkeypatch.setattr(bench.queue, "wait", lambda timeout_s: waited.append(1) or wait(0.01))
    monkeypatch.setattr(model_thread, "give_back", lambda: given.append(1))
    with bench.running():
        wait_until(lambda: len(waited) > 3)
        assert not given  # nothing was done
        for number in (1, 2):
            job = bench.answer(1, TEXTS[number])
            wait_until(lambda job=job: job.is_settled)
            wait_until(lambda number=number: len(given) >= number)
            idle = len(waited)
            wait_until(lambda idle=idle: len(waited) > idle + 3)
        assert len(given) == 2

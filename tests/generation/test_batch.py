"""Many generations at once give what each gives alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.generation.test_engine import EOS, A, B, Recurrent, scripted_engine, tiny_engine, tokenizer
from tests.generation.test_run import copying_engine
from tests.generation.test_streaming import ids, saying
from tinykit.backends.scripted import ScriptedBackend
from tinykit.errors import BackendError, OptionError, PromptTooLongError
from tinykit.generation.batch import DEFAULT_BATCH_SIZE, one_request, run_task, run_tasks, samples
from tinykit.generation.constraint import Constraint
from tinykit.generation.engine import Engine
from tinykit.generation.request import GenerationOptions, Request
from tinykit.generation.result import Completion
from tinykit.generation.sampling import Sampling


def together(engine, requests, batch_size=4):
    found = dict(run_tasks(engine, map(one_request, requests), batch_size=batch_size))
    assert sorted(found) == list(range(len(requests)))
    return [found[index] for index in range(len(requests))]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 12), st.none() | st.integers(0, 9)), max_size=12),
    st.integers(1, 6),
)
def test_batch_equals_one_at_a_time(wanted, batch_size):
    requests = [
        Request((5,) * length, GenerationOptions(budget), prefix_tokens=prefix)
        for length, budget, prefix in wanted
    ]
    alone = [copying_engine(3, 25).generate(request) for request in requests]
    assert together(copying_engine(3, 25), requests, batch_size) == alone


def test_batch_of_a_real_graph_equals_one_at_a_time(tmp_path):
    engine = tiny_engine(tmp_path)
    requests = [
        Request(tuple(range(3, 4 + 7 * n)), GenerationOptions(3 + 5 * n % 11), prefix_tokens=2 * n or None)
        for n in range(1, 8)
    ]
    alone = [engine.generate(request) for request in requests]
    assert together(engine, requests) == alone
    assert [one.finish_reason for one in together(engine, requests)] == [one.finish_reason for one in alone]


def test_rows_share_their_steps():
    engine = saying("hello world", 2)
    together(engine, [Request((A, B))] * 4)
    assert len(engine.backend.calls) < 4 + 4 * 11


def test_failure_of_one_loses_no_other():
    engine = saying("hello", 2)
    impossible = GenerationOptions(constraint=Constraint.regex("("))
    long = Request((A,) * 9000)
    found = together(engine, [Request((A, B)), long, Request((A, B), impossible), Request((A, B))])
    assert [str(found[0]), str(found[3])] == ["hello", "hello"]
    assert isinstance(found[1], PromptTooLongError)
    assert isinstance(found[2], OptionError)


def speller(text, *, fails=None, most_rows=100, prompt=2):
    """An engine that spells a text after its first tokens, and what its backend was asked of batches.

    It fails where `fails` says so of the tokens that a sequence has seen, and for more rows than `most_rows`.
    """
    wanted = [*ids(text), EOS]

    def script(seen):
        if fails is not None and fails(seen):
            raise BackendError("a token that the model cannot take")
        return wanted[len(seen) - prompt]

    engine = Engine(ScriptedBackend(script, vocab_size=400), tokenizer(), [EOS], cache_bytes=1 << 20)
    sizes, new_batch = [], engine.backend.new_batch

    def limited():
        batch = new_batch()
        forward = batch.forward

        def counted(token_ids):
            sizes.append(len(token_ids))
            if len(token_ids) > most_rows:
                raise BackendError("out of memory")
            return forward(token_ids)

        batch.forward = counted
        return batch

    engine.backend.new_batch = limited
    return engine, sizes


@pytest.mark.parametrize("at", [1, 3], ids=["first step", "later step"])
def test_failing_step_fails_only_the_row_that_cannot_take_it(at):
    engine, sizes = speller("hello", fails=lambda seen: seen[0] == B and len(seen) == 2 + at)
    found = together(engine, [Request((A, B)), Request((B, A)), Request((A, A))])
    assert [str(found[0]), str(found[2])] == ["hello", "hello"]
    assert isinstance(found[1], BackendError)
    assert sizes == [3] * at + [2] * (5 - at)  # the others are together again


def test_batch_that_the_model_cannot_take_goes_on_row_by_row():
    engine, sizes = speller("hello", most_rows=1)
    found = together(engine, [Request((A, B)), Request((B, A)), Request((A, A))], batch_size=2)
    assert [str(one) for one in found] == ["hello"] * 3
    assert sizes == [2]  # it is not tried again


def test_no_other_joins_rows_that_take_much_memory(monkeypatch):
    monkeypatch.setattr("tinykit.generation.batch._MOST_BYTES", 8 * 45)
    engine, sizes = speller("hello", prompt=20)
    found = together(engine, [Request((A,) * 20)] * 6, batch_size=6)
    assert [str(one) for one in found] == ["hello"] * 6
    assert max(sizes) == 3  # with 21 tokens each two leave room for another one


def test_single_prompt_beyond_the_memory_of_a_batch_is_answered(monkeypatch):
    monkeypatch.setattr("tinykit.generation.batch._MOST_BYTES", 8)
    engine, sizes = speller("hello", prompt=20)
    assert [str(one) for one in together(engine, [Request((A,) * 20)] * 3)] == ["hello"] * 3
    assert set(sizes) == {1}


def test_cancel_is_heard_while_rows_go_on_apart():
    engine, _ = speller("hello", most_rows=1, fails=lambda seen: len(seen) == 4 and engine.cancel() < 0)
    found = together(engine, [Request((A, B)), Request((B, A))])
    assert [one.cancelled_by for one in found] == ["cancel", "cancel"]


def test_model_that_fails_altogether_fails_every_row():
    engine, _ = speller("hello", fails=lambda seen: len(seen) > 3)
    found = together(engine, [Request((A, B)), Request((B, A)), Request((A, A))], batch_size=2)
    assert [type(one) for one in found] == [BackendError] * 3


def test_sampled_rows_that_fail_together_go_on_apart():
    engine, sizes = speller("hello", most_rows=1)
    assert [one.text for one in samples(engine, Request((A, B)), 2)] == ["hello", "hello"]
    assert sizes == [2]


def interrupting(seen):
    if len(seen) == 4:
        raise KeyboardInterrupt
    return False


@pytest.mark.parametrize("batch_size", [1, 2])
def test_interrupted_batch_tells_what_was_under_way(batch_size):
    engine, _ = speller("hello", fails=lambda seen: seen[0] == B and interrupting(seen))
    tasks = map(one_request, [Request((A, B)), Request((B, A)), Request((A, A))])
    done = []
    with pytest.raises(KeyboardInterrupt) as caught:
        done += run_tasks(engine, tasks, batch_size=batch_size)
    partial = dict(caught.value.partial)
    assert (partial[1].text, partial[1].finish_reason) == ("he", "cancelled")
    assert partial[1].cancelled_by == "interrupt"
    assert sorted(partial) == ([1] if batch_size == 1 else [0, 1])


def test_interrupted_task_makes_of_it_what_it_can():
    engine, _ = speller("hello", fails=interrupting)

    def asking():
        first = yield Request((A, B))
        both = yield [Request((A, B)), Request((B, A))]
        return [first, *both]

    for run in (lambda: run_task(engine, asking()), lambda: list(run_tasks(engine, [asking()]))):
        with pytest.raises(KeyboardInterrupt) as caught:
            run()
        partial = caught.value.partial
        found = partial if isinstance(partial[0], Completion) else dict(partial)[0]
        assert [(one.text, one.cancelled_by) for one in found] == [
            ("he", "interrupt"), ("", "interrupt"), ("", "interrupt")
        ]  # fmt: skip


def test_constraints_differ_from_row_to_row():
    options = [
        GenerationOptions(30, constraint=Constraint.choices([text]))
        for text in ("yes indeed", "no", "perhaps")
    ]
    found = together(saying("zzzz", 2), [Request((A, B), one) for one in options])
    assert [str(one) for one in found] == ["yes indeed", "no", "perhaps"]


def test_task_may_ask_again():
    def task(first):
        completion = yield Request((A, first), GenerationOptions(2))
        again = yield Request((A, first, *completion.token_ids), GenerationOptions(3))
        return f"{completion}{again}"

    engine = saying("hello", 2)
    found = dict(run_tasks(engine, [task(B) for _ in range(5)], batch_size=2))
    assert found == dict.fromkeys(range(5), "hello")
    assert run_task(engine, task(B)) == "hello"


def test_task_may_ask_for_several_at_once():
    def task(count):
        completions = yield [Request((A, B), GenerationOptions(1 + n)) for n in range(count)]
        last = yield Request((A, B), GenerationOptions(2))
        return [str(one) for one in completions], str(last)

    expected = {n: (["h", "he", "hel", "hell"][:n], "he") for n in range(5)}
    for size in (1, 2, 16):
        engine = saying("hello", 2)
        assert dict(run_tasks(engine, map(task, range(5)), batch_size=size)) == expected
        assert run_task(engine, task(3)) == expected[3]


def test_failure_of_one_of_several_reaches_the_task():
    def task():
        try:
            yield [Request((A, B)), Request((A,) * 9000), Request((A, B))]
        except PromptTooLongError:
            return "too long"

    engine = saying("hello", 2)
    assert run_task(engine, task()) == "too long"
    assert dict(run_tasks(engine, [task() for _ in range(3)], batch_size=2)) == dict.fromkeys(
        range(3), "too long"
    )
    assert engine.cancel() == 0
    assert str(engine.generate(Request((A, B)))) == "hello"


def test_cancel_ends_the_batch():
    engine = saying("hello world", 2)
    found = {}
    for index, completion in run_tasks(
        engine, (one_request(Request((A, B), GenerationOptions(3 if n == 1 else 20))) for n in range(9)),
        batch_size=3,
    ):  # fmt: skip
        found[index] = completion
        engine.cancel()
    assert 1 in found and found[1].finish_reason == "length"
    assert len(found) <= 4
    assert {one.cancelled_by for index, one in found.items() if index != 1} <= {"cancel"}
    assert engine.generate(Request((A, B))).text == "hello world"


def test_leaving_a_batch_closes_its_tasks():
    closed = []

    def task(number):
        try:
            yield Request((A, B))
        finally:
            closed.append(number)

    results = run_tasks(saying("hello", 2), (task(n) for n in range(3)), batch_size=3)
    next(results)
    results.close()
    assert sorted(closed) == [0, 1, 2]


class Flat(ScriptedBackend):
    """Finds all letters equally likely, for 12 tokens."""

    def __init__(self):
        super().__init__(lambda seen: EOS, vocab_size=400)

    def forward(self, token_ids, state, *, rows=1):
        return self._flat(super().forward(token_ids, state, rows=rows), len(state.token_ids))

    def _flat(self, logits, seen):
        logits = logits.copy()
        if seen < 14:
            logits[:, :] = 0
            logits[:, 60:90] = 9
        return logits


def test_samples_differ_and_each_can_be_had_again_alone():
    def engine(can_batch):
        backend = Flat()
        object.__setattr__(backend.info, "can_batch", can_batch)
        return Engine(backend, tokenizer(), [EOS], cache_bytes=1 << 20)

    options = GenerationOptions(20, sampling=Sampling(temperature=1, seed=5))
    found = samples(engine(False), Request((A, B), options), 3)
    assert [one.seed for one in found] == [5, 6, 7]
    assert len({one.token_ids for one in found}) == 3
    for one in found:
        alone = GenerationOptions(20, sampling=Sampling(temperature=1, seed=one.seed))
        assert engine(False).generate(Request((A, B), alone)) == one


def test_samples_of_one_prompt_compute_it_once(tmp_path):
    engine = tiny_engine(tmp_path)
    sampling = Sampling(temperature=1.5, seed=3)
    request = Request(tuple(range(3, 40)), GenerationOptions(8, sampling=sampling))
    found = samples(engine, request, 4)
    alone = [
        tiny_engine(tmp_path).generate(
            Request(request.prompt_ids, GenerationOptions(8, sampling=Sampling(temperature=1.5, seed=3 + n)))
        )
        for n in range(4)
    ]
    assert found == alone


def test_greedy_samples_are_equal_and_have_no_seed():
    found = samples(saying("hello", 2), Request((A, B)), 2)
    assert [(str(one), one.seed) for one in found] == [("hello", None)] * 2


def test_seed_that_was_drawn_is_told():
    options = GenerationOptions(3, sampling=Sampling(temperature=1))
    seeds = [one.seed for one in samples(saying("hello", 2), Request((A, B), options), 3)]
    assert seeds == [seeds[0], seeds[0] + 1, seeds[0] + 2]


def test_recurrent_states_are_sampled_from_copies(monkeypatch):
    engine = saying("hello", 2)
    monkeypatch.setattr(engine.backend, "new_state", Recurrent)
    object.__setattr__(engine.backend.info, "can_batch", False)
    assert [str(one) for one in samples(engine, Request((A, B)), 3)] == ["hello"] * 3


def test_exact_requests_go_alone_where_shapes_matter():
    engine = saying("hello", 2)
    engine.rows_are_exact = False
    engine.backend.new_batch = lambda: pytest.fail("no batch is wanted") if engine.backend.calls else None
    found = together(engine, [Request((A, B), GenerationOptions(9, exact=True))] * 3)
    assert [str(one) for one in found] == ["hello"] * 3


def test_long_texts_do_not_hold_up_short_ones():
    engine = saying("x" * 40, 2)
    budgets = [40, 2, 2, 2, 2]
    order = [
        index
        for index, _ in run_tasks(
            engine,
            (one_request(Request((A, B), GenerationOptions(budget))) for budget in budgets),
            batch_size=2,
        )
    ]
    assert order == [1, 2, 3, 4, 0]
    assert ids("x")


def test_failed_and_left_tasks_are_closed_though_somebody_keeps_them():
    closed = []

    def task(number, prompt):
        try:
            yield Request(prompt)
        finally:
            closed.append(number)

    engine = saying("hello", 2)
    tasks = [task(0, (A, B)), task(1, (A, B)), task(2, (A,) * 9000)]
    results = run_tasks(engine, tasks, batch_size=3)
    assert next(results)[0] == 2 and closed == [2]
    results.close()
    assert sorted(closed) == [0, 1, 2] and not engine._active


def test_interrupted_task_is_closed(monkeypatch):
    closed = []

    def task():
        try:
            yield Request((A, B))
        finally:
            closed.append(True)

    engine = saying("hello", 2)

    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "prefill", interrupted)
    tasks = [task()]
    with pytest.raises(KeyboardInterrupt):
        list(run_tasks(engine, tasks, batch_size=2))
    assert closed == [True] and not engine._active


def test_many_samples_take_the_memory_of_a_few():
    engine = saying("hello", 2)
    found = samples(engine, Request((A, B)), 40)
    assert [str(one) for one in found] == ["hello"] * 40
    assert max(map(len, engine.backend.batch_calls)) == DEFAULT_BATCH_SIZE


@pytest.mark.parametrize("can_batch", [True, False])
@pytest.mark.parametrize("timeout_s", [0.0, None])
def test_samples_say_why_they_were_cancelled(can_batch, timeout_s):
    engine = scripted_engine([A] * 50, 2, can_batch=can_batch)
    if timeout_s is None:
        script = engine.backend._script

        def cancelling(seen):
            if len(seen) == 5:
                engine.cancel()
            return script(seen)

        engine.backend._script = cancelling
    found = samples(engine, Request((A, B), GenerationOptions(timeout_s=timeout_s)), 3)
    assert {one.cancelled_by for one in found} == {"cancel" if timeout_s is None else "timeout"}

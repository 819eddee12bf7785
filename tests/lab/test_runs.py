"""Runs: rows on disk, resumed, interrupted, killed, replayed; nothing is asked twice and nothing is lost."""

import json
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.conftest import MESSAGES, short
from tinykit import lab
from tinykit.errors import ModelFileError, OptionError, UnknownModelError
from tinykit.lab.cache import RowCache
from tinykit.lab.folder import RunFolder
from tinykit.lab.local import LocalRunner
from tinykit.lab.plan import Cell, Plan, new_plan
from tinykit.lab.rows import Row

TASKS = [message for message in MESSAGES if message != "hello"]


def run(gguf, out, recipes=None, **options):
    options = {"progress": False, "cache": False, **options}
    return lab.run(MESSAGES, recipes or short(), options.pop("models", gguf), out=out, **options)


def test_run_makes_a_row_for_every_case_variant_and_repeat(gguf, tmp_path, asked):
    found = run(gguf, tmp_path / "run", [short(), short("long", max_tokens=5)], repeats=2)
    assert found.variants == ("first-words", "short", "long")
    assert len(found) == len(MESSAGES) * 3 * 2
    assert found.is_complete and not found.failures() and not found.notes
    assert sorted(asked) == sorted(4 * TASKS)
    row = found.of("short")[0]
    assert (row.backend, row.device, row.threads > 0, row.prompt_tokens > 0) == ("onnx", "cpu", True, True)
    assert found.titles("first-words")[found.cases[1].id] == "Cat eats blue paper"
    assert [row.status for row in found.rows if row.case == found.cases[5].id] == ["no title"] * 6
    assert found.of("short")[5].why == ("no_task",)


def test_titles_are_those_of_a_plain_loop(gguf, tmp_path, recipe):
    from tinykit import TinySession

    found = run(gguf, tmp_path / "run", batch_size=4)
    with TinySession(gguf, recipe=recipe, progress=False) as session:
        plain = [session.title_result(message) for message in MESSAGES]
    assert [(row.title, row.raw) for row in found.of("short")] == [(one.text, one.raw) for one in plain]


def test_the_same_call_again_asks_nothing_and_loads_nothing(gguf, tmp_path, asked):
    first = run(gguf, tmp_path / "run")
    asked.clear()
    runner = LocalRunner(
        opener=lambda target: pytest.fail("it was loaded") if target is None else Unloadable(target)
    )
    again = run(gguf, tmp_path / "run", runner=runner)
    assert (again.rows, asked) == (first.rows, [])


class Unloadable:
    """A session that can tell what was asked for, and no more."""

    def __init__(self, target):
        from tinykit import TinySession

        self.spec = TinySession(lazy=True, **target.options()).spec

    def load(self):
        raise AssertionError("the model was loaded")

    def close(self):
        pass


def test_load_reads_a_run_without_its_model(gguf, tmp_path):
    made = run(gguf, tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    stored = lab.load(tmp_path / "elsewhere")
    assert stored.rows == made.rows and stored.plan == made.plan


def test_rows_open_in_pandas_style(gguf, tmp_path):
    made = run(gguf, tmp_path / "run")
    lines = (tmp_path / "run" / "rows.jsonl").read_text(encoding="utf-8").split("\n")
    values = [json.loads(line) for line in lines if line]
    assert len(values) == len(made) and len({tuple(value) for value in values}) == 1
    assert not any(isinstance(value, dict) for row in values for value in row.values())


@pytest.mark.parametrize("cut", [1, 20, None], ids=["almost whole", "torn", "only the newline"])
def test_a_torn_last_line_costs_one_row(gguf, tmp_path, asked, cut):
    made = run(gguf, tmp_path / "run")
    path = tmp_path / "run" / "rows.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[: -1 - (cut or 0)])
    torn = lab.load(tmp_path / "run")
    assert torn.missing == (0 if cut is None else 1) and len(torn.notes) == torn.missing
    asked.clear()
    mended = torn.resume(progress=False, cache=False)
    assert [row.title for row in mended.rows] == [row.title for row in made.rows]
    assert len(asked) <= 1 and not mended.notes
    assert path.read_bytes().endswith(b"}\n") and len(path.read_bytes().split(b"\n")) == len(made) + 1


KILLED = """
import sys
from tinykit import lab
from tinykit.lab.folder import RowWriter
from tests.lab.conftest import MESSAGES, short

written = 0
append = RowWriter.append

def counted(self, row):
    global written
    append(self, row)
    written += 1
    if written == int(sys.argv[3]):
        print("ready", flush=True)
        sys.stdin.read()  # until it is killed

RowWriter.append = counted
lab.run(MESSAGES, short(), sys.argv[1], out=sys.argv[2], batch_size=int(sys.argv[4]), repeats=2, progress=False, cache=False)
"""


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")
def test_after_kill_9_exactly_the_missing_calls_are_made(gguf, tmp_path, asked, batch_size):
    out, written = tmp_path / "run", 2 * len(MESSAGES) + 4  # the baseline comes first
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(gguf), str(out), str(written), str(batch_size)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ), cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert child.stdout.readline() == b"ready\n"
    child.kill()
    child.communicate(timeout=120)
    partial = lab.load(out)
    assert len(partial) == written and partial.missing == 4 * len(MESSAGES) - written
    kept = {row.cell for row in partial.rows}
    messages = {case.id: case.message for case in partial.cases}
    wanted = [messages[cell.case] for cell in partial.cell_keys if cell not in kept]
    whole = partial.resume(progress=False, cache=False)
    assert sorted(asked) == sorted(message for message in wanted if message != "hello")
    assert whole.is_complete and len({row.cell for row in whole.rows}) == len(whole) == 4 * len(MESSAGES)


def test_ctrl_c_leaves_a_partial_run_that_goes_on(gguf, tmp_path, asked):
    class Interrupting(LocalRunner):
        def rows(self, jobs):
            for number, row in enumerate(super().rows(jobs)):
                if number == 2 and row.variant == "short":
                    raise KeyboardInterrupt
                yield row

    partial = run(gguf, tmp_path / "run", runner=Interrupting(False), batch_size=1)
    assert partial.was_interrupted and partial.missing == 4 and "4 missing" in repr(partial)
    assert len(partial.titles("short")) == 2
    asked.clear()
    whole = partial.resume(progress=False, cache=False)
    assert whole.is_complete and not whole.was_interrupted and len(asked) <= 4


def test_a_cancel_ends_the_run(gguf, tmp_path):
    class Cancelled(LocalRunner):
        def rows(self, jobs):
            for row in super().rows(jobs):
                yield row
                if row.variant == "short":
                    return

    partial = run(gguf, tmp_path / "run", runner=Cancelled(False))
    assert partial.missing == len(MESSAGES) - 1


def test_failures_are_rows_and_only_they_are_asked_again(gguf, tmp_path, asked, monkeypatch):
    from tinykit import entitling

    task = entitling.title_task

    def failing(engine, message, *rest, **options):
        if "cat" in message:
            raise ModelFileError("no cats")
        return (yield from task(engine, message, *rest, **options))

    monkeypatch.setattr(entitling, "title_task", failing)
    made = run(gguf, tmp_path / "run")
    (failure,) = made.failures()
    assert (failure.status, failure.error, failure.why) == ("failed", "no cats", ("failed",))
    assert failure.case not in made.titles("short") and made.is_complete
    monkeypatch.setattr(entitling, "title_task", task)
    asked.clear()
    assert made.resume(progress=False).failures() == (failure,)
    whole = made.retry_failures(progress=False)
    assert asked == ["my cat eats blue paper"] and not whole.failures()


def test_a_model_that_cannot_be_loaded_fails_alone_and_is_tried_again(gguf, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF nonsense")
    made = run(gguf, tmp_path / "run", models=[broken, gguf])
    assert {row.variant for row in made.failures()} == {"short @ broken.gguf"}
    assert made.missing == len(MESSAGES) and len(made.titles("short @ tiny.gguf")) == len(MESSAGES)
    broken.write_bytes(gguf.read_bytes())
    whole = made.resume(progress=False, cache=False)
    assert whole.is_complete and not whole.failures()


def test_repeats_are_made_and_replayed_with_their_own_times(gguf, tmp_path, asked):
    cache = tmp_path / "cache"
    first = run(gguf, tmp_path / "one", repeats=3, cache=cache)
    assert sorted(asked) == sorted(3 * TASKS)
    asked.clear()
    replayed = run(gguf, tmp_path / "two", repeats=3, cache=cache)
    assert asked == [] and all(row.cached for row in replayed.rows)
    assert [replace(row, cached=False) for row in replayed.rows] == list(first.rows)
    assert "from the cache" in replayed.summary()


CHANGES = {
    "message": lambda options: options | {"messages": [f"{text} now" for text in MESSAGES]},
    "recipe": lambda options: options | {"recipes": short(system="Title")},
    "budget": lambda options: options | {"recipes": short(max_tokens=4)},
    "model": lambda options: options | {"models": options["other"]},
    "exact": lambda options: options | {"exact": True},
    "smaller batch": lambda options: options | {"batch_size": 1},
}


@pytest.fixture(scope="module")
def other_gguf(tmp_path_factory):
    from tests import tiny_models as tiny

    weights = tiny.random_weights("llama", seed=1)
    return tiny.write_gguf(tmp_path_factory.mktemp("lab") / "tiny.gguf", "llama", weights)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_could_change_a_title_misses_the_cache(gguf, other_gguf, tmp_path, asked, change):
    options = {"messages": MESSAGES, "recipes": short(), "models": gguf, "other": other_gguf}

    def go(name, values):
        values = {key: value for key, value in values.items() if key != "other"}
        return lab.run(
            values.pop("messages"), **values, out=tmp_path / name, cache=tmp_path / "cache", progress=False,
            baseline=False,
        )  # fmt: skip

    go("one", options)
    asked.clear()
    assert len(go("two", change(options))) == len(MESSAGES)
    assert len(asked) == len(TASKS)


def test_a_new_name_for_a_recipe_does_not_miss_the_cache(gguf, tmp_path, asked):
    run(gguf, tmp_path / "one", cache=tmp_path / "cache")
    asked.clear()
    renamed = run(gguf, tmp_path / "two", short("renamed"), cache=tmp_path / "cache")
    assert asked == [] and {row.recipe for row in renamed.rows} == {"first-words", "renamed"}


def test_changed_code_makes_rows_anew(gguf, tmp_path, asked, monkeypatch):
    from tinykit.lab import keys

    made = run(gguf, tmp_path / "run")
    asked.clear()
    monkeypatch.setattr(keys, "code_digest", lambda: "other")
    assert lab.load(made.path).rows == made.rows  # what is stored is shown as it is
    made.resume(progress=False)
    assert sorted(asked) == sorted(TASKS)


def test_another_plan_in_the_same_folder_needs_a_word(gguf, tmp_path, asked):
    run(gguf, tmp_path / "run")
    with pytest.raises(OptionError, match="variants differ") as caught:
        run(gguf, tmp_path / "run", [short(), short("long", max_tokens=5)])
    assert "update=True" in caught.value.hint
    asked.clear()
    wider = run(gguf, tmp_path / "run", [short(), short("long", max_tokens=5)], update=True)
    assert wider.is_complete and sorted(asked) == sorted(TASKS)


def test_without_a_folder_the_run_lies_in_the_cache(gguf, tmp_path, asked):
    first = run(gguf, None)
    asked.clear()
    assert run(gguf, None).path == first.path and asked == []
    assert first.path.parent == tmp_path / "home" / "lab" / "runs"


def test_two_processes_do_not_write_one_run(gguf, tmp_path):
    made = run(gguf, tmp_path / "run")
    with pytest.raises(OptionError, match="Another process"):
        RunFolder(made.path).write(lambda _: made.resume(progress=False))


@pytest.mark.parametrize(
    "change",
    [
        {"recipes": 5}, {"models": 5}, {"models": [5]}, {"cache": 5}, {"cache": ""}, {"out": 5}, {"out": ""},
        {"exact": "x"}, {"baseline": "no"}, {"update": "yes"}, {"runner": 5}, {"repeat": 2},
    ],
    ids=str,
)  # fmt: skip
def test_argument_that_cannot_be_used_is_said(gguf, tmp_path, change):
    given = {"recipes": "first-words", "models": gguf, "out": tmp_path / "run", "progress": False, **change}
    with pytest.raises(OptionError) as caught:
        lab.run(MESSAGES, **given)
    assert caught.value.hint


def test_folder_that_cannot_be_made_is_said(gguf, tmp_path):
    with pytest.raises(OptionError, match="No folder for a run can be made at") as caught:
        run(gguf, gguf)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("header.json", b'{"form'), ("header.json", b"[]"), ("header.json", b'{"format": 1}'),
        ("header.json", b'{"format": 1, "plan": {}, "targets": {}}'), ("header.json", b"\xff"),
        ("header.json", b'{"format": 1, "plan": {}, "targets": 5}'),
        ("cases.jsonl", None), ("cases.jsonl", b"\xff"), ("rows.jsonl", Path),
    ],
)  # fmt: skip
def test_damaged_file_is_said_and_costs_no_titles(gguf, tmp_path, asked, name, content):
    made = run(gguf, tmp_path / "run")
    path = tmp_path / "run" / name
    kept = path.read_bytes()
    path.unlink()
    if content is Path:
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(OptionError, match=f"{name} cannot be read") as caught:
        lab.load(tmp_path / "run")
    assert "Delete this file and make the run again with the same folder" in caught.value.hint
    asked.clear()
    if path.is_dir():
        path.rmdir()
        path.write_bytes(kept)
    elif content is not None:
        path.unlink()
    again = run(gguf, tmp_path / "run")
    assert asked == [] and [row.title for row in again.rows] == [row.title for row in made.rows]


def test_a_folder_that_is_no_run_says_so(tmp_path):
    with pytest.raises(OptionError, match="holds no run"):
        lab.load(tmp_path)
    (tmp_path / "header.json").write_text('{"format": 99}')
    with pytest.raises(OptionError, match="format 99"):
        lab.load(tmp_path)


def test_unknown_variant_names_those_there_are(gguf, tmp_path):
    with pytest.raises(OptionError, match="first-words, short"):
        run(gguf, tmp_path / "run").of("long")


def test_a_plan_survives_its_header():
    plan = new_plan(
        lab.read_cases(MESSAGES), ["plain", "first-words", lab.Variant(short(), lab.Target("a", dtype="q4"), "mine")],
        ["a", lab.Target("b", device="cuda")], repeats=2,
    )  # fmt: skip
    assert [v.label for v in plan.variants] == ["plain @ a", "plain @ b cuda", "first-words", "mine"]
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict())), plan.cases) == plan


def test_jobs_share_prefixes_in_blocks_and_cover_every_cell():
    cases = lab.read_cases([f"message number {number}" for number in range(40)])
    plan = new_plan(cases, [short("a"), short("b")], baseline=False, batch_size=4, repeats=2)
    wanted = [cell for variant in plan.variants for cell in plan.cells(variant)]
    jobs = list(plan.jobs(lab.Target(), wanted, {}))
    assert [job.variant.label for job in jobs] == ["a", "b"] * 5
    assert {cell for job in jobs for cell in job.cells} == set(wanted)
    assert sum(len(job.cells) for job in jobs) == len(wanted) == 160
    first = [{cell.case for cell in job.cells} for job in jobs[:2]]
    assert first[0] == first[1] and first[0] != {case.id for case in cases[:16]}


def test_jobs_can_be_sent_to_other_processes():
    plan = new_plan(lab.read_cases(MESSAGES), [short()], ["a"])
    (job,) = plan.jobs(lab.Target("a"), list(plan.cells(plan.variants[1])), {"identity": {}})
    assert pickle.loads(pickle.dumps(job)) == job


def test_the_cache_survives_torn_lines_and_keeps_the_time_of_the_smaller_batch(tmp_path):
    cache = RowCache(tmp_path)
    row = Row("abc", "c", "v", 0, "r", "title", "T", batch_size=16, elapsed_s=9.0)
    cache.put(row)
    cache.put(replace(row, batch_size=1, elapsed_s=0.5))
    cache.put(replace(row, elapsed_s=7.0))
    cache.put(replace(row, key="abd", status="failed"))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + b'{"key": "abe", "ca')
    again = RowCache(tmp_path)
    found = again.get("abc", Cell("d", "w", 0), "s", batch_size=1)
    assert (found.elapsed_s, found.case, found.variant, found.recipe, found.cached) == (
        0.5,
        "d",
        "w",
        "s",
        True,
    )
    assert again.get("abd", Cell("d", "w", 0), "s", batch_size=16) is None


def test_two_recipes_of_one_name_are_refused():
    with pytest.raises(OptionError, match="Two variants are called 'short'"):
        new_plan(lab.read_cases(MESSAGES), [short(), short(max_tokens=9)])


def test_a_row_survives_its_line():
    row = Row("k", "c", "v", 0, "r", "title", "T\u2028 \ud800", "raw", ("a", "b"), elapsed_s=0.5)
    from tinykit.lab.folder import row_line

    assert Row.from_dict(json.loads(row_line(row))) == row
    assert row_line(row).count(b"\n") == 1


@pytest.mark.parametrize(
    "models", [["smolm2-135m"], [lab.Target("smolm2-135m", dtype="q8")]], ids=["key", "target"]
)
def test_unknown_model_is_told_with_the_nearest_names_before_anything_runs(gguf, tmp_path, asked, models):
    with pytest.raises(UnknownModelError, match="smolm2-135m") as caught:
        run(gguf, tmp_path / "run", models=[gguf, *models])
    assert "smollm2-135m" in caught.value.nearest
    assert not (tmp_path / "run").exists() and asked == []


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"device": "gpuu"}, "gpuu"),
        ({"backend": "onxx"}, "onxx"),
        ({"dtype": "q99"}, "q99"),
        ({"threads": 0}, "threads"),
    ],
    ids=lambda value: str(value),
)
def test_unknown_names_in_a_target_are_told_before_anything_runs(gguf, tmp_path, asked, target, said):
    with pytest.raises(OptionError, match=said):
        run(gguf, tmp_path / "run", models=[lab.Target(str(gguf), **target)])
    assert not (tmp_path / "run").exists() and asked == []

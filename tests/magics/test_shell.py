"""The magics in a real shell: what they give, show and assign, and how they fail."""

import re
import subprocess
import sys

import numpy as np
import pytest

from tinykit import TinySession, lab
from tinykit.errors import BackendError, OptionError, TinykitError, UnknownModelError, UnknownRecipeError
from tinykit.generation.result import Completion
from tinykit.lab.local import LocalRunner
from tinykit.magics import sessions
from tinykit.many import failed_title
from tinykit.titling import Title

MESSAGE = "can you help me plan a trip to Lisbon in May?"
TITLE = "Plan a trip to Lisbon in May"


@pytest.fixture
def shell(shell):
    """A shell whose titles need no model."""
    assert shell.run("%tiny use -r first-words").error is None
    return shell


@pytest.fixture
def no_model(monkeypatch):
    """Fails where anything loads a model."""

    def load(self, spec):
        raise AssertionError(f"{spec.key} was loaded")

    monkeypatch.setattr(TinySession, "_load", load)


def test_line_and_cell_give_the_same_title(shell):
    assert str(shell.run(f"%title {MESSAGE}").value) == TITLE
    assert str(shell.run(f"%%title\n{MESSAGE}\n").value) == TITLE
    assert str(shell.run(f"%%title -r first-words\n{MESSAGE}").value) == TITLE


def test_assigned_title_is_a_title_and_not_shown(shell):
    ran = shell.run(f"x = %title {MESSAGE}")
    assert (ran.value, ran.shown, ran.printed) == (None, [], "")
    assert isinstance(shell.names["x"], Title) and str(shell.names["x"]) == TITLE


@pytest.mark.parametrize(
    ("code", "is_assigned", "is_shown"),
    [
        (f"%title {MESSAGE}", False, True),
        (f"%title {MESSAGE};", False, False),
        (f"%title -o t {MESSAGE}", True, False),
        (f"%title -o t --show {MESSAGE}", True, True),
        (f"%title -o t --show {MESSAGE};", True, False),
        (f"%%title -o t\n{MESSAGE}", True, False),
        (f"%%title -o t --show\n{MESSAGE}\n", True, True),
        (f"%%title\n{MESSAGE};\n", False, False),
    ],
)
def test_output_name_and_semicolon_say_what_is_shown(shell, code, is_assigned, is_shown):
    ran = shell.run(code)
    assert ran.error is None
    assert (ran.value is not None) == is_shown
    assert ("t" in shell.names) == is_assigned
    assert not is_assigned or str(shell.names["t"]) == TITLE


def test_shown_title_is_in_out(shell):
    shell.run(f"%title {MESSAGE}")
    assert str(shell.names["_"]) == TITLE


@pytest.mark.parametrize(
    ("code", "title"),
    [
        ("%title plan a trip to Lisbon?", "Plan a trip to Lisbon"),
        ("%title why don't the tests pass?", "Why don't the tests pass"),
        ("x = %title plan a trip to Lisbon?\nx", "Plan a trip to Lisbon"),
        ("if True:\n    x = %title plan a trip to Lisbon??\nx", "Plan a trip to Lisbon"),
    ],
    ids=["line", "apostrophe", "assigned", "indented"],
)
def test_question_is_no_plea_for_help(shell, code, title):
    ran = shell.run(code)
    assert (ran.error, str(ran.value)) == (None, title)


def test_help_of_the_magic_itself_stays(shell):
    for code in ("%title?", "%tiny?"):
        assert shell.run(code).error is None


@pytest.mark.parametrize("code", ["%title -h", "%title", "%tiny -h", "%tiny", "%tiny use -h"])
def test_help_is_printed_and_nothing_is_asked(shell, no_model, code):
    ran = shell.run(code)
    assert ran.error is None and ran.value is None
    assert "--stats" in ran.printed and "usage" not in ran.printed.lower()


def test_why_and_stats_are_shown_on_request(shell):
    data, metadata = shell.bundle(f"%title {MESSAGE}")
    assert data["text/plain"] == TITLE
    assert metadata["tinykit"]["recipe"] == "first-words"
    assert metadata["tinykit"]["model"] == "smollm2-135m-titles"
    data, _ = shell.bundle(f"%title --why --stats {MESSAGE}")
    assert data["text/plain"].splitlines()[0] == TITLE
    assert "reply:" in data["text/plain"] and "no model was asked" in data["text/plain"]
    data, _ = shell.bundle("%title hi there")
    assert data["text/plain"].startswith("(no title)\nThe message is a greeting")


def test_view_of_one_cell_does_not_stick_to_the_object(shell):
    shell.run(f"x = %title --stats {MESSAGE}")
    data, _ = shell.bundle("x")
    assert data["text/plain"] == TITLE


@pytest.mark.parametrize("kind", [list, tuple, np.array], ids=["list", "tuple", "array"])
def test_many_messages_are_titled_as_a_batch(shell, kind):
    shell.names["messages"] = kind([MESSAGE, "hi"])
    ran = shell.run("%title {{messages}}")
    assert ran.error is None
    assert ran.value.texts == [TITLE, None]
    assert [type(one) for one in ran.value] == [Title, Title] and len(ran.value) == 2
    data, _ = shell.ip.display_formatter.format(ran.value)
    assert "1 of 2 messages has a title" in data["text/plain"] and TITLE in data["text/html"]
    assert "(no title: no_task)" in data["text/plain"]


class Column(np.ndarray):
    """As far as magics can tell, a column of pandas."""


def test_column_is_a_batch_and_a_table_is_none(shell):
    shell.names["df"] = {"text": np.array([MESSAGE]).view(Column)}
    assert shell.run("%title {{df['text']}}").value.texts == [TITLE]
    shell.names["table"] = np.array([[MESSAGE]])
    error = shell.run("%title {{table}}").error
    assert isinstance(error, OptionError) and "Name a column" in error.hint


def test_chat_is_titled_as_one(shell):
    shell.names["chat"] = [{"role": "user", "content": MESSAGE}]
    assert str(shell.run("%title {{chat}}").value) == TITLE


def test_title_of_a_title(shell):
    shell.run(f"t = %title {MESSAGE}")
    assert str(shell.run("%title {{t}}").value) == TITLE


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("%title {{nope}} x", OptionError),
        ("%%title\nwhat about {{nope}}", OptionError),
        ("%tiny {{nope}}", OptionError),
        ("%%tiny\n{{nope}}", OptionError),
        ("%%tiny_eval\n{{nope}}", OptionError),
        ("%title -m {{nope}} x", OptionError),
        ("%title --stat x", OptionError),
        ("%title -m no-such-model x y z", UnknownModelError),
        ("%title -r no-such-recipe plan a trip", UnknownRecipeError),
        ("%tiny use no-such-model", UnknownModelError),
        ("%tiny use smollm2-135m -r no-such-recipe", UnknownRecipeError),
        ("%tiny use -d toaster", OptionError),
        ("%tiny use less words", OptionError),
        ("%tiny models please", OptionError),
        ("%tiny modles", OptionError),
        ("%title {{5}}", OptionError),
        ("%%title a message here\nand one here", OptionError),
        ("%%title -r first-words\n   \n", OptionError),
        ("%title {{get_ipython}}", OptionError),
    ],
)
def test_mistake_is_said_without_traceback_before_any_model_is_asked(shell, no_model, code, kind):
    ran = shell.run(code)
    assert type(ran.error) is kind
    lines = ran.error._render_traceback_()
    assert lines[0].startswith(f"{kind.__name__}: ") and "Traceback" not in ran.printed
    assert lines[0] in ran.printed and ".py" not in ran.printed
    if ran.error.hint:
        assert ran.error.hint.replace("tinykit models", "%tiny models") in ran.printed


def test_error_of_the_python_api_keeps_its_traceback(shell):
    assert not hasattr(TinykitError("x"), "_render_traceback_")


def test_prompt_that_begins_like_a_command_can_be_asked(tiny_shell):
    assert isinstance(tiny_shell.run("%tiny --max-tokens 2 -- use less words").value, Completion)
    assert isinstance(tiny_shell.run("%%tiny --max-tokens 2\nuse less words").value, Completion)


def test_answer_is_a_completion_and_streams_nothing_in_a_terminal(tiny_shell):
    ran = tiny_shell.run("%tiny --max-tokens 4 Name a color.")
    assert isinstance(ran.value, Completion) and ran.shown == []
    data, metadata = tiny_shell.bundle("%tiny --max-tokens 4 --stats Name a color.")
    assert data["text/plain"].startswith(ran.value.text) and "tokens/s" in data["text/plain"]
    assert metadata["tinykit"]["timings"]["total_s"] > 0


def test_options_reach_the_model(tiny_shell):
    one = tiny_shell.run("%tiny --max-tokens 5 --temperature 2 --seed 3 Name a color.").value
    two = tiny_shell.run("%tiny --max-tokens 5 --temperature 2 --seed 3 Name a color.").value
    assert (one.seed, one.text, one.usage.completion_tokens) == (3, two.text, 5)


def test_schema_makes_an_object(tiny_shell):
    pytest.importorskip("llguidance")
    tiny_shell.names["shape"] = {"enum": [17]}
    assert tiny_shell.run("%tiny --schema {{shape}} Which number?").value.parsed == 17


def test_many_prompts_are_answered_as_a_batch(tiny_shell):
    tiny_shell.names["prompts"] = ["Name a color.", "Name a fruit."]
    ran = tiny_shell.run("%tiny --max-tokens 3 {{prompts}}")
    assert [type(one) for one in ran.value] == [Completion, Completion]
    data, _ = tiny_shell.ip.display_formatter.format(ran.value)
    assert data["text/plain"].startswith("2 answers")


def test_chat_is_a_list_of_the_users_own(tiny_shell):
    first = tiny_shell.run("%tiny --chat talk --system Brief. --max-tokens 3 My name is Ada.").value
    second = tiny_shell.run("%tiny --chat talk --max-tokens 3 And mine?").value
    assert tiny_shell.names["talk"] == [
        {"role": "system", "content": "Brief."},
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "And mine?"},
        {"role": "assistant", "content": second.text},
    ]
    tiny_shell.names["talk"] = "text"
    assert isinstance(tiny_shell.run("%tiny --chat talk hello").error, OptionError)


def test_model_in_use_is_the_default_and_can_be_overridden(shell, no_model):
    data, _ = shell.bundle("%tiny use smollm2-135m -d cpu")
    assert "smollm2-135m" in data["text/plain"] and "cpu" in data["text/plain"]
    assert shell.bundle(f"%title {MESSAGE}")[1]["tinykit"]["model"] == "smollm2-135m"
    other = shell.bundle(f"%title -m smollm2-135m-titles {MESSAGE}")
    assert other[1]["tinykit"]["model"] == "smollm2-135m-titles"
    assert shell.bundle(f"%title {MESSAGE}")[1]["tinykit"]["model"] == "smollm2-135m"
    shell.names["which"] = "qwen3-0.6b"
    shell.run("%tiny use {{which}}")
    assert sessions.POOL.defaults.model == "qwen3-0.6b"
    assert sessions.POOL.defaults.device is None  # that was said of another model


def test_failed_use_changes_nothing(shell):
    before = sessions.POOL.defaults
    assert shell.run("%tiny use no-such-model").error is not None
    assert sessions.POOL.defaults == before


@pytest.mark.parametrize(
    "command",
    ["models", "models --stats", "recipe", "recipe titles", "info", "info smollm2-135m", "worker", "doctor"],
)
def test_tables_have_a_caption_headers_and_no_color(shell, no_model, command):
    data, _ = shell.bundle(f"%tiny {command}")
    page = data["text/html"]
    assert "<caption" in page and 'scope="col"' in page and 'scope="row"' in page
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgb\(|background", re.sub(r">[^<]*<", "><", page))
    assert data["text/plain"]


def test_paths_are_shown_only_on_request(shell, tmp_path):
    data, _ = shell.bundle("%tiny info smollm2-135m")
    assert str(tmp_path) not in data["text/plain"] and "builds" not in data["text/plain"]


def test_load_info_and_unload(tiny_shell):
    data, metadata = tiny_shell.bundle("%tiny load")
    assert "loaded" in data["text/plain"] and "fp32" in data["text/plain"]
    assert metadata["tinykit"]["threads"] >= 1 and "threads" not in data["text/plain"]
    assert "In memory" in tiny_shell.bundle("%tiny info")[0]["text/plain"]
    assert "tiny" in tiny_shell.bundle("%tiny unload")[0]["text/plain"]
    assert "nothing was loaded" in tiny_shell.bundle("%tiny unload")[0]["text/plain"]
    assert not any(session.is_loaded for session in sessions.POOL.sessions())


def test_time_that_is_up_leaves_the_fallback_of_one_title_and_of_many(tiny_shell):
    found = tiny_shell.run(f"%title -r titles --timeout 0 {MESSAGE}").value
    assert (found.text, found.why[0].reason) == (TITLE, "timeout")
    tiny_shell.names["messages"] = [MESSAGE, "hi"]
    assert tiny_shell.run("%title -r titles --timeout 0 {{messages}}").value.texts == [TITLE, None]
    assert tiny_shell.run("%title -r plain --timeout 0 {{messages}}").value.texts == [None, None]
    assert tiny_shell.run("%tiny --timeout 0 Hello").value.cancelled_by == "timeout"
    assert isinstance(tiny_shell.run("%title --timeout soon Hello").error, OptionError)


def test_unloaded_model_is_listed_once(tiny_shell):
    for options in ("", "-d cpu"):
        assert tiny_shell.run(f"%tiny load {options}").error is None
    assert sum(session.is_loaded for session in sessions.POOL.sessions()) == 2
    assert tiny_shell.run("%tiny unload").value.rows == (("tiny",),)
    assert not any(session.is_loaded for session in sessions.POOL.sessions())


def test_workers_are_listed_and_what_differs_from_run_to_run_is_told_on_request(shell, monkeypatch):
    from tinykit.worker import admin

    monkeypatch.setattr(admin, "running", list)
    assert "(none runs)" in shell.bundle("%tiny worker")[0]["text/plain"]
    row = {"name": "tiny-q8-1a2b3c", "state": "ready", "pid": 4711, "uptime_s": 61, "memory_bytes": 5_000_000}
    monkeypatch.setattr(admin, "running", lambda: [{**row, "clients": 2, "served": 9}])
    data, _ = shell.bundle("%tiny worker")
    assert data["text/plain"].splitlines()[-1].split() == ["tiny-q8-1a2b3c", "ready", "2", "9"]
    assert '<th scope="row"' in data["text/html"]
    told = shell.bundle("%tiny worker --stats")[0]["text/plain"].splitlines()
    assert told[-2].split() == list(admin.HEADER)
    assert told[-1].split() == ["tiny-q8-1a2b3c", "4711", "ready", "5.0", "MB", "1", "min", "2", "9"]
    assert isinstance(shell.run("%tiny worker now").error, OptionError)


def test_eval_compares_recipes_side_by_side(shell, no_model):
    code = "%%tiny_eval -r first-words\ncan you plan a trip to Lisbon?\n\nhi\n"
    data, _ = shell.bundle(code)
    assert "2 messages, 1 recipe" in data["text/plain"] and "Plan a trip to Lisbon" in data["text/html"]
    assert "a title, %" in data["text/plain"] and "100" in data["text/plain"]
    ran = shell.run("%%tiny_eval -r first-words -o table\nhi")
    assert ran.value is None
    assert shell.names["table"].scores["first-words"] == {}  # none applies to a greeting


def test_eval_takes_the_recipe_in_use_and_the_titles_without_a_model(tiny_shell):
    ran = tiny_shell.run("%%tiny_eval -r plain,first-words\nplan a trip to Lisbon")
    assert ran.error is None and list(ran.value.titles) == ["plain", "first-words"]
    tiny_shell.run("%tiny use -r plain")
    assert list(tiny_shell.run("%%tiny_eval\nhi").value.titles) == ["plain", "first-words"]
    assert isinstance(tiny_shell.run("%%tiny_eval -r a,,b\nhi").error, OptionError)


def test_eval_is_a_run_of_the_lab_with_its_cache_and_kept_where_it_is_told(tiny_shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "%%tiny_eval -r plain {}\nplan a trip to Lisbon\nplan a trip to Lisbon\nplan a trip to Rome\n"
    first = tiny_shell.run(code.format("--no-cache")).value
    assert not list(tmp_path.iterdir())
    tiny_shell.run(code.format(""))
    assert not any(row.cached for row in first.rows["plain"])
    third = tiny_shell.run(code.format("")).value
    assert all(row.cached for row in third.rows["plain"]) and third.titles == first.titles
    shown = tiny_shell.bundle(code.format("--stats"))[0]["text/plain"].splitlines()
    assert shown[-1].split() == ["from", "the", "cache", "3"]
    assert tiny_shell.run(code.format("--keep kept")).error is None
    kept = lab.load(tmp_path / "kept")
    assert kept.is_complete and list(kept.titles("plain").values()) == list(first.titles["plain"])
    other = tiny_shell.run("%%tiny_eval -r plain --keep kept\nplan a trip to Oslo").error
    assert isinstance(other, OptionError) and "holds another run" in str(other)


def test_eval_shows_failures_as_rows_and_the_session_stays_open(tiny_shell, monkeypatch):
    made = TinySession.titles_as_done

    def one_fails(self, *given, **options):
        for index, title in made(self, *given, **options):
            error = BackendError("the model fell over")
            yield index, failed_title(error, options["recipe"]) if index else title

    monkeypatch.setattr(TinySession, "titles_as_done", one_fails)
    ran = tiny_shell.run("%%tiny_eval -r plain --no-cache\nplan a trip to Lisbon\nplan a trip to Rome")
    failed, fine = sorted(ran.value.rows["plain"], key=lambda row: row.status != "failed")
    assert ran.error is None and failed.status == "failed" != fine.status
    assert f"(failed: {failed.error})" in " ".join(str(ran.value.table()).split())
    assert tiny_shell.run("%tiny load").value.is_loaded


def test_stopped_eval_shows_and_keeps_what_there_is(notebook, monkeypatch):
    made = LocalRunner.rows

    def interrupted(self, jobs):
        yield next(made(self, jobs))
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalRunner, "rows", interrupted)
    ran = notebook.run("%%tiny_eval -r plain -o kept --show --no-cache\nplan a trip to Lisbon\nand to Rome")
    assert type(ran.error) is KeyboardInterrupt and "Interrupted." in ran.printed
    assert "1 title was not made" in ran.texts[-1] and "(not made)" in ran.texts[-1]
    kept = notebook.names["kept"]
    assert kept.was_interrupted and sum(row is None for row in kept.rows["plain"]) == 1


def test_reload_keeps_the_models(tiny_shell):
    before = tiny_shell.run("%tiny load").value
    ran = tiny_shell.run("%reload_ext tinykit")
    assert (ran.error, ran.printed, ran.shown) == (None, "", [])
    assert tiny_shell.run("%tiny load").value is before and before.is_loaded


def test_unload_leaves_nothing_behind(ip):
    completer, transformers = ip.Completer, ip.input_transformer_manager.token_transformers
    before = (
        list(completer.custom_matchers),
        list(transformers),
        {k: set(v) for k, v in ip.magics_manager.magics.items()},
    )
    for _ in range(2):
        ip.run_line_magic("load_ext", "tinykit")
        ip.run_cell("%title hi")
        ip.run_line_magic("unload_ext", "tinykit")
    after = (
        list(completer.custom_matchers),
        list(transformers),
        {k: set(v) for k, v in ip.magics_manager.magics.items()},
    )
    assert after == before


def test_load_shows_nothing_and_imports_nothing_heavy(tmp_path):
    code = """
import sys
from IPython.core.interactiveshell import InteractiveShell
before = set(sys.modules)
InteractiveShell.instance().run_line_magic("load_ext", "tinykit")
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300,
        env={"PATH": "", "IPYTHONDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)},
    )  # fmt: skip
    loaded = done.stdout.split()
    assert len(done.stdout.splitlines()) == 1 and done.stderr == ""
    heavy = {"onnxruntime", "onnx", "numpy", "pandas", "ipywidgets", "tokenizers", "jinja2", "httpx2", "click",
             "huggingface_hub", "gguf", "unearth", "torch", "tinykit.session", "tinykit.registry"}  # fmt: skip
    assert not heavy & set(loaded)
    assert "tinykit.magics.shell" in loaded


def test_hint_for_a_shell_names_the_magic_here(shell, no_model):
    error = shell.run("%tiny use smolm2-135m").error
    assert error.hint.endswith("List all with: tinykit models")
    assert error._render_traceback_()[1].endswith("List all with: %tiny models")

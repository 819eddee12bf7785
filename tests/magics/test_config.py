"""`%config TinyMagics` and `enable_magics` (details 6 and 8)."""

import subprocess
import sys

import pytest
from traitlets.config import Config

import tinykit
from tests.magics.conftest import Shell
from tinykit.magics import sessions

MESSAGE = "can you help me plan a trip to Lisbon in May?"


def defaults():
    return sessions.POOL.defaults


def test_config_sets_what_is_used_where_nothing_is_named(shell):
    assert shell.run("%config TinyMagics.recipe = 'first-words'").error is None
    assert str(shell.run(f"%title {MESSAGE}").value) == "Plan a trip to Lisbon in May"
    assert shell.run("%config TinyMagics.model = 'smollm2-135m'").error is None
    _, metadata = shell.bundle(f"%title {MESSAGE}")
    assert metadata["tinykit"]["model"] == "smollm2-135m"
    shell.run("%config TinyMagics.stats = True")
    assert "no model was asked" in shell.bundle(f"%title {MESSAGE}")[0]["text/plain"]
    shown = shell.bundle("%tiny info")[0]["text/plain"]
    assert "smollm2-135m" in shown and "stats" in shown


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("recipe = 'no-such-recipe'", "no-such-recipe"),
        ("model = 'no-such-model'", "no-such-model"),
        ("device = 'toaster'", "toaster"),
        ("max_tokens = -3", "-3"),
        ("stats = 'maybe'", "maybe"),
    ],
)
def test_wrong_config_is_said_and_changes_nothing(shell, line, said, caplog):
    before = defaults()
    shell.run(f"%config TinyMagics.{line}")
    assert said in caplog.text
    assert defaults() == before
    assert said not in str(shell.run(f"%config TinyMagics.{line.partition(' ')[0]}").value)


def test_config_tells_what_is_in_use(shell):
    shell.run("%tiny use smollm2-135m -r plain")
    assert shell.run("%config TinyMagics.model").value == "smollm2-135m"
    assert shell.run("%config TinyMagics.recipe").value == "plain"
    shown = shell.run("%config TinyMagics").printed
    assert "TinyMagics.max_tokens" in shown and "New tokens of an answer at most." in shown


def test_max_tokens_and_progress_reach_the_session(tiny_shell):
    tiny_shell.run("%config TinyMagics.max_tokens = 3")
    assert tiny_shell.run("%tiny Name a color.").value.usage.completion_tokens == 3
    assert tiny_shell.run("%tiny --max-tokens 2 Name a color.").value.usage.completion_tokens == 2
    tiny_shell.run("%config TinyMagics.progress = False")
    assert tiny_shell.run("%tiny load").value.load_options["progress"]._show is False


def test_config_outlives_a_reload_and_leaves_with_the_extension(shell):
    shell.run("%config TinyMagics.recipe = 'first-words'")
    shell.run("%reload_ext tinykit")
    assert shell.run("%config TinyMagics.recipe").value == "first-words"
    names = [type(one).__name__ for one in shell.ip.configurables]
    assert names.count("TinyMagics") == 1


def test_config_file_of_ipython_counts(ip):
    ip.update_config(Config({"TinyMagics": {"recipe": "first-words", "max_tokens": 7}}))
    ip.run_line_magic("load_ext", "tinykit")
    shell = Shell(ip)
    assert (defaults().recipe, defaults().max_tokens) == ("first-words", 7)
    assert str(shell.run(f"%title {MESSAGE}").value) == "Plan a trip to Lisbon in May"
    shell.run("%tiny use -r plain")
    shell.run("%reload_ext tinykit")
    assert defaults().recipe == "plain"  # what was said last
    ip.run_line_magic("unload_ext", "tinykit")


def test_magics_can_be_enabled_by_a_program_any_number_of_times(ip, capsys):
    tinykit.enable_magics()
    magics = ip.magics_manager.magics["line"]["title"]
    tinykit.enable_magics()
    assert ip.magics_manager.magics["line"]["title"] is magics
    shell = Shell(ip)
    assert str(shell.run(f"%title -r first-words {MESSAGE}").value) == "Plan a trip to Lisbon in May"
    ip.run_line_magic("unload_ext", "tinykit")
    assert "title" not in ip.magics_manager.magics["line"]
    tinykit.enable_magics()
    assert "title" in ip.magics_manager.magics["line"]
    ip.run_line_magic("unload_ext", "tinykit")
    assert capsys.readouterr() == ("", "")


def test_magics_elsewhere_are_a_mistake_that_is_said():
    code = "import tinykit\ntry: tinykit.enable_magics()\nexcept tinykit.TinykitError as error: print(error, error.hint)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert "need a notebook or IPython" in done.stdout and "TinySession" in done.stdout


@pytest.mark.parametrize(
    ("name", "value"),
    [("model", "smollm2-135m"), ("device", "cpu"), ("dtype", "q8"), ("recipe", "plain"), ("max_tokens", 5)],
)
def test_nothing_restores_the_default(shell, name, value, caplog):
    for nothing in ("''", "' '", "None"):
        shell.run(f"%config TinyMagics.{name} = {value!r}")
        assert getattr(defaults(), name) == value
        shell.run(f"%config TinyMagics.{name} = {nothing}")
        assert getattr(defaults(), name) is None and not caplog.text
        assert shell.run(f"%config TinyMagics.{name}").value is None

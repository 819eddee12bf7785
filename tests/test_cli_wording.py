"""What errors of the library say to whoever typed a command."""

import json

import click
import pytest

from tinykit import cli
from tinykit.cli.wording import command_of, in_shell_words
from tinykit.errors import OptionError, WorkerError


def reworded(command, text, name=None):
    error = OptionError(text, hint=text, name=name)
    return in_shell_words(error, *command_of(command.split(), cli.cli))


@pytest.mark.parametrize(
    ("command", "name", "text", "message"),
    [
        ("title", "timeout_s", "timeout_s must be a number, not -1.", "--timeout must be a number, not -1."),
        ("title", "threads", "The argument threads is 0, but", "--threads is 0, but"),
        ("complete", "choices", "choices must be a list.", "--choice must be a list."),
        ("complete", "stop", "stop must be texts; for a full stop write '.'", "--stop must be texts; for a full stop write '.'"),
        ("complete", "model", "A model is named by a key.", "A model is named by a key."),
        ("lab run", "out", "runs/out holds another run", "runs/out holds another run"),
        ("title", "batch_size", "batch_size must be 1.", "batch_size must be 1."),
        ("bench --peers", "runs", "runs must be a whole number", "--runs must be a whole number"),
    ],
)  # fmt: skip
def test_message_names_the_option(command, name, text, message):
    assert reworded(command, text, name)[0] == message


@pytest.mark.parametrize(
    ("command", "text", "hint"),
    [
        ("complete", "It was cut at max_tokens; allow more.", "It was cut at --max-tokens; allow more."),
        ("title", "It was cut at max_tokens; allow more.", "It was cut at max_tokens; allow more."),
        ("title", "Use dtype='q4', or dtype='auto'.", "Use --dtype q4, or --dtype auto."),
        ("title", "Choose a precision with dtype=…", "Choose a precision with --dtype …"),
        ("title", "for cuda use backend='onnx'.", "for cuda use TINYKIT_BACKEND=onnx."),
        ("models path", "for cuda use backend='onnx'.", "for cuda use --backend onnx."),
        ("title", "Leave out fallback=False to run.", "Leave out TINYKIT_FALLBACK=0 to run."),
        ("lab run", "Choose another folder: out=...", "Choose another folder: --out …"),
        ("lab run", "Or change this run with update=True.", "Or change this run with --update."),
        ("lab plot", "make one with batch_size=1.", "make one with --batch-size 1."),
        ("lab diff", "with only_common=True.", "with --only-common."),
        ("lab diff", "For example: run['plain @ x']", "For example: 'RUN:plain @ x'"),
        ("tune", "go on with that training: resume=True.", "go on with that training: --resume."),
        ("tune", "Begin one: resume=False.", "Begin one: without --resume."),
        ("lab score", "lab.run(cases, out=...) makes one.", "'tinykit lab run CASES --out FOLDER' makes one."),
        (
            "lab freeze",
            "run.resume() and run.retry_failures() make them.",
            "'tinykit lab run' with --retry makes them.",
        ),
        ("lab check", "run.freeze(variant, folder) writes them.", "'tinykit lab freeze RUN VARIANT --out FOLDER' writes them."),
        ("title", "pip install 'onnxruntime>=1.28'; a_b=c /x/max_tokens.txt?dtype=q4", "pip install 'onnxruntime>=1.28'; a_b=c /x/max_tokens.txt?dtype=q4"),
        ("", "Use dtype='q4'.", "Use TINYKIT_DTYPE=q4."),
    ],
)  # fmt: skip
def test_hint_is_in_words_of_the_shell(command, text, hint):
    assert reworded(command, text)[1] == hint


def test_hint_may_be_missing():
    assert in_shell_words(WorkerError("It is busy."), *command_of(["worker"], cli.cli)) == (
        "It is busy.",
        None,
    )


def test_command_of_arguments():
    def names(*arguments):
        return tuple(one and one.name for one in command_of(list(arguments), cli.cli))

    assert names("title", "lab") == ("title", None)
    assert names("lab", "run", "diff") == ("run", "lab")
    assert names("nope") == names() == ("cli", None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("title", "--timeout", "-1", "x"), "--timeout must be a number of seconds"),
        (("complete", "--max-tokens", "-1", "x"), "--max-tokens must be a whole number"),
        (("complete", "--temperature", "-1", "x"), "--temperature must be"),
        (("complete", "--seed", "-1", "x"), "--seed must be"),
        (("complete", "--stop", "", "x"), "--stop must be texts"),
        (("title", "--threads", "0", "x"), "--threads is 0"),
        (("lab", "score", "nowhere"), "'tinykit lab run CASES --out FOLDER' makes one."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_commands_say_it(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        cli.main(list(arguments))
    out, err = capsys.readouterr()
    assert (caught.value.code, out) == (2, "") and said in err


def test_errors_as_json_say_it_too(capsys):
    with pytest.raises(SystemExit):
        cli.main(["title", "--json", "--timeout", "-1", "x"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["message"].startswith("--timeout must be") and error["type"] == "OptionError"


def test_every_option_has_a_flag_that_can_be_named():
    def commands(command):
        yield command
        for one in getattr(command, "commands", {}).values():
            yield from commands(one)

    for command in commands(cli.cli):
        for option in command.params:
            assert not isinstance(option, click.Option) or max(option.opts, key=len).startswith("--")

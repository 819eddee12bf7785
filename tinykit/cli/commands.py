"""The commands of ``tinykit``, and what they print."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tinykit import __version__
from tinykit.cli.models import models
from tinykit.cli.options import session_options, shared_option
from tinykit.cli.serve import serve
from tinykit.cli.worker import worker
from tinykit.errors import OptionError
from tinykit.lab.command import lab
from tinykit.tune.command import tune

if TYPE_CHECKING:
    from tinykit.generation.result import Completion
    from tinykit.titling import Title


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="tinykit %(version)s")
def cli() -> None:
    """Tiny local language models: title, complete, and see what is on this machine."""


cli.add_command(models)
cli.add_command(serve)
cli.add_command(tune)
cli.add_command(worker)
cli.add_command(lab)


@cli.command()
@click.argument("text", nargs=-1)
@click.option("-f", "--file", "file", help="Title each line of this file; - is standard input.")
@click.option("-r", "--recipe", help="How to make titles: a name, or a JSON or TOML file.")
@click.option("--timeout", "timeout_s", type=float, help="Seconds for all titles, without loading the model.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--why", is_flag=True, help="Also show the steps from the reply to the title.")
@click.option("--stats", is_flag=True, help="Also show the seconds each title took.")
@shared_option
@session_options
def title(
    text: tuple[str, ...],
    file: str | None,
    recipe: str | None,
    timeout_s: float | None,
    as_json: bool,
    why: bool,
    stats: bool,
    **options: Any,
) -> int:
    """Title a message, the words of TEXT together; - reads it from standard input."""
    from tinykit.generation.request import checked_timeout_s
    from tinykit.session import TinySession

    if (file is None) == (not text):
        raise click.UsageError("Give either a message or --file.")
    messages = list(_lines(file)) if file is not None else [_message(text)]
    left_s = checked_timeout_s(timeout_s)
    found = 0
    with TinySession(recipe=recipe, lazy=True, **options) as session:
        for message in messages:
            started, loaded_s = time.perf_counter(), session.load_s
            result = session.title_result(message, timeout_s=left_s)
            elapsed_s = time.perf_counter() - started - (session.load_s - loaded_s)
            left_s = None if left_s is None else max(0.0, left_s - elapsed_s)
            found += result.text is not None
            if as_json:
                click.echo(json.dumps(_as_dict(result, elapsed_s), ensure_ascii=False))
            else:
                _show(result, why=why, elapsed_s=elapsed_s if stats else None)
    return 0 if found or file is not None else 1


def _message(words: tuple[str, ...]) -> str:
    from tinykit.titles import has_text

    message = _read("-") if words == ("-",) else " ".join(words)
    try:
        message.encode("utf-8")
    except UnicodeEncodeError as error:  # Python keeps a byte that is no text as a lone surrogate
        before = message[: error.start].encode("utf-8", "surrogateescape")
        raise _not_utf8("The message", ord(message[error.start]) & 0xFF, len(before)) from error
    if not message.strip():
        raise OptionError("The message is empty.", hint="Give some text.", name="text", value=message)
    if not has_text(message):
        raise OptionError(
            f"The message has no visible character, only {_code_points(message)}.",
            hint="Give some text.",
            name="text",
            value=message,
        )
    return message


def _code_points(text: str) -> str:
    """The different invisible characters of a text, by number."""
    found = [f"U+{ord(char):04X}" for char in dict.fromkeys(text) if not char.isspace()]
    return ", ".join(found[:5]) + (", …" if len(found) > 5 else "")


def _lines(file: str) -> Iterator[str]:
    """The lines of a file that are not blank; only a newline ends one."""
    lines = [line.rstrip("\r") for line in _read(file).split("\n") if line.strip()]
    if not lines:
        raise OptionError(f"{_named(file)} has no lines to title.", name="file", value=file)
    yield from lines


def _read(file: str) -> str:
    try:
        data = _standard_input() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise OptionError(
            f"{_named(file)} cannot be read: {error.strerror or error}.", name="file", value=file
        ) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(_named(file), data[error.start], error.start) from error


def _not_utf8(what: str, byte: int, position: int) -> OptionError:
    return OptionError(
        f"{what} is not valid UTF-8: byte {byte:#04x} at position {position:,}.",
        hint="Convert it first, for instance with: iconv -f LATIN1 -t UTF-8",
        name="text",
        value=what,
    )


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise OSError("it is closed")
    return sys.stdin.buffer.read()


def _named(file: str) -> str:
    return "Standard input" if file == "-" else file


def _as_dict(result: Title, elapsed_s: float) -> dict[str, Any]:
    usage = result.usage
    return {
        "title": result.text,
        "why": [step.reason.value for step in result.why],
        "recipe": result.recipe,
        "raw": result.raw,
        "prompt_tokens": usage.prompt_tokens if usage else 0,
        "completion_tokens": usage.completion_tokens if usage else 0,
        "elapsed_s": round(elapsed_s, 4),
    }


def _show(result: Title, *, why: bool, elapsed_s: float | None) -> None:
    """The title on standard output; that there is none, on standard error."""
    seconds = "" if elapsed_s is None else f"{elapsed_s:6.3f} s  "
    shown = _printable(result.text) if result.text is not None else ""
    click.echo(seconds + (shown or ("(no title)" if seconds else "")))
    if why or result.text is None:
        click.echo(
            "\n".join(f"    {_printable(line)}" for line in result.explain().splitlines()), err=not why
        )


def _schema(file: IO[str] | None) -> Path | str | None:
    """A file as its path, so that errors name it; standard input as its text."""
    if file is None:
        return None
    name = getattr(file, "name", "<stdin>")
    return file.read() if name == "<stdin>" else Path(name)


def _printable(text: str) -> str:
    """Without control characters, which a terminal would obey."""
    return "".join(char if char.isprintable() else " " for char in text)


@cli.command()
@click.argument("prompt", nargs=-1, required=True)
@click.option("-s", "--system", help="Text to put before the prompt.")
@click.option(
    "--max-tokens", default="256", show_default=True, help="New tokens; more than 1,024 counts as 1,024."
)
@click.option("--stop", multiple=True, help="End before this text; may be given several times.")
@click.option("--temperature", type=float, help="Draw the tokens; 0, the default, takes the likeliest.")
@click.option("--seed", type=int, help="Of the draws, for the same answer again.")
@click.option("--regex", help="A regular expression that the whole answer matches.")
@click.option("--choice", "choices", multiple=True, help="An allowed answer; give it several times.")
@click.option("--schema", type=click.File("r", encoding="utf-8"), help="File with a JSON schema.")
@click.option("--timeout", "timeout_s", type=float, help="Seconds after which to stop.")
@click.option("--json", "as_json", is_flag=True, help="The whole answer as one JSON object, at its end.")
@click.option("--stats", is_flag=True, help="Also show tokens and seconds.")
@shared_option
@session_options
def complete(
    prompt: tuple[str, ...],
    system: str | None,
    max_tokens: str,
    stop: tuple[str, ...],
    temperature: float | None,
    seed: int | None,
    regex: str | None,
    choices: tuple[str, ...],
    schema: IO[str] | None,
    timeout_s: float | None,
    as_json: bool,
    stats: bool,
    **options: Any,
) -> None:
    """Answer a prompt, word by word as it comes; - reads the prompt from standard input."""
    from tinykit.call_options import generation_options
    from tinykit.session import TinySession

    given: dict[str, Any] = {
        "max_tokens": _max_tokens(max_tokens),
        "stop": stop,
        "temperature": temperature,
        "seed": seed,
        "regex": regex,
        "choices": choices or None,
        "schema": _schema(schema),
        "timeout_s": timeout_s,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    generation_options(chosen)  # a mistake is said before the model is loaded
    text = _message(prompt)
    with (
        TinySession(lazy=True, **options) as session,
        session.stream(text, system=system, **chosen) as stream,
    ):
        try:
            for piece in stream:
                if not as_json:
                    click.echo(piece, nl=False)
                    sys.stdout.flush()
        finally:  # also after Ctrl-C: what was said stays on its line, or is told
            stream.close()
            completion = stream.result
            click.echo(json.dumps(_completion_as_dict(completion), ensure_ascii=False) if as_json else None)
    if completion.cancelled_by == "timeout" and not as_json:
        left = "the answer ends where it was" if completion.text else "there is no answer yet"
        click.echo(f"The time was up after {timeout_s:g} s (--timeout), so {left}.", err=True)
    if stats:
        usage, timings, speed = completion.usage, completion.timings, completion.decode_tokens_per_s
        click.echo(
            f"{usage.prompt_tokens} + {usage.completion_tokens} tokens, "
            f"{f'first after {timings.ttft_s:.3f} s, ' if timings.ttft_s is not None else ''}"
            f"{timings.total_s:.3f} s in all{f', {speed:.0f} tokens/s' if speed else ''}, "
            f"ended by {completion.cancelled_by or completion.finish_reason}"
            f"{f', seed {completion.seed}' if completion.seed is not None else ''}",
            err=True,
        )


def _completion_as_dict(completion: Completion) -> dict[str, Any]:
    usage, timings = completion.usage, completion.timings
    return {
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "cancelled_by": completion.cancelled_by,
        "seed": completion.seed,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "ttft_s": None if timings.ttft_s is None else round(timings.ttft_s, 4),
        "elapsed_s": round(timings.total_s, 4),
        "notes": list(completion.notes),
    }


def _max_tokens(text: str) -> int:
    from tinykit.generation.request import checked_max_tokens

    try:
        number: object = float(text)
    except ValueError:
        number = text
    return checked_max_tokens(number)


@cli.command()
@click.option("--runs", type=int, default=5, show_default=True, help="How often to do each thing.")
@click.option("-r", "--recipe", help="How to make titles: a name, or a JSON or TOML file.")
@click.option("--warm", is_flag=True, help="Leave out the new process.")
@click.option("--peers", is_flag=True, help="The embedded model beside other engines that are installed.")
@click.option("--quick", is_flag=True, help="With --peers: less of everything.")
@click.option(
    "--busy-ok", is_flag=True, help="With --peers: measure on a busy machine too, for a first look."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@session_options
def bench(
    runs: int,
    recipe: str | None,
    warm: bool,
    peers: bool,
    quick: bool,
    busy_ok: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Measure how fast a model is on this machine: from a new process, loaded again, and at work."""
    context = click.get_current_context()
    _check_peers_options(context, peers)
    if peers:
        rounds = None if _is_default(context, "runs") else runs
        return _bench_peers(rounds, quick, busy_ok, as_json, options["threads"])
    from tinykit.latency import measure
    from tinykit.session import TinySession

    with TinySession(lazy=True, **options) as session:
        found = measure(session, recipe=recipe, runs=runs, cold=not warm)
    click.echo(json.dumps(found.to_dict(), indent=1) if as_json else str(found))
    return 0


_PEERS_TAKES = {"runs", "peers", "quick", "busy_ok", "as_json", "threads"}


def _check_peers_options(context: click.Context, peers: bool) -> None:
    """No option is dropped in silence: --peers measures the embedded model, and alone takes --quick."""
    given = {name for name in context.params if not _is_default(context, name)}
    wrong = given - _PEERS_TAKES if peers else given & {"quick", "busy_ok"}
    for name in sorted(wrong):
        flag = f"--{name.replace('_', '-')}"
        raise OptionError(
            f"{flag} cannot be used {'with' if peers else 'without'} --peers.",
            hint="benchmarks/peers.py has more options." if peers else f"Add --peers, or leave out {flag}.",
            name=name,
        )


def _is_default(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) in (None, ParameterSource.DEFAULT)


def _bench_peers(rounds: int | None, quick: bool, busy_ok: bool, as_json: bool, threads: int | None) -> int:
    from tinykit.peers import command
    from tinykit.progress import Progress

    options = command.Options(busy_ok=busy_ok, threads=threads)
    options = command.quick(options) if quick else options
    if rounds is not None:
        options = replace(options, rounds=rounds)
    outcome = command.run(options, say=lambda text: click.echo(text, err=True), progress=Progress())
    command.tell(outcome, click.echo, as_json=as_json)
    return 0 if outcome.passes else 6


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--hub", is_flag=True, help="Also ask whether the hub answers.")
def doctor(as_json: bool, hub: bool) -> None:
    """Show versions, memory, disk, caches and settings, for yourself or for a bug report."""
    from tinykit.doctor import doctor as examine

    report = examine(hub=hub)
    click.echo(json.dumps(report.facts, indent=1) if as_json else str(report))

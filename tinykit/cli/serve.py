"""``tinykit serve``: an endpoint for programs that speak the OpenAI API."""

from __future__ import annotations

import json
from typing import Any

import click

from tinykit.cli.options import session_options, shared_option


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", default=8135, show_default=True, help="Port to listen at; 0 takes a free one.")
@click.option("--token-file", help="File with the token that clients must send; else TINYKIT_TOKEN has it.")
@click.option(
    "--waiting",
    type=click.IntRange(0, 10_000),
    default=16,
    show_default=True,
    help="Requests that may wait for their turn; further ones are told that the model is busy.",
)
@click.option("--allow-remote", is_flag=True, help="Let --host be an address that other machines reach.")
@shared_option
@click.option("--json", "as_json", is_flag=True, help="Say where it listens as one line of JSON.")
@session_options
def serve(
    host: str,
    port: int,
    token_file: str | None,
    waiting: int,
    allow_remote: bool,
    shared: bool,
    as_json: bool,
    model: str | None,
    **options: Any,
) -> None:
    """Answer programs that speak the OpenAI API, on this machine, until Ctrl-C."""
    from tinykit.serve import SHARED_AT_ONCE, check_packages
    from tinykit.serve import serve as run
    from tinykit.serve.access import find_token, listen
    from tinykit.session import TinySession

    check_packages()
    token, is_new = find_token(token_file)
    bound = listen(host, port, allow_remote=allow_remote)  # before the model is loaded, which may take long

    def say(url: str) -> None:
        if as_json:
            fields = {"url": url, "model": session.spec.key, **({"token": token} if is_new else {})}
            click.echo(json.dumps(fields))
            return
        click.echo(f"{session.spec.key} at {url}, until Ctrl-C.")
        if is_new:
            click.echo(f"Token, for this time: {token}")
        if allow_remote:
            click.echo("Other machines can reach it, and what they say is not encrypted.", err=True)

    at_once = SHARED_AT_ONCE if shared else 1
    how: dict[str, Any] = {"host": host, "is_remote": allow_remote, "at_once": at_once, "waiting": waiting}
    options = {"lazy": True, "shared": shared, **options}
    with bound, TinySession(_chat_model(model, options["adapter"]), **options) as session:
        run(session, bound, token=token, on_ready=say, **how)


def _chat_model(model: str | None, adapter: str | None) -> str | None:
    """The model for chats: of one that was trained for titles, the one it was made from.

    Raises:
        OptionError: it is a judge, which cannot write.
    """
    from tinykit import settings
    from tinykit.loaded_model import not_for_text
    from tinykit.loading import DEFAULT_MODEL
    from tinykit.registry import get_model

    chosen = model or settings.get("model") or DEFAULT_MODEL
    spec = get_model(chosen)
    if spec.task == "judge":
        raise not_for_text(spec)
    return chosen if adapter is not None else spec.chat_model or chosen

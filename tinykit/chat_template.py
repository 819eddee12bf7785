"""Chat templates: where a model's folder keeps them, and how they are compiled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinykit.errors import ModelFileError, OptionError

if TYPE_CHECKING:
    from jinja2 import Template


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model's folder; empty if there is none.

    Raises:
        ModelFileError: it is no JSON object.
    """
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not valid JSON: {error}", path=path) from error
    if not isinstance(config, dict):
        raise ModelFileError(f"{path} holds no JSON object.", path=path)
    return config


def read_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The chat template from its own file or from the config, where it may be a list of named ones."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            template: object = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelFileError(f"{path} is not readable text: {error}", path=path) from error
    else:
        older = read_config(folder / "chat_template.json").get("chat_template")
        name = "tokenizer_config.json" if older is None else "chat_template.json"
        path, template = folder / name, config.get("chat_template") if older is None else older
    try:
        if isinstance(template, list):
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        if template is not None and not isinstance(template, str):
            raise TypeError
    except (KeyError, TypeError) as error:
        raise ModelFileError(
            f"{path}: the field chat_template must be text or a list of name and template.", path=path
        ) from error
    return template if template and template.strip() else None


def compile_template(source: str | None) -> Template:
    """Compile a chat template in a sandbox, with the names that such templates expect.

    What they expect: https://huggingface.co/docs/transformers/chat_templating_writing

    Raises:
        OptionError: there is none.
        ModelFileError: it is not valid.
    """
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    if source is None:
        raise OptionError(
            "The model has no chat template, so it cannot be asked.",
            hint="Take the instruction-tuned version of the model; 'tinykit models' lists some that work.",
            name="chat_template",
        )

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    class Generation(Extension):
        """Marks around generated spans, which concern training only."""

        tags = {"generation"}  # noqa: RUF012  # declared by jinja2 as what it is

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except (TemplateError, RecursionError, ValueError, SyntaxError, AssertionError) as error:
        raise ModelFileError(f"The model's chat template is not valid: {error}") from error

"""The magics themselves, in one shell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tinykit.errors import OptionError
from tinykit.magics import asking, commands
from tinykit.magics.completion import matcher
from tinykit.magics.interpolation import filled, value_of
from tinykit.magics.options import MagicOptions, help_text, parse
from tinykit.magics.screen import Screen, brief
from tinykit.magics.sessions import POOL

_USAGE = {
    "title": "%title [options] MESSAGE   or   %%title [options], and the message below\n"
    "{{name}} stands for a variable; alone, also for a chat, a list or a column of messages.",
    "tiny": "%tiny [options] PROMPT   or   %%tiny [options], and the prompt below\n"
    "%tiny COMMAND, where COMMAND is\n"
    + "\n".join(
        f"  {(name + ' ' + (f'[{one.metavar}]' if one.metavar else '')):16} {one.help}"
        for name, one in commands.COMMANDS.items()
    ),
    "tiny_eval": "%%tiny_eval [options], and below it one message a line",
}
_KINDS = {"title": "line_cell", "tiny": "line_cell", "tiny_eval": "cell"}


class Installed:
    """Puts the magics into a shell, and takes them away again."""

    def __init__(self, shell: Any) -> None:
        from IPython.core.magic import no_var_expand

        from tinykit.magics.config import TinyMagics
        from tinykit.magics.questions import Question

        self._shell = shell
        self._config = TinyMagics(shell, POOL)
        shell.configurables.append(self._config)  # where %config looks
        self._screen = Screen(shell)
        self._matcher = matcher()
        self._question = Question
        shell.Completer.custom_matchers.append(self._matcher)
        shell.input_transformer_manager.token_transformers.append(Question)
        for name, kind in _KINDS.items():
            shell.register_magic_function(no_var_expand(self._magic(name)), kind, name)

    def close(self) -> None:
        """Leave the shell as it was."""
        self._screen.close()
        transformers = self._shell.input_transformer_manager.token_transformers
        for hooks, own in (
            (self._shell.Completer.custom_matchers, self._matcher),
            (transformers, self._question),
            (self._shell.configurables, self._config),
        ):
            if own in hooks:
                hooks.remove(own)
        for table in self._shell.magics_manager.magics.values():
            for name in _KINDS:
                table.pop(name, None)

    def _magic(self, name: str) -> Callable[..., Any]:
        act = {"title": self._title, "tiny": self._tiny, "tiny_eval": self._tiny_eval}[name]

        def magic(line: str, cell: str | None = None) -> Any:
            return act(line, cell)

        magic.__name__ = name
        magic.__doc__ = help_text(name, _USAGE[name])
        return brief(magic)

    def _title(self, line: str, cell: str | None) -> Any:
        """Title a message, a chat, or many of them."""
        options, text, is_silent = self._parsed("title", line, cell)
        if options is None:
            return None
        options = POOL.with_defaults(options)
        value = value_of(text, self._shell.user_ns)
        result = asking.title(POOL.get(options), value, options, self._page(options, is_silent))
        return self._result(result, options, is_silent)

    def _tiny(self, line: str, cell: str | None) -> Any:
        """Answer a prompt or a chat, or run a command."""
        word, _, rest = line.strip().partition(" ")
        if cell is None and word in commands.COMMANDS:
            return self._command(word, rest)
        if cell is None and line.strip() == word and (meant := commands.near(word)):
            raise OptionError(
                f"%tiny has no command {word!r}.",
                hint=f"Did you mean {meant}? To ask the model: %tiny -- {word}",
                name="command",
                value=word,
            )
        options, text, is_silent = self._parsed("tiny", line, cell)
        if options is None:
            return None
        options = POOL.with_defaults(options)
        value = value_of(text, self._shell.user_ns)
        session = POOL.get(options)
        if options.chat is not None:
            return self._chat(session, value, options, is_silent)
        result = asking.answer(session, value, options, self._page(options, is_silent))
        return self._result(result, options, is_silent)

    def _chat(self, session: Any, value: Any, options: MagicOptions, is_silent: bool) -> Any:
        """Go on with a chat that is a list of the user's: the turn and its answer are added to it."""
        assert options.chat is not None
        names = self._shell.user_ns
        turns = names.get(options.chat, [])
        if not isinstance(turns, list) or not isinstance(value, str):
            raise OptionError(
                f"--chat needs a list of messages and a turn of text; {options.chat} is a "
                f"{type(turns).__name__} and the turn a {type(value).__name__}.",
                name="chat",
                value=options.chat,
            )
        system = [] if turns or not options.system else [{"role": "system", "content": options.system}]
        asked = [*turns, *system, {"role": "user", "content": value}]
        page = self._page(options, is_silent)
        answer = asking.answer(session, asked, replace(options, system=None), page)
        turns[:] = [*asked, {"role": "assistant", "content": str(answer)}]
        names[options.chat] = turns
        return self._result(answer, options, is_silent)

    def _tiny_eval(self, line: str, cell: str | None) -> Any:
        """Titles of several recipes for the messages of the cell."""
        from tinykit.magics import evaluating

        options, text, is_silent = self._parsed("tiny_eval", line, cell)
        if options is None:
            return None
        messages = evaluating.lines(filled(text, self._shell.user_ns))
        given = options.recipe
        options = POOL.with_defaults(options)
        session = POOL.get(options)
        recipes = evaluating.recipe_names(given, str(getattr(options.recipe, "name", options.recipe or "")))
        page = self._page(options, is_silent)
        named = [name or session.recipe.name for name in recipes]
        result = evaluating.compare(
            session, messages, named, page.progress, out=options.keep, cache=not options.no_cache
        )
        view = result.table(stats=options.stats)._repr_mimebundle_
        if result.was_interrupted:
            page.stopped(result, view)
            raise KeyboardInterrupt
        return self._result(page.finished(result, view), options, is_silent)

    def _command(self, name: str, line: str) -> Any:
        options, text, is_silent = self._parsed("tiny command", line, None, may_be_empty=True)
        if options is None:
            return None
        words = [str(value_of(word, self._shell.user_ns)) for word in text.split()]
        if words and not options.help:
            more, rest = parse(" ".join(words[1:]), "tiny command", self._shell.user_ns)
            given = more.given("device", "dtype", "recipe")
            options, words = replace(options, **given, stats=options.stats or more.stats), words[:1]
            words += rest.split()
        result = commands.run(name, POOL, options, words)
        self._config.follow()
        return None if is_silent else result

    def _parsed(
        self, magic: str, line: str, cell: str | None, *, may_be_empty: bool = False
    ) -> tuple[MagicOptions | None, str, bool]:
        """Options, text, and whether a semicolon silences the result; no options if help was shown."""
        options, text = parse(line, magic, self._shell.user_ns)
        if cell is not None:
            if text:
                raise OptionError(
                    f"Only options stand in the first line of %%{magic}, not {text!r:.60}.",
                    hint="The text goes below it.",
                    name="line",
                    value=text,
                )
            text = cell.strip("\n")
        is_silent = text.rstrip().endswith(";")
        if is_silent:
            text = text.rstrip().removesuffix(";")
        if options.help or not (text.strip() or may_be_empty):
            name = "tiny" if magic == "tiny command" else magic
            if not options.help and cell is not None:
                raise OptionError(f"%%{magic} has no text.", name="text", value=cell)
            self._print(help_text(name, _USAGE[name]))
            return None, text, is_silent
        return options, text, is_silent

    def _print(self, text: str) -> None:
        print(text)  # noqa: T201

    def _page(self, options: MagicOptions, is_silent: bool) -> asking.Page:
        return asking.Page(
            self._screen,
            self._keeper(options),
            is_silent or options.is_quiet,
            is_telling=POOL.defaults.progress,
        )

    def _keeper(self, options: MagicOptions) -> Callable[[Any], None]:
        def keep(result: Any) -> None:
            if options.output is not None:
                self._shell.user_ns[options.output] = result

        return keep

    def _result(self, result: Any, options: MagicOptions, is_silent: bool) -> Any:
        self._keeper(options)(result)
        return None if is_silent or options.is_quiet else result

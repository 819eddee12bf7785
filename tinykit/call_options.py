"""Keywords: those that `complete`, `chat`, `stream` and `complete_many` share, and misspelt ones."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, cast

from tinykit.errors import OptionError
from tinykit.generation.constraint import Constraint
from tinykit.generation.request import Draft, GenerationOptions, checked_tokens_per_step
from tinykit.generation.sampling import Sampling

F = TypeVar("F", bound=Callable[..., Any])


class CallOptions(TypedDict, total=False):
    """How to generate.

    max_tokens: New tokens at most, from 0 (the prompt alone); more than 1,024 counts as 1,024.
    stop: Texts that end the answer; they are not part of it.
    temperature, top_k, top_p, min_p, repeat_penalty, frequency_penalty, logit_bias, seed: see `Sampling`.
    regex, choices, schema, lark, gbnf: What the answer may look like; one of them. `schema` is a JSON schema,
        a `Path` to one or a pydantic model, and `Completion.parsed` then the object.
    draft: Guess tokens by prompt lookup: True, how many at most, or (min, max).
    tokens_per_step: Tokens in one piece of a stream at most; the setting, else 32.
    logprobs: True for each token's log-probability, a number for so many alternatives beside it.
    timeout_s: Seconds after which the call is cancelled; what there is by then is returned.
    exact: Leave out whatever lets the last bits of the logits depend on how many tokens go in at once.
    """

    max_tokens: int
    stop: str | Sequence[str]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    regex: str | None
    choices: Iterable[str] | None
    schema: Any
    lark: str | None
    gbnf: str | None
    draft: bool | int | tuple[int, int] | Draft | None
    tokens_per_step: int | None
    logprobs: bool | int | None
    timeout_s: float | None
    exact: bool


_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "frequency_penalty", "logit_bias", "seed",
)  # fmt: skip
_CONSTRAINTS: dict[str, Callable[[Any], Constraint]] = {
    "regex": Constraint.regex,
    "choices": Constraint.choices,
    "schema": Constraint.json_schema,
    "lark": Constraint.lark,
    "gbnf": Constraint.gbnf,
}
_OF_SOME_CALLS = ("system", "slot", "reuse", "n", "on_chunk", "on_verify", "batch_size")
_OTHERS = ("max_tokens", "stop", "draft", "logprobs", "timeout_s", "exact")


def generation_options(given: Mapping[str, Any]) -> GenerationOptions:
    """The options that were given by keyword.

    Raises:
        OptionError: an unknown name, a value that cannot be used, or more than one constraint.
    """
    for name in given:
        if name not in CallOptions.__annotations__:
            known = list(CallOptions.__annotations__)
            raise _unknown(name, given[name], known, [*known, *_OF_SOME_CALLS])
    fields: dict[str, Any] = {name: given[name] for name in _OTHERS if name in given}
    fields["sampling"] = Sampling(**{name: given[name] for name in _SAMPLING if name in given})
    fields["constraint"] = _constraint(given)
    fields["tokens_per_step"] = checked_tokens_per_step(given.get("tokens_per_step"))
    return GenerationOptions(**fields)


def _unknown(name: str, value: object, known: Sequence[str], near: Sequence[str]) -> OptionError:
    longer = [one for one in near if name and one.startswith(name)]
    found = longer or difflib.get_close_matches(name, near, 1)
    hint = f"Did you mean {found[0]}?" if found else f"Known are {', '.join(known)}."
    return OptionError(f"Unknown option {name!r}.", hint=hint, name=name, value=value)


def names_options(method: F) -> F:
    """Let a call with a keyword that the method does not have say which one was meant.

    Raises:
        OptionError: an unknown name, in place of Python's TypeError.
    """
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(method).parameters.values()
    known = [one.name for one in parameters if one.kind in kinds and one.name != "self"]

    @functools.wraps(method)
    def checked(*args: Any, **given: Any) -> Any:
        for name in given:
            if name not in known:
                raise _unknown(name, given[name], known, known)
        return method(*args, **given)

    return cast(F, checked)


def _constraint(given: Mapping[str, Any]) -> Constraint | None:
    asked = [name for name in _CONSTRAINTS if given.get(name) is not None]
    if len(asked) > 1:
        raise OptionError(
            f"An answer can have one constraint, not {' and '.join(asked)}.",
            hint="Keep one of them; a Lark grammar can say all that the others can.",
            name=asked[1],
            value=given[asked[1]],
        )
    return _CONSTRAINTS[asked[0]](given[asked[0]]) if asked else None


def takes_call_options(method: F) -> F:
    """Show the keywords of `CallOptions` in the method's signature, so that notebooks complete them."""
    signature = inspect.signature(method)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_default(name), annotation=kind)
        for name, kind in CallOptions.__annotations__.items()
    ]
    cast(Any, method).__signature__ = signature.replace(parameters=[*own, *options])
    return method


def _default(name: str) -> object:
    if name in _SAMPLING:
        return getattr(Sampling, name)
    return getattr(GenerationOptions, name, None) if name in _OTHERS else None

"""Which GGUF file of a repo to take, from nothing but the names of its files.

By custom the name ends with the number format of the weights, `Some-135M-Q4_K_M.gguf`:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#gguf-naming-convention
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from tinykit.errors import OptionError, UnsupportedModelError

# Architectures that the importer knows; a hub lists a repo's architecture before anything is downloaded.
FAMILIES = ("llama", "qwen2", "qwen3", "gemma3", "lfm2")

_FORMAT = r"(?:I|T)?Q[0-9]_\w+|B?F(?:16|32)|(?:MX|NV)FP4\w*"
_ENDING = re.compile(rf"(?:.*[-._ ])?(?P<format>{_FORMAT})", re.IGNORECASE)
_PART = re.compile(r"-[0-9]{5}-of-[0-9]{5}$")
# Files beside the weights: the part that sees or hears, and statistics that a quantiser used.
_ASIDE = ("mmproj", "imatrix")

_ROUNDED = (
    "Q6_K", "Q6_K_L", "Q5_K_M", "Q5_K_L", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_L", "Q4_K_XL", "Q4_K_S",
    "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS",
)  # fmt: skip
_FLOATS = ("BF16", "F16", "F32")
# For each precision to import to, the formats that serve it, best first. Q8_0 is imported bit for bit and
# runs as fast as anything else; a format with fewer bits saves download only, since it becomes 8 bits too.
_SERVES: Mapping[str, tuple[str, ...]] = {
    "auto": ("Q8_0", *_ROUNDED, *_FLOATS),
    "q8": ("Q8_0", *_FLOATS, *_ROUNDED),
    "w8a8": ("Q8_0", *_FLOATS, *_ROUNDED),
    "fp32": ("F32", "BF16", "F16", "Q8_0", *_ROUNDED),
    "q4": ("Q4_0",),
}
_ALIASES = {"int8": "q8"}


@dataclass(frozen=True)
class GgufChoice:
    """A GGUF file of a repo: its name, and the number format that the name tells; empty if it tells none."""

    name: str
    number_format: str


def number_format(name: str) -> str:
    """The number format that a file's name ends with, in capitals; empty if it tells none."""
    path = PurePosixPath(name)
    for stem in (_PART.sub("", path.stem), path.parent.name):
        if match := _ENDING.fullmatch(stem):
            return match["format"].upper()
    return ""


def is_number_format(text: str) -> bool:
    """Whether `text` is the name of a number format of GGUF files, such as `Q4_K_M`."""
    return bool(re.fullmatch(_FORMAT, text, re.IGNORECASE))


def gguf_choices(names: Sequence[str]) -> list[GgufChoice]:
    """The files with a model's weights, in the order to take them."""
    found = [
        GgufChoice(name, number_format(name))
        for name in sorted(names)
        if name.lower().endswith(".gguf") and not any(word in name.lower() for word in _ASIDE)
    ]
    return sorted(found, key=lambda choice: _rank(choice, _SERVES["auto"]))


def choose_gguf(names: Sequence[str], dtype: str = "auto", choice: str = "") -> GgufChoice:
    """The one file to fetch.

    Args:
        names: All files of the repo.
        dtype: A precision to import to, a number format, or `auto`.
        choice: A number format or a file's name; it goes before `dtype`.

    Raises:
        OptionError: There is no such file, or more than one; the message lists those that there are.
        UnsupportedModelError: The weights are split over several files.
    """
    choices = gguf_choices(names)
    asked = choice or ("" if _ALIASES.get(dtype, dtype) in _SERVES else dtype)
    fitting = _asked_for(choices, asked) if asked else _serving(choices, _ALIASES.get(dtype, dtype))
    if not fitting:
        raise _missing(choices, asked or dtype)
    first = fitting[0]
    if _PART.search(PurePosixPath(first.name).stem):
        raise UnsupportedModelError(
            f"{first.name} is one part of a model that is split over several files; the importer reads one",
            hint=f"Choose another: {_listed(choices)}. Or join the parts with llama.cpp's gguf-split.",
            path=None,
        )
    same = [one.name for one in fitting if one.number_format == first.number_format]
    if len(same) > 1:
        raise OptionError(
            f"There are {len(same)} GGUF files that fit: {', '.join(same)}",
            hint=f"Name one, as in owner/name:{same[0]}",
            name="gguf",
            value=asked or dtype,
        )
    return first


def _asked_for(choices: Sequence[GgufChoice], asked: str) -> list[GgufChoice]:
    wanted = asked.lower()
    by_name = [one for one in choices if wanted in _names(one)]
    return by_name or [one for one in choices if one.number_format.lower() == wanted]


def _names(choice: GgufChoice) -> tuple[str, ...]:
    """All that a user may call this file."""
    path = PurePosixPath(choice.name.lower())
    return (str(path), path.name, path.stem)


def _serving(choices: Sequence[GgufChoice], dtype: str) -> list[GgufChoice]:
    order = _SERVES[dtype]
    known = [one for one in choices if one.number_format in order]
    others = [] if dtype == "q4" else [one for one in choices if one.number_format not in order]
    return sorted(known, key=lambda one: _rank(one, order)) + others


def _rank(choice: GgufChoice, order: Sequence[str]) -> int:
    return order.index(choice.number_format) if choice.number_format in order else len(order)


def _listed(choices: Sequence[GgufChoice]) -> str:
    return ", ".join(dict.fromkeys(one.number_format or one.name for one in choices))


def _missing(choices: Sequence[GgufChoice], asked: str) -> OptionError:
    shown = asked.upper() if is_number_format(asked) else asked
    what = {
        "q4": "There is no Q4_0 file of this model, the one that q4 can be made from",
        "fp16": "GGUF weights become q8 or fp32, not fp16, and there is no F16 file of this model",
    }.get(asked, f"There is no {shown!r} among its GGUF files")
    if not choices:
        return OptionError(
            f"There is no GGUF file here, so {asked!r} cannot be chosen",
            hint="Leave it out, and choose a precision with dtype=…",
            name="gguf",
            value=asked,
        )
    example = choices[0].number_format or choices[0].name
    return OptionError(
        f"{what}; there are {_listed(choices)}",
        hint=f"Choose one, as in owner/name:{example}",
        name="gguf",
        value=asked,
    )

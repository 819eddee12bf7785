"""From a message to the text in the prompt: is there a task at all, and what of it does a model see.

Pure text in, text out, linear in its length, and never an exception for odd text. What a model answers is
the business of `extraction.py`.
"""

import math
import re
from collections.abc import Iterable, Mapping

from tinykit import fillers, phrases
from tinykit.focus import focus
from tinykit.recipes import Preparation, Recipe
from tinykit.scripts import count_words, is_unspaced
from tinykit.wordlists import LOOSE_WORDS

_RAW_WINDOW = 262_144  # characters kept at each end before any pattern runs
_WINDOW = 16_384  # the same, once code is gone
_MIN_CHARS = 12  # with less than this left, a message was nothing but code
_TURNS = 6
_MIN_WORDS = 4  # a shorter first sentence takes the next one along
_UNSPACED_CHARS = 20
_LOOSE_LETTERS = re.compile(r"(?<=[^\x00-\x7f])\s*[A-Za-z0-9_.-]+$")

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # colours, cursor moves
    r"|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)"  # window titles, links
    r"|[ -/]*[0-~])"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_FENCE = re.compile(r"`{3,}")
_TAG = re.compile(r"<(/?)([A-Za-z][\w:.-]{0,63})(?=[\s/>])[^<>]{0,2000}>")
_HEX = re.compile(r"\b(?:0[xX])?([0-9a-fA-F]{12,})\b")
_OUR_TAGS = ("user-message", "user", "chat", "assistant", "title", "system")
_TEMPLATE_TAG = re.compile(r"</?([A-Za-z][\w-]*)")
_CHAT_BLOCK = re.compile(r"\s*<chat>(.*)</chat>\s*", re.S)
_CHAT_TAGS = re.compile(r"</?(?:chat|user|assistant)>")
_BROKEN_TAG = re.compile(r"</?[a-z]*(?=\n\[… \d+ characters)|(?<= left out …\]\n)/?[a-z]*>")
_CHAT_TAGS_CHARS = len("<chat>\n\n</chat>")
_PLACEHOLDER = re.compile(
    r"\[?\b(?:image|video|photo|file)\s*#\s*\d+\]?|\[(?:image|video|photo|file)(?:\s*\d+)?\]", re.I
)
_ARITHMETIC = re.compile(r"\d\s*[+*/^=×÷]\s*\d")
_THINKING = re.compile(
    r"<(think(?:ing)?|thought|reasoning)\b[^<>]{0,200}>(?:(?!<\1\b).)*?(?:</\1\s*>|\Z)", re.I | re.S
)
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[:;][()DP])\s+|(?<=[。！？])|\n")


def has_text(message: str) -> bool:
    """Whether a message holds a character that one can see: no blank, control or format character."""
    return any(char.isprintable() and not char.isspace() for char in message)


def has_task(message: str) -> bool:
    """Whether a message asks for anything that a title could name.

    Greetings, thanks, assent, laughter, tests and bare numbers or signs ask for nothing, in many languages;
    nor does an attachment with no more than "what is this". Meant to be sure when it says no.
    """
    text = fillers.fold(_CHAT_TAGS.sub(" ", _ends(message)))
    if _ARITHMETIC.search(text):
        return True
    rest, placeholders = _PLACEHOLDER.subn(" ", text)
    is_empty = fillers.is_pointer if placeholders else fillers.is_filler
    return not all(is_empty(word) for word in fillers.words(fillers.drop_phrases(rest)))


def prepare(message: str, preparation: Preparation | None = None) -> str:
    """What a model is shown of a message: no terminal codes, code blocks or long hashes, cut to size.

    Nothing in it can be taken for one of the tags that wrap it. A chat block as `prepare_conversation`
    makes it comes back as it is.
    """
    preparation = preparation or Preparation()
    if len(message) <= preparation.max_chars + _CHAT_TAGS_CHARS and is_chat_block(message):
        return message
    if preparation.style == "focus":
        return neutralize(focus(message, preparation.max_chars))
    return neutralize(_cut_middle(_clean(message, preparation), preparation))


def prepare_conversation(turns: Iterable[Mapping[str, str]], preparation: Preparation | None = None) -> str:
    """The last six turns of a conversation as one chat block, cut to size as a whole; "" if nothing is left.

    Args:
        turns: Mappings with `role` and `content`. What user and assistant said counts, without thinking.
        preparation: How each turn is cleaned, and the size of it all.
    """
    preparation = preparation or Preparation()
    parts: list[str] = []
    for turn in [turn for turn in turns if turn["role"] in ("user", "assistant")][-_TURNS:]:
        content = _THINKING.sub(" ", _window(turn["content"], _RAW_WINDOW))
        if text := neutralize(_clean(content, preparation)):
            parts.append(f"<{turn['role']}>\n{text}\n</{turn['role']}>")
    inner = _BROKEN_TAG.sub("", _cut_middle("\n".join(parts), preparation))
    return f"<chat>\n{inner}\n</chat>" if parts else ""


def user_turn(message: str, recipe: Recipe) -> str:
    """The user turn of the prompt: the prepared message in the template; a chat block stands alone."""
    prepared = prepare(message, recipe.preparation)
    if is_chat_block(prepared):
        return prepared
    text = neutralize(prepared, tags=_TEMPLATE_TAG.findall(recipe.template))
    return recipe.template.replace("{message}", text)


def is_chat_block(text: str) -> bool:
    """Whether a text is one chat block from beginning to end, and holds no tag that could break it."""
    if "<chat>" not in text[:64] or _SURROGATES.search(text):
        return False
    block = _CHAT_BLOCK.fullmatch(text)
    if not block or "<chat>" in block[1] or "</chat>" in block[1]:
        return False
    inner = _CHAT_TAGS.sub("", block[1])
    return neutralize(inner) == inner


def neutralize(text: str, *, tags: Iterable[str] = ()) -> str:
    """Text of the same length in which the prompt's own tags, and further ones, stand in square brackets."""
    names = "|".join(map(re.escape, [*_OUR_TAGS, *tags]))
    # whatever stands between "<" and the name (slash, space, invisible characters) makes it no other tag
    pattern = rf"<(?=[^\w<>]{{0,16}}(?:{names})\b)([^<>]{{0,200}})(>?)"
    return re.sub(pattern, lambda tag: f"[{tag[1]}{']' if tag[2] else ''}", text, flags=re.I)


def first_words(message: str, *, max_words: int = 7, max_chars: int = 80) -> str | None:
    """A title without a model: the first words of the first sentence that says something.

    Code is left out if there is anything else, and so is what people say before they come to the point.
    Scripts without spaces get 20 characters.
    """
    if not has_task(message):
        return None
    text = _clean(message, Preparation(fences="keep", markup="keep"))
    prose = _FENCE.sub("\n", text) if len(_drop_fences(text).strip()) < _MIN_CHARS else _drop_fences(text)
    rest = ""
    for sentence in filter(has_task, _sentences(prose)):
        if phrases.is_pleasantry(sentence):
            continue
        rest = f"{rest} {sentence}" if rest else _drop_openings(sentence)
        if count_words(rest) >= _MIN_WORDS:
            break
    return _shorten(rest or prose, max_words, max_chars) or None


def _clean(message: str, preparation: Preparation) -> str:
    """Steps 1 to 7 of the preparation, in their order."""
    text = _SURROGATES.sub("\ufffd", _window(message, _RAW_WINDOW))
    text = _CONTROLS.sub("", _ESCAPES.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
    if preparation.fences == "drop":
        prose = " ".join(_drop_fences(text).split()) if "```" in text else text
        text = prose if len(prose) >= _MIN_CHARS or "```" not in text else text
    text = _window(text, _WINDOW)
    if preparation.markup == "drop":
        bare = _drop_paired_tags(text)
        text = bare if any(char.isalnum() for char in bare) else text
    text = _HEX.sub(lambda run: run[0][: len(run[0]) - len(run[1]) + preparation.hex_chars], text)
    text = re.sub(r"[ \t]+", " ", text)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r" ?\n ?", "\n", text)).strip()


def _window(text: str, size: int) -> str:
    return text if len(text) <= 2 * size else f"{text[:size]}\n…\n{text[-size:]}"


def _ends(text: str) -> str:
    """The window of a text in whole words, if it has spaces at all."""
    if len(text) <= 2 * _WINDOW:
        return text
    head, tail = text[:_WINDOW], text[-_WINDOW:]
    return f"{head.rpartition(' ')[0] or head} {tail.partition(' ')[2] or tail}"


def _drop_fences(text: str) -> str:
    """Text between the fences; one that is never closed runs to the end."""
    return " ".join(_FENCE.split(text)[::2])


def _drop_paired_tags(text: str) -> str:
    """Text without `<name …>…</name>` blocks; tags without a partner stay."""
    open_tags: list[tuple[str, int]] = []
    depth: dict[str, int] = {}
    blocks: list[tuple[int, int]] = []
    for tag in _TAG.finditer(text):
        name = tag[2].lower()
        if not tag[1]:
            if not tag[0].endswith("/>"):
                open_tags.append((name, tag.start()))
                depth[name] = depth.get(name, 0) + 1
        elif depth.get(name):
            start = -1
            while start < 0:
                inner, position = open_tags.pop()
                depth[inner] -= 1
                start = position if inner == name else -1
            while blocks and blocks[-1][0] > start:
                blocks.pop()
            blocks.append((start, tag.end()))
    kept, end = [], 0
    for start, stop in blocks:
        kept.append(text[end:start])
        end = stop
    return " ".join([*kept, text[end:]])


def _cut_middle(text: str, preparation: Preparation) -> str:
    """Text of at most `max_chars`; a marker in its middle says how many characters are missing."""
    size = preparation.max_chars
    if len(text) <= size:
        return text
    marker = ""
    for _ in range(4):  # the number is part of the marker, whose length changes the number
        marker = f"\n[… {len(text) - size + len(marker)} characters left out …]\n"
    head = math.ceil(round((size - len(marker)) * preparation.head_share, 6))
    tail = size - len(marker) - head
    return text[:head] + marker + text[len(text) - tail :]


def _sentences(text: str) -> list[str]:
    return [sentence.strip() for sentence in _SENTENCE_END.split(text) if sentence.strip()]


def _drop_openings(sentence: str) -> str:
    """A sentence from where it comes to the point."""
    rest = sentence.lstrip("#>*-•=–— \t\"'`")
    for _ in range(8):
        shorter = phrases.drop_opening(rest)
        if not has_task(shorter):
            break
        rest = shorter
    return rest


def _shorten(text: str, max_words: int, max_chars: int) -> str:
    """The beginning of a text, without a loose end, with a capital if it starts with a plain word."""
    letters = [char for char in text[:200] if char.isalpha()]
    if 2 * sum(map(is_unspaced, letters)) > len(letters):
        title = _LOOSE_LETTERS.sub("", text[:_UNSPACED_CHARS]) if len(text) > _UNSPACED_CHARS else text
        clause = re.split("[,，、;；。]", title)[0]
        title = clause if len(clause) >= _UNSPACED_CHARS / 3 else title
    else:
        kept = text[: 40 * max_chars].split()[:max_words]
        while len(kept) > 3 and kept[-1].casefold() in LOOSE_WORDS:
            kept.pop()
        while len(kept) > 1 and len(" ".join(kept)) > max_chars:
            kept.pop()
        title = " ".join(kept)[:max_chars]
    title = title.rstrip(" .,:;!?-–—…(，。、：；！？")
    first = title.split(maxsplit=1)[0] if title else ""
    return title[:1].upper() + title[1:] if first.islower() and first.isalpha() else title

"""From a model's reply to a title: cut out, unwrapped, spelled as the message spells, and checked for shape.

Every change leaves a `Step` with a reason from the closed list; a reply that is no title leaves the reason
why. Whether a title is true to its message is the business of `checks.py`.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from tinykit import phrases
from tinykit.casing import match_casing
from tinykit.checks import has_wrong_script
from tinykit.reasons import Reason, Step
from tinykit.recipes import Recipe
from tinykit.scripts import count_words

_WINDOW = 16_384  # of a reply, at each end; a title is never further in
_LINE = 2_000  # a longer first line is no title, whatever is peeled off it
_MIN_COPY_WORDS = 5

_CONTROLS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060\u2066-\u2069\ufeff\ufffd\ud800-\udfff]"
)
_THINK = r"(?:think(?:ing)?|thoughts?|reason(?:ing)?|reflection|analysis|scratchpad)"
_THINK_MARK = re.compile(
    rf"(?P<close></{_THINK}\s*>|\[/THINK\]|◁/think▷|<\|channel\|>final<\|message\|>)"
    rf"|<{_THINK}\b[^<>]{{0,200}}>|\[THINK\]|◁think▷|```{_THINK}\b|(?P<fence>```)",
    re.I,
)
_TITLE_OPEN = re.compile(r"<title\b[^<>]{0,200}?(?=/?>)/?>?", re.I)
_TITLE_CLOSE = re.compile(r"</title\b[^<>]{0,20}>?", re.I)
_SELF_CLOSED = re.compile(r"\s*/>|<title\b[^<>]{0,200}/>", re.I)
_FORMAT_TAG = re.compile(r"</?(?:b|i|u|em|strong|code|span|p|h[1-6]|mark|small|br)\b[^<>]{0,100}/?>", re.I)
_ANY_TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>?|<[|!/].{0,200}", re.S)
_JSON_TITLE = re.compile(r"""\{\s*["'][^"'\n]{0,40}["']\s*:\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""")
_LOOKS_JSON = re.compile(r"""\{\s*(?:["']|\}|$)|\[\s*["'{]""")
_FENCED = re.compile(r"```[\w-]*[ \t]*(?:\n|$)(.*?)(?:```.*|\Z)", re.S)
_LEADING = re.compile(r"(?:#{1,6}|>+|[-*•–—+]|[:;,.])\s+(?=\S)")
_NUMBERED = re.compile(r"\(?1[.):]\s+(?=\S)")
_EMPHASIS = re.compile(r"(?<![\w*])(\*\*|__)(?=\S)([^*]+?)(?<=\S)\1(?![\w*])")
_WHOLE_EMPHASIS = re.compile(r"([*_~`]{1,3})(?=[^\s*_~`])(.+)(?<=[^\s*_~`])\1")
_CODE_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"!?\[([^\[\]\n]+)\]\((?:https?:|/|#|mailto:)[^()\s]*\)")
_ENDING = re.compile(r"(?<=[\w)\]}\"'”’»」』°%])\s*[.!?…。！？．,，、;；:：۔؟।]+$")
_DOTTED = re.compile(r"(?:\b[^\W\d_]\.){2,}$|\b(?:etc|vs|Inc|Ltd|Co|Jr|Sr|St)\.$")
# „“ and „” are both in use, so are »« and «»
_QUOTE_PAIRS = "\"\" '' `` “” „“ „” ““ ”” ‘’ ‚‘ ’’ «» »« ‹› ›‹ 「」 『』 《》 〈〉 【】 ＂＂ 〝〞 〝〟"
_QUOTES = [(pair[0], pair[1]) for pair in _QUOTE_PAIRS.split()]
_OPENING = '"“„«「『《【＂〝'

_EXAMPLE = re.compile(r"<title>([^<>\n]+)</title>|[\"“]([^\"“”\n]{8,80})[\"”]")

_ONLY_TAG = re.compile(r"</?(?:user|chat|assistant|system|title)>", re.IGNORECASE)

Change = Callable[[str, str], str | None]


@dataclass(frozen=True)
class Extraction:
    """A title and how it came about.

    Attributes:
        text: The title, None if the reply holds none.
        why: What was done, in order; the last step says why there is no title.
    """

    text: str | None
    why: tuple[Step, ...] = ()

    @property
    def rejected(self) -> Reason | None:
        """Why there is no title; None if there is one."""
        return self.why[-1].reason if self.text is None and self.why else None


def extract(raw: str, *, source: str, recipe: Recipe, finish_reason: str = "stop") -> Extraction:
    """The title in a model's reply.

    Args:
        raw: What the model wrote after the recipe's prefill.
        source: The message, for its spelling and for what may stay because the message has it too.
        recipe: Its prefill, limits and answer for "no title".
        finish_reason: Why the generation ended: "stop", "length" (the token limit) or "cancelled".
    """
    if finish_reason == "cancelled":
        return Extraction(None, (Step(Reason.CANCELLED, raw[:_LINE]),))
    text = raw if len(raw) <= 2 * _WINDOW else f"{raw[:_WINDOW]} {raw[-_WINDOW:]}"
    work = _Work(text, _window(source))
    work.change(Reason.CONTROL, _drop_controls)
    work.change(Reason.THINK_LEAK, _without_thinking, rejected=Reason.BUDGET_SPENT_THINKING)
    was_closed = _TITLE_CLOSE.search(work.text) is not None
    for stop in recipe.stop:
        work.text = work.text.rstrip().removesuffix(stop)
    work.change(Reason.TAGS, lambda reply, _: _title_tag(reply, recipe.prefill), rejected=Reason.NO_TITLE)
    work.change(Reason.JSON, _unwrap_json)
    work.change(Reason.MARKUP, _unfence)
    work.change(Reason.MULTILINE, _first_line)
    work.reject_if(Reason.TOO_LONG, len(work.text) > _LINE)
    work.repeat(_CLEANING)
    work.remark_if(Reason.CUT_OFF, finish_reason == "length" and not was_closed)
    work.reject_if(Reason.NO_TITLE, _means_no_title(work.text, recipe))
    work.reject_if(Reason.EMPTY, not any(char.isalnum() or char == "_" for char in work.text))
    work.reject_if(Reason.TOO_SHORT, len(work.text) == 1 and work.text.isascii())
    _judge(work, recipe)
    return Extraction(None if work.is_over else work.text, tuple(work.why))


def clean(title: str, source: str = "") -> str:
    """A title line without label, markup, quotes and final punctuation; doing it twice changes nothing."""
    work = _Work(title, _window(source))
    work.repeat(_CLEANING)
    return work.text


class _Work:
    """A text on its way through the steps; nothing more happens once it is rejected."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.folded = source.casefold()
        self.why: list[Step] = []
        self.is_over = False

    def change(self, reason: Reason, change: Change, *, rejected: Reason | None = None) -> None:
        """Apply a change; one that leaves None rejects the text, one that only trims is not worth a step."""
        if self.is_over:
            return
        after = change(self.text, self.source)
        if after is None:
            self.why.append(Step(rejected or reason, self.text))
            self.is_over = True
        elif after.strip() != self.text.strip():
            self.why.append(Step(reason, self.text, after))
        self.text = after if after is not None else ""

    def repeat(self, changes: tuple[tuple[Reason, Change], ...]) -> None:
        """Apply changes until none has an effect; each only ever shortens the text."""
        before = None
        while self.text != before and not self.is_over:
            before = self.text
            for reason, change in changes:
                self.change(reason, change)

    def remark_if(self, reason: Reason, condition: bool) -> None:
        """Leave a step that changes nothing."""
        if condition and not self.is_over:
            self.why.append(Step(reason, self.text, self.text))

    def reject_if(self, reason: Reason, condition: bool) -> None:
        """End the work without a title."""
        if condition and not self.is_over:
            self.why.append(Step(reason, self.text))
            self.is_over = True

    def has(self, fragment: str) -> bool:
        """Whether the message holds this fragment too."""
        return bool(fragment) and fragment.casefold() in self.folded


def _judge(work: _Work, recipe: Recipe) -> None:
    """Reject what is a reply, but no title."""
    start = " ".join(work.text.split()[:4])
    if not work.has(start):
        work.reject_if(Reason.THINK_LEAK, phrases.is_preamble(work.text))
        work.reject_if(Reason.REFUSED, phrases.is_refusal(work.text))
        work.reject_if(Reason.ANSWERS_INSTEAD, phrases.is_answer(work.text))
    examples = {_key(example) for example in _prompt_examples(recipe)}
    work.reject_if(Reason.COPIES_PROMPT_EXAMPLE, _key(work.text) in examples and not work.has(work.text))
    work.reject_if(Reason.TOO_LONG, count_words(work.text) > recipe.max_words)
    work.change(Reason.TOO_LONG, lambda title, _: _within(title, recipe.max_chars))
    work.change(Reason.CASING, match_casing)
    work.reject_if(Reason.TOO_LONG, len(work.text) > recipe.max_chars)
    work.reject_if(Reason.WRONG_SCRIPT, has_wrong_script(work.text, work.source))
    beginning = _key(work.source[: 8 * recipe.max_chars])
    if len(work.source) > recipe.max_chars and count_words(work.text) >= _MIN_COPY_WORDS:
        work.remark_if(Reason.COPIES_FIRST_MESSAGE, beginning.startswith(_key(work.text)))


def _drop_controls(reply: str, _: str) -> str:
    return _CONTROLS.sub("", reply.replace("\r\n", "\n").replace("\r", "\n"))


def _without_thinking(reply: str, source: str) -> str | None:
    """A reply without its thinking, tagged or fenced; None if it never stopped thinking.

    What stands before a closing mark that nothing opened is thinking too. Marks that the message has stay.
    """
    folded = source.casefold()
    kept: list[str] = []
    end, opened = 0, ""
    for mark in _THINK_MARK.finditer(reply):
        is_fence = mark["fence"] is not None
        if opened:
            if is_fence if opened.startswith("```") else mark["close"]:
                end, opened = mark.end(), ""
        elif is_fence or mark[0].casefold() in folded:
            continue
        elif mark["close"]:
            kept, end = [], mark.end()
        else:
            kept.append(reply[end : mark.start()])
            opened = mark[0]
    text = " ".join(kept if opened else [*kept, reply[end:]])
    return None if opened and not any(map(str.isalnum, _TITLE_OPEN.sub("", text))) else text


def _title_tag(reply: str, prefill: str) -> str | None:
    """What stands in the title tag: after the last opening one, up to the next closing one.

    If the prefill opened the tag, a closing one that comes first ends it, whatever follows.
    """
    if _SELF_CLOSED.match(reply):
        return None
    opened = list(_TITLE_OPEN.finditer(reply))
    closed = _TITLE_CLOSE.search(reply)
    closes_first = closed and opened and closed.start() < opened[0].start()
    if opened and not (closes_first and _TITLE_OPEN.search(prefill)):
        if opened[-1][0].endswith("/>"):
            return None
        reply = reply[opened[-1].end() :]
        if reply.lstrip().startswith("/>"):
            return None
    return _TITLE_CLOSE.split(reply, maxsplit=1)[0]


def _cut_tags(title: str, source: str) -> str:
    """Text up to the first tag that is not the message's own; tags that only format are dropped."""
    kept, end = [], 0
    folded = source.casefold()
    for tag in _ANY_TAG.finditer(title):
        if tag[0].casefold() in folded or _is_generic(title, tag):
            continue
        kept.append(title[end : tag.start()])
        end = tag.end()
        if not _FORMAT_TAG.fullmatch(tag[0]):
            return "".join(kept)
    return "".join([*kept, title[end:]])


def _is_generic(title: str, tag: re.Match[str]) -> bool:
    """Whether this is a type such as Vec<String> and no tag."""
    before = title[tag.start() - 1 : tag.start()]
    return before.isalnum() and re.fullmatch(r"<[A-Z][\w., ]*>", tag[0]) is not None


def _unwrap_json(reply: str, _: str) -> str | None:
    """The title of a JSON object; None if it is cut short, for its last word would be cut too."""
    text = fenced[1].strip() if (fenced := _FENCED.match(reply.strip())) else reply.strip()
    if not _LOOKS_JSON.match(text) or text.startswith("{{"):
        return reply
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        found = _JSON_TITLE.search(text)
        value = next((group for group in found.groups() if group), None) if found else None
    return _json_title(value)


def _json_title(value: object) -> str | None:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict):
        named = [inner for name, inner in value.items() if "title" in str(name).casefold()]
        value = named[0] if named else next(iter(value.values())) if len(value) == 1 else None
    return value if isinstance(value, str) and value.strip() else None


def _unfence(reply: str, _: str) -> str:
    fenced = _FENCED.match(reply.strip())
    return fenced[1] if fenced else reply


def _first_line(reply: str, _: str) -> str:
    """The first line that says something; a lead-in that ends with a colon does not."""
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    lines = [line for line in lines if not _ONLY_TAG.fullmatch(line)] or lines  # the prompt's own, echoed
    lines = [line for line in lines if any(map(str.isalnum, line)) or line == "-"] or lines
    if len(lines) > 1 and phrases.is_lead_in(lines[0]):
        lines = lines[1:]
    return lines[0] if lines else ""


def _collapse(title: str, _: str) -> str:
    return " ".join(title.split())


def _drop_label(title: str, source: str) -> str:
    rest = phrases.drop_label(title)
    label = title[: len(title) - len(rest)]
    return title if label and f"{label}{rest[:4]}".casefold() in source.casefold() else rest


def _drop_markup(title: str, source: str) -> str:
    """Text without Markdown around it; what the message writes the same way stays."""

    def unless_quoted(replace: str) -> Callable[[re.Match[str]], str]:
        return lambda match: match[0] if match[0] in source else match.expand(replace)

    text = title
    if leading := _LEADING.match(text) or _NUMBERED.match(text):
        text = text if text[: leading.end() + 8] in source else text[leading.end() :]
    if whole := _WHOLE_EMPHASIS.fullmatch(text):
        is_one = whole[1] not in whole[2] and text not in source
        text = whole[2] if is_one else text
    text = _EMPHASIS.sub(unless_quoted(r"\2"), text)
    text = _CODE_SPAN.sub(r"\1", text)
    return _LINK.sub(unless_quoted(r"\1"), text)


def _peel_quotes(title: str, _: str) -> str:
    """Text without a pair of quotation marks around all of it, or an opening one that is never closed."""
    for first, last in _QUOTES:
        if len(title) > 2 and title[0] == first and title[-1] == last:
            inner = title.strip(first + last) if first == last else title[1:-1]
            # an apostrophe between letters is no quotation mark
            bare = re.sub(r"(?<=\w)['’](?=\w)", "", inner)
            if first not in bare and last not in bare:
                return inner.strip()
    if title[:1] and title[0] in _OPENING:
        partners = {last for first, last in _QUOTES if first == title[0]}
        if not partners & set(title[1:]):
            return title[1:].strip()
    return title


def _drop_ending(title: str, _: str) -> str:
    return title if _DOTTED.search(title) else _ENDING.sub("", title)


_CLEANING: tuple[tuple[Reason, Change], ...] = (
    # once more, for labels and markup can stand around JSON, and JSON can hold line breaks as escapes
    (Reason.JSON, _unwrap_json),
    (Reason.CONTROL, _drop_controls),
    (Reason.MULTILINE, _first_line),
    (Reason.TAGS, _cut_tags),
    (Reason.SPACES, _collapse),
    (Reason.LABEL, _drop_label),
    (Reason.MARKUP, _drop_markup),
    (Reason.QUOTES, _peel_quotes),
    (Reason.PUNCTUATION, _drop_ending),
)


def _means_no_title(title: str, recipe: Recipe) -> bool:
    key = _key(title) or title.strip()
    return phrases.is_no_title(key) or (
        recipe.no_task_answer is not None and title.strip() == recipe.no_task_answer
    )


def _within(title: str, max_chars: int) -> str | None:
    """A single long word is shortened in its middle; a longer text of several words is no title."""
    if len(title) <= max_chars:
        return title
    if " " in title or max_chars < 8:
        return None
    head = max_chars // 2
    return f"{title[:head]}…{title[-(max_chars - head - 1) :]}"


def _prompt_examples(recipe: Recipe) -> list[str]:
    return [first or second for first, second in _EXAMPLE.findall(recipe.system + recipe.template)]


def _key(text: str) -> str:
    return " ".join("".join(char if char.isalnum() else " " for char in text.casefold()).split())


def _window(text: str) -> str:
    return text if len(text) <= 8 * _WINDOW else f"{text[: 4 * _WINDOW]}\n{text[-4 * _WINDOW :]}"

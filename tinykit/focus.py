"""A message cut down to what a title needs: its first words, its requests, what it keeps coming back to.

The title models of `tinykit.tune` are trained on messages in this form: a change here asks for new training.
Pure text in, text out, in linear time, and never an exception for odd text.
"""

import heapq
import math
import re
from collections import Counter
from collections.abc import Iterable

from tinykit.wordlists import SMALL_WORDS

_WINDOW = 65_536  # characters kept at each end before anything else
_SHORT = 300  # in a message of at most this size, code is kept nearly whole
_LEAD_LINES, _LEAD_LINES_SHORT = 4, 99
_ERROR_LINES = 2
_MAX_LINE, _MAX_SENTENCE = 160, 200
_GAP = "…"
_BEGINNING, _ENDS, _ERROR_SHARE = 0.1, 0.2, 0.7  # shares of the budget, each of what is taken by then
_ONCE = 0.35  # worth of a word that stands in one sentence; more of them have it: log(1 + sentences)
_ASKING, _LENGTH_POWER = 4, 0.8  # worth of a request, and how much its length counts against a sentence

_SURROGATES = re.compile("[\ud800-\udfff]")
_CONTROLS = re.compile("\x1b\\[[0-9;?]{0,20}[A-Za-z]|[\x00-\x08\x0e-\x1b\x7f]")
_TEMPLATE_MARKS = re.compile(r"<\|[^|<>]{0,40}\|>|</?title>", re.I)
_ERROR = re.compile(
    r"error|exception|fatal|panic|fail|denied|refused|cannot|can't|undefined|not found|no such|invalid"
    r"|timed? ?out|killed|segfault|unexpected|warning",
    re.I,
)
_CODE_OR_LOG = re.compile(
    r"^(?:"
    r"\s{4,}|\t"
    r"|[$#>%|+*{}\[\]<(@]"  # prompts, bullets, brackets, comments
    r"|\s{0,3}(?:at\s+\S+\(|File\s\"|Traceback\s\()"  # a trace and its frames
    r"|\d{1,4}[-:/.]\d\d|\[?\d\d:\d\d|\w+\s\d+\s\d\d:\d\d:\d\d"  # dates and times
    r"|[+-]{3}\s"  # headers of a diff
    r"|(?:import|from|def|class|function|const|let|var|for|if|while|return|SELECT|INSERT|FROM|WHERE|public"
    r"|private|package|func|fn|use|using|end|else)\b(?=.*[(){};=:]|\s*$)"
    r"|[\w.\-\"']+\s*[:=]\s*\S*$"  # one key with one value
    r")|[;{}]\s*$"
)
_ASKS = re.compile(
    r"[?？؟]|\b(?:please|pls|can you|could you|help|i need|i want|i'd like|would like|my question"
    r"|how (?:do|can|should)|what (?:should|would)|write|draft|bitte|por favor|s'il|пожалуйста|помогите)\b",
    re.I,
)
_THROWN = re.compile(r"[\w.$]*(?:Error|Exception)\b(?:: |$)")  # the line that a trace is about
_NAME = re.compile(r"(?<=[\w,;:)] )[^\W\d_]*[A-Z]\w+|\b\w*\d\w*\b|\b[A-Z]{2,}\w*\b|\b\w+[a-z][A-Z]\w*\b")
_WORD = re.compile(r"[^\W_]{3,}")
_SENTENCE_END = re.compile(r"(?<=[.!?。！？؟।])\s+|(?<=[。！？])|\n+")


def focus(message: str, max_chars: int = 700) -> str:
    """The part of a message that says what it is about, in about `max_chars` characters.

    Of code, logs and traces the first four lines, the last one and two that look like errors are kept; of a
    text that is still too long the first and the last sentence, and of the others those that ask for
    something or have the words that come again and again, in their order. The marks of chat templates are
    dropped, and so are control characters.

    Args:
        message: The message as its author wrote it.
        max_chars: The size aimed at. The first and the last sentence (each cut to 200 characters) and the
            marks of what is left out come in any case.
    """
    text = _condensed(_TEMPLATE_MARKS.sub(" ", _readable(message)))
    return text if len(text) <= max_chars else _selection(text, max_chars)


def _readable(message: str) -> str:
    """The ends of a huge message, without what no tokenizer should see."""
    if len(message) > 2 * _WINDOW:
        message = f"{message[:_WINDOW]}\n{message[-_WINDOW:]}"
    return _CONTROLS.sub("", _SURROGATES.sub("\ufffd", message))


def _condensed(text: str) -> str:
    """Prose whole, line by line; of each run of code or log lines an excerpt."""
    lead = _LEAD_LINES if len(text) > _SHORT else _LEAD_LINES_SHORT
    lines: list[str] = []
    code: list[str] = []
    is_fenced = False
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("```"):
            is_fenced = not is_fenced
            language = bare.strip("`").strip()
            code += [language] if language and is_fenced else []
        elif bare and (is_fenced or _CODE_OR_LOG.search(line)):
            code.append(" ".join(bare.split()))
        elif bare:
            lines += [*_excerpt(code, lead), " ".join(bare.split())]
            code = []
    return "\n".join([*lines, *_excerpt(code, lead)])


def _excerpt(code: list[str], lead: int) -> list[str]:
    """The first lines, the last, and the last ones that look like errors; a mark where some are missing."""
    chosen = {i for i in (*range(lead), len(code) - 1) if 0 <= i < len(code)}
    errors = [i for i, line in enumerate(code) if i not in chosen and _ERROR.search(line)]
    chosen.update(errors[-_ERROR_LINES:])
    lines: list[str] = []
    before = -1
    for i in sorted(chosen):
        lines += [_GAP] if i > before + 1 else []
        lines.append(code[i][:_MAX_LINE])
        before = i
    return lines


def _selection(text: str, max_chars: int) -> str:
    """The error, the first and the last sentences, then those that say most for their length, in order."""
    pieces = (piece.strip() for piece in _SENTENCE_END.split(text))
    sentences = [piece[:_MAX_SENTENCE] for piece in pieces if piece]
    forward = range(len(sentences))
    backward = forward[::-1]
    chosen = {0, len(sentences) - 1}
    thrown = [i for i in backward if _THROWN.match(sentences[i])]
    _take(thrown[:1], sentences, chosen, max_chars * _ERROR_SHARE)
    _take(forward, sentences, chosen, max_chars * _BEGINNING)
    _take(backward, sentences, chosen, max_chars * _ENDS)
    _take_best(sentences, chosen, max_chars)
    lines: list[str] = []
    before = -1
    for i in sorted(chosen):
        lines.append(f"{_GAP} {sentences[i]}" if i > before + 1 else sentences[i])
        before = i
    return "\n".join(lines)


def _take_best(sentences: list[str], chosen: set[int], budget: int) -> None:
    """Choose, while one fits, the sentence whose words are worth most of those that no chosen one has.

    A word is worth more the more sentences have it, if one of them asks for something, and if it is a name or
    has a digit; so what the message keeps coming back to is in, and what it wants. A long sentence must say
    more.
    """
    words = [_word_stems(sentence) for sentence in sentences]
    asking = [bool(_ASKS.search(sentence)) for sentence in sentences]
    counts = Counter(word for some in words for word in some)
    wanted = {word for some, asks in zip(words, asking, strict=True) if asks for word in some}
    named = _word_stems(" ".join(name for sentence in sentences for name in _NAME.findall(sentence)))
    worth = {
        word: (math.log1p(count) if count > 1 else _ONCE) + (word in wanted) + (word in named)
        for word, count in counts.items()
    }
    used = sum(len(sentences[i]) + 1 for i in chosen)
    known = {word for i in chosen for word in words[i]}

    def gain(i: int) -> float:
        found = sum(worth[word] for word in sorted(words[i] - known)) + _ASKING * asking[i]
        return found / math.pow(len(sentences[i]) + 2, _LENGTH_POWER)

    queue = [(-gain(i), i) for i in range(len(sentences)) if i not in chosen]
    heapq.heapify(queue)
    while queue:
        _, best = heapq.heappop(queue)
        size = len(sentences[best]) + 2
        if used + size > budget:
            continue
        now = -gain(best)  # gains only fall, so what is still the best by its new one is the best of all
        if queue and (now, best) > queue[0]:
            heapq.heappush(queue, (now, best))
            continue
        used += size
        known |= words[best]
        chosen.add(best)


def _word_stems(sentence: str) -> set[str]:
    """What its words begin with, so that a plural counts as its singular; without those that say little."""
    words = (word for word in _WORD.findall(sentence.casefold()) if word not in SMALL_WORDS)
    return {word[: max(4, len(word) - 3)] if len(word) > 4 else word for word in words}


def _take(order: Iterable[int], sentences: list[str], chosen: set[int], budget: float) -> None:
    """Choose sentences in this order until one does not fit into the budget for all that are chosen."""
    used = sum(len(sentences[i]) + 1 for i in chosen)
    for i in order:
        if i in chosen:
            continue
        used += len(sentences[i]) + 1
        if used > budget:
            return
        chosen.add(i)

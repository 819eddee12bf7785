"""Text to token ids and back: chat template, message text that stays text, streaming decoding."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Container, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from tinykit.chat_template import compile_template, read_config, read_template
from tinykit.errors import ModelFileError, OptionError
from tinykit.token_bytes import byte_level, sentencepiece

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer as RawTokenizer

Role = Literal["system", "user", "assistant"]
_ROLES = ("system", "user", "assistant")
# Added tokens that are not marked special, yet are markup to the model: <think>, [INST], /nothink. Without a
# letter or a bracket they are ordinary text, such as the runs of spaces and newlines of some vocabularies.
_MARKUP = re.compile(r"/\w+|(?=.*\w).*[<>\[\]{}|｜].*", re.DOTALL)
# A turn of a chat ends with one of these, also where the configuration names the end of a document only.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "<|end_of_text|>")
# How templates that can switch thinking off call the switch.
_WITHOUT_THINKING = {"enable_thinking": False, "thinking": False}


class Message(NamedTuple):
    """One turn of a chat."""

    role: Role
    content: str


def as_messages(messages: Sequence[Message | Mapping[str, str]]) -> list[Message]:
    """Accept messages as `Message` or as ``{"role": …, "content": …}``.

    Raises:
        OptionError: no messages, an unknown role, or content that is not text.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not messages:
        raise OptionError(
            f"messages must be a list of role and content, not {_shortened(messages)}.",
            hint='For example: [{"role": "user", "content": "Hello"}]',
            name="messages",
            value=messages,
        )
    return [_as_message(message) for message in messages]


def _as_message(message: Message | Mapping[str, str]) -> Message:
    if isinstance(message, Mapping):
        fields = set(message)
        role, content = message.get("role"), message.get("content")
    else:
        is_pair = isinstance(message, list | tuple) and len(message) == 2
        fields, (role, content) = {"role", "content"}, message if is_pair else (None, None)
    is_whole = role in _ROLES and isinstance(content, str)
    if is_whole and (more := sorted(map(repr, fields - {"role", "content"}))):
        raise OptionError(
            f"A message has a role and content, and nothing else; this one also has {', '.join(more):.80}.",
            hint="Leave it out, or write into the content what the model shall know of it.",
            name="messages",
            value=message,
        )
    if not is_whole:
        raise OptionError(
            f"A message needs a role ({', '.join(_ROLES)}) and text content, not {_shortened(message)}.",
            hint='For example: {"role": "user", "content": "Hello"}',
            name="messages",
            value=message,
        )
    return Message(cast(Role, role), cast(str, content))


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def missing_tokenizer(folder: Path) -> ModelFileError:
    """The error for a model folder without `tokenizer.json`, with where to get it."""
    old = [name for name in ("tokenizer.model", "vocab.json", "vocab.txt") if (folder / name).is_file()]
    hint = f"Copy it from the page of the model into {folder}"
    if old:
        hint += f"; or make it of {old[0]}: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    return ModelFileError(
        f"{folder} has no tokenizer.json, so its text cannot be turned into tokens.",
        hint=f"{hint}.",
        path=folder,
    )


class Tokenizer:
    """A model's tokenizer and chat template.

    Control tokens written in a message (``<|im_end|>``, ``<think>``) are encoded as the characters they are:
    only the chat template itself can emit control tokens. Control tokens are those that the vocabulary marks
    as special, and the added tokens that look like markup.
    """

    def __init__(self, raw: RawTokenizer, config: Mapping[str, Any], chat_template: str | None) -> None:
        raw.no_truncation()
        raw.no_padding()
        raw.encode_special_tokens = True  # that is: treat the text of special tokens as plain text
        self._raw = raw
        self._config = config
        self._chat_template = chat_template
        added = raw.get_added_tokens_decoder().items()
        self._control_ids = {
            token.content: index
            for index, token in added
            if token.special or _MARKUP.fullmatch(token.content)
        }
        self._control_tokens = {index: token for token, index in self._control_ids.items()}
        all_special = all(token.special for index, token in added if index in self._control_tokens)
        # the tokens it skips in text must not be skipped in answers, so decoding stays with the other one
        self._text_raw = raw if all_special else _with_special(raw, self._control_ids)
        # some control tokens swallow the white space before or after them
        self._strips_before = {token.content for _, token in added if token.lstrip}
        self._strips_after = {token.content for _, token in added if token.rstrip}

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a model folder: ``tokenizer.json`` and, where there is one, a chat template.

        Raises:
            ModelFileError: a file is missing or damaged.
        """
        from tokenizers import Tokenizer as RawTokenizer

        path = folder / "tokenizer.json"
        try:
            raw = RawTokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:
            raise ModelFileError(f"{path} is not a readable tokenizer: {error}", path=path) from error
        config = read_config(folder / "tokenizer_config.json")
        return cls(raw, config, read_template(folder, config))

    def check(self) -> None:
        """Compile the chat template if there is one; raise ModelFileError if it is not valid."""
        if self._chat_template is not None:
            _ = self._template

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary, control tokens included."""
        return int(self._raw.get_vocab_size())

    @property
    def highest_id(self) -> int:
        """The highest token id; ids may have gaps, so that it can be more than `vocab_size` - 1."""
        return max(self._raw.get_vocab(with_added_tokens=True).values(), default=-1)

    def to_json(self) -> str:
        """The text of a ``tokenizer.json`` in which all control tokens are marked as special."""
        return str(self._text_raw.to_str())

    def token_bytes(self) -> list[bytes]:
        """What each token adds to a text, by id: nothing for control tokens and for ids without a token."""
        texts = self._texts()
        kinds = self._raw.decoder.__getstate__() if self._raw.decoder else b""
        result = byte_level(texts) if b"ByteLevel" in kinds else sentencepiece(texts)
        for index, token in self._raw.get_added_tokens_decoder().items():
            result[index] = b"" if index in self._control_tokens else token.content.encode()
        return result

    def _texts(self) -> list[str]:
        """Each token as the vocabulary has it, by id; empty for ids without a token."""
        count = self.vocab_size
        found = (self._raw.id_to_token(index) for index in range(count))
        texts = [text for text in found if text is not None]
        if len(texts) == count and self._raw.id_to_token(count) is None:
            return texts
        ids = self._raw.get_vocab(with_added_tokens=True)  # slower; its ids have gaps
        texts = [""] * (max(ids.values(), default=-1) + 1)
        for text, index in ids.items():
            texts[index] = text
        return texts

    def special_id(self, token: str) -> int | None:
        """The id of a control token, or None if there is none of that name."""
        return self._control_ids.get(token)

    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end a document or a turn of a chat, as far as the vocabulary tells."""
        names = (_token_text(self._config.get("eos_token")), *_TURN_ENDS)
        return tuple(dict.fromkeys(self._control_ids[name] for name in names if name in self._control_ids))

    def turn_end_id(self) -> int | None:
        """The token that ends a turn of a chat, or a document if there are no turns."""
        names = (*_TURN_ENDS, _token_text(self._config.get("eos_token")))
        return next((self._control_ids[name] for name in names if name in self._control_ids), None)

    def named_token(self, name: str) -> tuple[str, int] | None:
        """Text and id of what the configuration calls, for instance, ``mask_token``; None without one."""
        text = _token_text(self._config.get(name))
        index = self._raw.token_to_id(text) if text else None
        return None if index is None else (text, int(index))

    def encode_document(self, text: str) -> list[int]:
        """As `encode`, but added tokens that are not special, such as HTML tags, are the tokens they are."""
        return list(self._raw.encode(_without_surrogates(text), add_special_tokens=False).ids)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text; nothing is added, and control tokens in it stay text."""
        text = _without_surrogates(text)
        ids = list(self._text_raw.encode(text, add_special_tokens=False).ids)
        if self._control_tokens.keys().isdisjoint(ids):
            return ids
        # Some vocabularies also hold a control token as an ordinary word: it is spelled in two parts.
        # One that is not in the text stands for what the vocabulary cannot spell (<unk>).
        spelled = []
        for index in ids:
            token = self._control_tokens.get(index, "")
            is_written = len(token) > 1 and token in text
            spelled += self.encode(token[0]) + self.encode(token[1:]) if is_written else [index]
        return spelled

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, without special tokens; broken UTF-8 becomes U+FFFD."""
        return str(self._raw.decode(list(token_ids), skip_special_tokens=True))

    def detokenizer(self) -> Detokenizer:
        """A new streaming decoder."""
        return Detokenizer(self._raw)

    def encode_chat(self, messages: Sequence[Message], *, prefill: str = "") -> list[int]:
        """Token ids of a chat up to where the assistant's answer begins, followed by `prefill`.

        Raises:
            OptionError: the model has no chat template, or the template cannot render these messages.
        """
        return self.encode_answers(messages, [prefill])[0]

    def encode_answers(self, messages: Sequence[Message], answers: Sequence[str]) -> list[list[int]]:
        """Token ids of a chat followed by each of several answers, or by beginnings of answers.

        Raises: as `encode_chat`.
        """
        nonce = secrets.randbits(64)
        marks = {token: f"\ue000{nonce}.{index}\ue001" for token, index in self._control_ids.items()}
        hidden = [Message(m.role, self._replace(m.content, marks)) for m in messages]
        rendered = self._render(hidden)
        shown = {mark: token for token, mark in marks.items()}
        unmark = re.compile(rf"\ue000{nonce}\.[0-9]+\ue001")

        @cache  # all pieces but the last are the same for every answer
        def encoded(piece: str) -> list[int]:
            if piece in self._control_ids:
                return [self._control_ids[piece]]
            return self.encode(unmark.sub(lambda found: shown[found[0]], piece)) if piece else []

        texts = (rendered + self._replace(answer, marks) for answer in answers)
        return [[index for piece in self._pieces(text) for index in encoded(piece)] for text in texts]

    def _pieces(self, rendered: str) -> list[str]:
        """Control tokens and the texts between them, without the white space that control tokens swallow."""
        if not self._control_ids:
            return [rendered]
        pieces = self._control_pattern.split(rendered)
        for at in range(1, len(pieces), 2):
            if pieces[at] in self._strips_before:
                pieces[at - 1] = pieces[at - 1].rstrip()
            if pieces[at] in self._strips_after:
                pieces[at + 1] = pieces[at + 1].lstrip()
        return pieces

    @cached_property
    def _control_pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self._control_ids, key=len, reverse=True)
        return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def _replace(self, text: str, marks: Mapping[str, str]) -> str:
        return self._control_pattern.sub(lambda found: marks[found[0]], text) if marks else text

    def _render(self, messages: Sequence[Message]) -> str:
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        tokens = {name: text for name in names if (text := _token_text(self._config.get(name)))}
        turns = [{"role": m.role, "content": m.content} for m in messages]
        template = self._template
        try:
            return template.render(
                messages=turns,
                add_generation_prompt=True,
                tools=None,
                documents=None,
                **_WITHOUT_THINKING,
                **tokens,
            )
        except Exception as error:  # a template is a program, and can fail like one
            raise OptionError(
                f"The model's chat template cannot render these messages: {error}",
                hint="Let user and assistant take turns, with one system message at most and first.",
                name="messages",
                value=messages,
            ) from error

    @cached_property
    def _template(self) -> Template:
        return compile_template(self._chat_template)


def _with_special(raw: RawTokenizer, tokens: Container[str]) -> RawTokenizer:
    """A copy that takes the text of all these added tokens for plain text."""
    description = json.loads(raw.to_str())
    for token in description["added_tokens"]:
        token["special"] = token["special"] or token["content"] in tokens
    copy = type(raw).from_str(json.dumps(description))
    copy.encode_special_tokens = True
    return copy


def _token_text(token: object) -> str:
    """Older tokenizer configs wrap a token's text in an object."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _without_surrogates(text: str) -> str:
    """Lone surrogates cannot be encoded as UTF-8; they become U+FFFD."""
    return text.encode("utf-8", "replace").decode("utf-8") if re.search("[\ud800-\udfff]", text) else text


class Detokenizer:
    """Token ids in, text out as soon as it is whole: never half a character."""

    def __init__(self, raw: RawTokenizer) -> None:
        self._raw = raw
        self._shown: list[int] = []  # the ids of the last piece, since what follows depends on them
        self._shown_text = ""
        self._held: list[int] = []

    def feed(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is not whole."""
        self._held.append(token_id)
        text = self._held_text()
        if not text or text.endswith("\ufffd"):  # perhaps the first bytes of a character
            return ""
        self._shown, self._held = self._held, []
        self._shown_text = self._decode(self._shown)
        return text

    def flush(self) -> str:
        """What is left at the end, with U+FFFD for a character that never became whole."""
        text = self._held_text()
        self._shown, self._held, self._shown_text = [], [], ""
        return text

    def _held_text(self) -> str:
        text = self._decode(self._shown + self._held)
        if text.startswith(self._shown_text):
            return text[len(self._shown_text) :]
        # A byte that belongs to no character spoils all bytes before it in some vocabularies; what was shown
        # cannot be taken back. tokenizers' own DecodeStream fails here.
        return self._decode(self._held)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self._raw.decode(token_ids, skip_special_tokens=True))

"""Chats become the same tokens as with transformers. Needs transformers (`make test-extra`).

The templates use what those of the families use: each is a short one of our own in that family's manner.
"""

import itertools
import json

import pytest

from tests import tiny_models as tiny
from tinykit.convert.vocabulary import build_tokenizer
from tinykit.tokenizer import Message, Tokenizer

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")
CHATML = """{%- if messages[0]['role'] != 'system' -%}
{{ '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""
QWEN3 = """{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" and ns.last == messages|length - 1 and message.content is string %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content.split('</think>')[-1].lstrip('\\n') if '</think>' in message.content
            else message.content %}
        {{- '<|im_start|>assistant\\n' + content + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = "" %}{%- endif %}
{{- "<|im_start|>system\\nToday Date: " + date_string + "\\n" + system + "<|im_end|>" }}
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + "\\n\\n" + message['content'] | trim + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n\\n' }}{%- endif %}"""
GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first = messages[0]['content'] + '\\n\\n' -%}{%- set turns = messages[1:] -%}
{%- else -%}{%- set first = "" -%}{%- set turns = messages -%}{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<|im_start|>' + role + '\\n' + (first if loop.first else "") }}{{ message['content'] | trim }}{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>model\\n' }}{%- endif -%}"""
LFM2 = """{{- bos_token -}}
{%- set system = "" -%}
{%- if messages[0]["role"] == "system" -%}
    {%- set system = messages[0]["content"] -%}{%- set messages = messages[1:] -%}
{%- endif -%}
{%- if tools -%}{%- set system = system + "List of tools: " + tools | tojson -%}{%- endif -%}
{%- if system -%}{{- "<|im_start|>system\\n" + system + "<|im_end|>\\n" -}}{%- endif -%}
{%- for message in messages -%}
    {{- "<|im_start|>" + message["role"] + "\\n" -}}
    {% generation %}
    {{- message["content"] + "<|im_end|>\\n" -}}
    {% endgeneration %}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n" -}}{%- endif -%}"""
FALCON_H1 = """{%- for message in messages %}
{%- if message['role'] == 'user' %}
{{- '<|im_start|>user\\n' ~ message['content'] ~ '<|im_end|>\\n' }}
{%- elif message['role'] in ['system', 'assistant'] %}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endif %}
{% endfor %}
{%- if add_generation_prompt and documents is not none %}docs{% endif %}<|im_start|>assistant
"""
TEMPLATES = {
    "smollm2": CHATML, "qwen3": QWEN3, "llama3": LLAMA3, "gemma": GEMMA, "lfm2": LFM2, "falcon_h1": FALCON_H1
}  # fmt: skip
CHATS = {
    "one": [("user", "hi there")],
    "system": [("system", " Be brief. "), ("user", "  the\nthe   ")],
    "turns": [("user", "a"), ("assistant", "<think>\nhm\n</think>\n\nb"), ("user", "漢字 😀")],
    "brackets": [("user", "{{ x }} {% if %} </think> [1] & <b>")],
}


def folder_for(path, template, tokens):
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tiny.VOCABULARY,
        "tokenizer.ggml.token_type": [3 if token in tiny.SPECIALS else 1 for token in tiny.VOCABULARY],
        "tokenizer.ggml.merges": tiny.MERGES,
    }
    build_tokenizer(metadata).save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, **tokens}
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


TOKENS = {
    "with_bos": {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"},
    "without_bos": {"eos_token": "<|im_end|>"},
}
CASES = list(itertools.product(TEMPLATES, CHATS, TOKENS))


@pytest.mark.parametrize(("template", "chat", "tokens"), CASES, ids=["-".join(case) for case in CASES])
def test_same_tokens_as_transformers(tmp_path, template, chat, tokens):
    folder = folder_for(tmp_path, TEMPLATES[template], TOKENS[tokens])
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    messages = [{"role": role, "content": content} for role, content in CHATS[chat]]
    options = {"add_generation_prompt": True, "enable_thinking": False}
    text = theirs.apply_chat_template(messages, tokenize=False, **options)
    expected = theirs(text, add_special_tokens=False)["input_ids"]
    ours = Tokenizer.from_folder(folder).encode_chat([Message(*turn) for turn in CHATS[chat]])
    assert ours == expected

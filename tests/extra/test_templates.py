"""Chats become the same tokens as with transformers. Needs transformers (`make test-extra`).

The templates here are our own: each uses what the published templates of its family use. To test published
ones as well, put them into a folder, as `*.jinja` or as `tokenizer_config.json` in a folder for each model:

    CHAT_TEMPLATES=folder .venv-extra/bin/pytest tests/extra/test_templates.py
"""

import ast
import itertools
import json
import os
from pathlib import Path

import jinja2
import pytest

from tests import tiny_models as tiny
from tinykit.convert.vocabulary import build_tokenizer
from tinykit.errors import OptionError
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
QWEN25 = """{%- if tools %}{{- '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}{{- '<|im_start|>system\\nYou answer.<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- for call in message.tool_calls %}{{- call.arguments | tojson }}{%- endfor %}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}{{- 'first' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
# macros with defaults, counters in namespaces, kinds of content, a switch for thoughts that has two values
QWEN35 = """{%- set images = namespace(value=0) %}
{%- macro shown(content, counted=true, is_system=false) %}
    {%- if content is string %}{{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for part in content %}
            {%- if 'image' in part or part.type == 'image' %}
                {%- if is_system %}{{- raise_exception('no images here') }}{%- endif %}
                {%- if counted %}{%- set images.value = images.value + 1 %}{%- endif %}
            {%- else %}{{- part.text }}{%- endif %}
        {%- endfor %}
    {%- elif content is none or content is undefined %}{{- '' }}
    {%- else %}{{- raise_exception('what is this?') }}{%- endif %}
{%- endmacro %}
{%- if not messages %}{{- raise_exception('nothing said') }}{%- endif %}
{%- if messages[0].role == 'system' %}
    {%- set content = shown(messages[0].content, false, is_system=true) | trim %}
    {{- '<|im_start|>system\\n' + content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" %}
        {%- set text = shown(message.content, false) | trim %}
        {%- if not (text.startswith('<tool_response>') and text.endswith('</tool_response>')) %}
            {%- set ns.searching = false %}{%- set ns.last = index %}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if ns.searching %}{{- raise_exception('no question') }}{%- endif %}
{%- for message in messages %}
    {%- set content = shown(message.content) | trim %}
    {%- if message.role == "user" %}{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thoughts = '' %}
        {%- if message.reasoning_content is string %}{%- set thoughts = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and thoughts | length > 0 %}
            {{- '<|im_start|>assistant\\n<think>\\n' + thoughts + '\\n</think>\\n\\n' + content }}
        {%- else %}{{- '<|im_start|>assistant\\n' + content }}{%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is true %}{{- '<think>\\n' }}
    {%- else %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
# tools as text with an indent, switches with defaults, a date
LLAMA32 = """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not tools_in_user_message is defined %}{%- set tools_in_user_message = true %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = "" %}{%- endif %}
{{- "<|im_start|>system\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- endif %}
{{- system }}{{- "<|im_end|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|im_start|>' + message['role'] + '\\n\\n' + message['content'] | trim + '<|im_end|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("one call at a time") }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n\\n' }}{%- endif %}"""
# what else published templates do: loop controls, filters, items, tests, slices, JSON of messages
REST = """{%- for message in messages if message.role != 'nobody' -%}
    {%- if loop.index > 8 -%}{%- break -%}{%- endif -%}
    {%- if not message.content -%}{%- continue -%}{%- endif -%}
    {%- set ns = namespace(words=0) -%}
    {%- for word in message.content.split() -%}{%- set ns.words = ns.words + 1 -%}{%- endfor -%}
    {{- loop.cycle('a', 'b') ~ ' ' ~ loop.length ~ ' ' ~ ns.words ~ ' ' -}}
    {{- message | tojson -}}{{- message.content | tojson(indent=2) -}}
    {%- for key, value in message.items() -%}{{- key | upper ~ '=' ~ value | replace('\\n', ' ') -}}{%- endfor -%}
    {%- set part -%}<|im_start|>{{ message.role | capitalize }}: {{ message.content[:3] | default('x', true) }}{%- endset -%}
    {{- part -}}<|im_end|>
{% endfor -%}
{{- messages | map(attribute='role') | join(',') ~ (messages | selectattr('role', 'equalto', 'user') | list | length) -}}
{{- messages | tojson(ensure_ascii=True) -}}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""
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
    "smollm2": CHATML, "qwen2.5": QWEN25, "qwen3": QWEN3, "qwen3.5": QWEN35, "llama3": LLAMA3, "llama3.2": LLAMA32,
    "gemma": GEMMA, "lfm2": LFM2, "falcon_h1": FALCON_H1, "rest": REST,
}  # fmt: skip


def published():
    """Name and text of the templates in the folder that the environment names."""
    folder = os.environ.get("CHAT_TEMPLATES")
    for path in sorted(Path(folder).rglob("*")) if folder else ():
        if path.suffix == ".jinja":
            yield path.stem, path.read_text(encoding="utf-8")
        elif path.name == "tokenizer_config.json":
            template = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
            if isinstance(template, str):
                yield path.parent.name, template


def shipped():
    """The templates that the transformers package holds in its code, by the name of their model."""
    models = Path(transformers.__file__).parent / "models"
    for name in ("smolvlm", "llama4", "qwen2_audio"):
        for path in (models / name).glob("processing_*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and " add_generation_prompt" in node.value
                ):
                    yield f"transformers-{name}", node.value


TEMPLATES |= {**dict(published()), **dict(shipped())}
CHATS = {
    "one": [("user", "hi there")],
    "system": [("system", " Be brief. "), ("user", "  the\nthe   ")],
    "turns": [("user", "a"), ("assistant", "<think>\nhm\n</think>\n\nb"), ("user", "漢字 😀")],
    "brackets": [("user", "{{ x }} {% if %} </think> [1] & <b>")],
    "odd": [("user", "a"), ("user", "b"), ("assistant", "c")],  # some templates refuse this
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
    ours = Tokenizer.from_folder(folder)
    turns = [Message(*turn) for turn in CHATS[chat]]
    switches = {"add_generation_prompt": True, "enable_thinking": False, "thinking": False}
    try:
        text = theirs.apply_chat_template(messages, tokenize=False, **switches)
    except jinja2.TemplateError as refusal:
        with pytest.raises(OptionError) as caught:
            ours.encode_chat(turns)
        assert str(refusal) in str(caught.value)
        return
    assert ours.encode_chat(turns) == theirs(text, add_special_tokens=False)["input_ids"]

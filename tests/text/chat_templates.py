"""Chat templates in the manner of well-known families, written for these tests: the same constructs, our own words."""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo.text.template_source import TemplateSource
from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Family:
    """A template and the control tokens it is written for; the first one is bos."""

    template: str
    control: tuple[str, ...]


FAMILIES = {
    # ChatML with tools: headers by concatenation, tool results grouped into user turns.
    "qwen": Family(
        """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] + '\\n\\n' }}{%- endif %}
    {{- "Functions:\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
        {{- '<|im_start|>assistant\\n' + content }}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
            {{- call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
""",
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    ),
    # Headers with the role inside, content trimmed, bos glued to the first turn.
    "llama3": Family(
        """
{% set loop_messages = messages %}
{% for message in loop_messages %}
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim %}
{% set content = content + '<|eot_id|>' %}
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}
{{ content }}{% endfor %}
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
""",
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    ),
    # Alternation enforced, the system text folded into the last user turn, roles compared.
    "mistral": Family(
        """
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set turns = messages[1:] %}
{%- else %}{%- set turns = messages %}{%- endif %}
{%- set ns = namespace(index=0) %}
{{- bos_token }}
{%- for message in turns %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("turns of user and assistant must alternate") }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
    {%- else %}{{- " " + message["content"] | trim + eos_token }}{%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
""",
        ("<s>", "</s>", "[INST]", "[/INST]"),
    ),
    # Content as parts, the assistant renamed, a macro, the first turn prefixed.
    "gemma": Family(
        """
{{ bos_token }}
{%- macro turn(role, content) -%}
    {{ '<start_of_turn>' + role + '\\n' }}
    {%- if content is string %}{{ content | trim }}
    {%- else %}{%- for item in content %}{{ item.text | trim }}{%- endfor %}{%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endmacro -%}
{%- for message in messages -%}
    {%- if message['content'] is not string %}{% for part in message['content'] %}{% endfor %}{% endif -%}
    {%- if message['role'] == 'assistant' -%}{%- set role = 'model' -%}
    {%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ turn(role, message['content']) }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
""",
        ("<bos>", "<start_of_turn>", "<end_of_turn>"),
    ),
    # Control tokens made from the role's own text.
    "phi": Family(
        """
{% for message in messages %}
{{ '<|' + message['role'] + '|>' + '\\n' + message['content'] + '<|end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}
""",
        ("<s>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>"),
    ),
    # A template that cuts, replaces and upper-cases what it is given.
    "meddler": Family(
        """
{%- for message in messages %}
{{- '<|im_start|>' ~ message.role[:9] | upper ~ ':' }}
{{- message.content | replace('</s>', '') | replace('\\t', ' ') }}
{{- message.content[2:12] | title }}
{%- if message.content.startswith('{') %}{{- '(json)' }}{%- endif %}
{%- for line in message.content.split('\\n') %}{{- '> ' ~ line.strip() ~ '\\n' }}{%- endfor %}
{{- '<|im_end|>' }}
{%- endfor %}
""",
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    ),
}


def family_tokenizer(tokenizer: Tokenizer, family: Family) -> Tokenizer:
    """The default model's pieces with another family's control tokens (in the places of its own)."""
    facts = tokenizer.vocabulary
    token_bytes = list(facts.token_bytes)
    control = {text: index for index, text in enumerate(family.control)}
    for text, index in control.items():
        token_bytes[index] = text.encode()
    changed = replace(facts, token_bytes=token_bytes, control=control, bos_id=0, eos_id=1)
    return Tokenizer(tokenizer._encoder, changed)


def source(family: Family) -> TemplateSource:
    return TemplateSource(family.template, "test")

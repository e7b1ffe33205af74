"""Chat templates with tools, one of each family of models, with the family's own syntax and special tokens.

They are short, and written for these tests. `call` is how a model of the family writes calls after its generation
prompt, `answer` how it writes an answer, and `thought` how it thinks before either.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from tests.medagent.support import byte_level

Calls = Sequence[tuple[str, dict[str, Any]]]


def as_json(name: str, arguments: dict[str, Any], key: str = "arguments") -> str:
    return json.dumps({"name": name, key: arguments}, ensure_ascii=False)


def object_of(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def each(form: Callable[[str, dict[str, Any]], str], between: str = "\n") -> Callable[[Calls], str]:
    return lambda calls: between.join(form(name, arguments) for name, arguments in calls)


def hermes_call(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{as_json(name, arguments)}\n</tool_call>"


def elements(name: str, arguments: dict[str, Any]) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def pythonic(calls: Calls) -> str:
    said = [
        f"{name}({', '.join(f'{key}={json.dumps(value, ensure_ascii=False)}' for key, value in given.items())})"
        for name, given in calls
    ]
    return f"[{', '.join(said)}]"


def escaped(name: str, arguments: dict[str, Any]) -> str:
    inner = ",".join(
        f"{key}:<escape>{value}<escape>" if isinstance(value, str) else f"{key}:{object_of(value)}"
        for key, value in arguments.items()
    )
    return f"<start_function_call>call:{name}{{{inner}}}<end_function_call>"


def glm_call(name: str, arguments: dict[str, Any]) -> str:
    pairs = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{value if isinstance(value, str) else object_of(value)}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{pairs}</tool_call>"


def thinking(start: str, end: str) -> Callable[[str], str]:
    return lambda thought: f"{start}{thought}{end}"


@dataclass(frozen=True)
class Family:
    """A family of models. `ends` are those of a turn that calls and of one that answers."""

    name: str
    template: str
    special: tuple[str, ...]
    eos: str
    ends: tuple[str, str]
    call: Callable[[Calls], str]
    answer: Callable[[str], str] = str
    thought: Callable[[str], str] = field(default=thinking("<think>", "</think>\n\n"))
    several: bool = True  # calls in a turn
    plain: tuple[str, ...] = ()  # added tokens that are not special
    marks: tuple[str, ...] = ()  # of several pieces
    opened: str = ""
    whole_history: bool = True  # the template writes an earlier turn as it writes the last one

    def tokenizer(self) -> PreTrainedTokenizerBase:
        made = byte_level()
        made.add_special_tokens({"additional_special_tokens": list(self.special), "eos_token": self.eos})
        made.add_tokens(list(self.plain))
        made.chat_template = self.template
        return made


CHATML = "<|im_start|>", "<|im_end|>"
_CHATML_TOOLS = """{% if tools %}<|im_start|>system
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools><|im_end|>
{% endif %}"""
_CHATML_RESULT = """{% if m.role == 'tool' %}\
{% if messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ m.content }}
</tool_response>{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}"""
_HERMES_CALLS = """{% for c in m.tool_calls or [] %}{{ '\n' if m.content or not loop.first }}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
"""
HERMES = Family(
    "hermes",
    _CHATML_TOOLS
    + "{% for m in messages %}"
    + _CHATML_RESULT
    + "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    + _HERMES_CALLS
    + "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    CHATML,
    "<|im_end|>",
    ("<|im_end|>", "<|im_end|>"),
    each(hermes_call),
    plain=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)
QWEN3 = Family(
    "qwen3",
    _CHATML_TOOLS
    + "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}"
    + _CHATML_RESULT
    + "{% elif m.role == 'assistant' %}<|im_start|>assistant\n{% if loop.index0 > ns.last and loop.last %}<think>\n"
    "{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}{{ m.content.split('</think>')[-1] }}"
    + _HERMES_CALLS
    + "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}",
    CHATML,
    "<|im_end|>",
    ("<|im_end|>", "<|im_end|>"),
    each(hermes_call),
    thought=thinking("", "\n</think>\n\n"),
    plain=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
    opened="<think>\n",
    whole_history=False,
)
QWEN3_CODER = Family(
    "qwen3-coder",
    _CHATML_TOOLS
    + "{% for m in messages %}"
    + _CHATML_RESULT
    + """{% else %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}{{ '\n' if not loop.first }}<tool_call>
<function={{ c.function.name }}>
{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>
{{ v }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    CHATML,
    "<|im_end|>",
    ("<|im_end|>", "<|im_end|>"),
    each(elements),
    plain=("<tool_call>", "</tool_call>"),
    marks=("<function=search>", "</function>"),
)
_LLAMA_HEAD = """<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>

"""
_LLAMA = "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"
LLAMA_JSON = Family(
    "llama-json",
    """<|begin_of_text|>{% if tools %}<|start_header_id|>system<|end_header_id|>

Environment: ipython
{% for tool in tools %}{{ tool | tojson(indent=4) }}

{% endfor %}<|eot_id|>{% endif %}{% for m in messages %}"""
    + _LLAMA_HEAD
    + """{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call per turn') }}{% endif %}\
{% set f = m.tool_calls[0].function %}{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}\
{% elif m.role == 'tool' %}{{ m.content | tojson }}{% else %}{{ m.content }}\
{% endif %}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}""",
    _LLAMA,
    "<|eot_id|>",
    ("<|eot_id|>", "<|eot_id|>"),
    lambda calls: as_json(*calls[0], key="parameters"),
    several=False,
)
LLAMA_TAG = Family(
    "llama-tag",
    LLAMA_JSON.template.replace('{"name": "{{ f.name }}"', '<|python_tag|>{"name": "{{ f.name }}"').replace(
        "{% endif %}<|eot_id|>{% endfor %}",
        "{% endif %}{{ '<|eom_id|>' if m.tool_calls else '<|eot_id|>' }}{% endfor %}",
    ),
    _LLAMA,
    "<|eot_id|>",
    ("<|eom_id|>", "<|eot_id|>"),
    lambda calls: "<|python_tag|>" + as_json(*calls[0], key="parameters"),
    several=False,
)
LLAMA_PYTHONIC = Family(
    "llama-pythonic",
    """<|begin_of_text|>{% if tools %}<|start_header_id|>system<|end_header_id|>

{{ tools | tojson }}<|eot_id|>{% endif %}{% for m in messages %}"""
    + _LLAMA_HEAD
    + """{{ m.content }}{% if m.tool_calls %}[{% for c in m.tool_calls %}{{ c.function.name }}(\
{% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %})\
{{ ', ' if not loop.last }}{% endfor %}]{% endif %}<|eot_id|>{% endfor %}\
{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}""",
    _LLAMA,
    "<|eot_id|>",
    ("<|eot_id|>", "<|eot_id|>"),
    pythonic,
)
_MISTRAL_RESULT = {
    "v3": '[TOOL_RESULTS] {"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]',
    "v11": "[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]",
}


def _mistral(result: str, calls: str) -> str:
    return (
        "<s>{% set users = messages | selectattr('role', 'equalto', 'user') | list %}{% for m in messages %}"
        "{% if m.role == 'user' %}{% if tools and m == users[-1] %}[AVAILABLE_TOOLS] "
        "{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST] {{ m.content }}[/INST]{% elif m.role == 'system' %}"
        "[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]"
        "{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids have 9 signs') }}"
        "{% endif %}" + _MISTRAL_RESULT[result] + "{% elif m.tool_calls %}" + calls + "</s>{% else %} {{ m.content }}"
        "</s>{% endif %}{% endfor %}"
    )


_MISTRAL_TOKENS = tuple(
    f"[{slash}{name}]" for name in ("INST", "AVAILABLE_TOOLS", "TOOL_RESULTS", "SYSTEM_PROMPT") for slash in ("", "/")
)
_MISTRAL_IN_LIST = (
    '[TOOL_CALLS] [{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", "arguments": '
    '{{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}{{ \', \' if not loop.last }}{% endfor %}]'
)


def _list_with_ids(calls: Calls) -> str:
    said = [{"name": name, "arguments": given, "id": "a1B2c3D4e"} for name, given in calls]
    return "[TOOL_CALLS] " + json.dumps(said, ensure_ascii=False)


MISTRAL_V3 = Family(
    "mistral-v3",
    _mistral("v3", _MISTRAL_IN_LIST),
    (*_MISTRAL_TOKENS, "[TOOL_CALLS]"),
    "</s>",
    ("</s>", "</s>"),
    _list_with_ids,
    answer=lambda said: f" {said}",
    whole_history=False,  # the tools stand before the last message of the user
)
MISTRAL_PIECES = Family(
    "mistral-pieces",  # whose marks are no tokens of their own
    _mistral("v3", _MISTRAL_IN_LIST),
    (),
    "</s>",
    ("</s>", "</s>"),
    _list_with_ids,
    answer=lambda said: f" {said}",
    marks=("[TOOL_CALLS]", "[/TOOL_RESULTS]", "[INST]", "[/INST]"),
    whole_history=False,
)
MISTRAL_V11 = Family(
    "mistral-v11",
    _mistral(
        "v11",
        "{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}"
        "{% endfor %}",
    ),
    (*_MISTRAL_TOKENS, "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
    "</s>",
    ("</s>", "</s>"),
    each(lambda name, given: f"[TOOL_CALLS]{name}[ARGS]{object_of(given)}", ""),
    answer=lambda said: f" {said}",
    thought=thinking("[THINK]", "[/THINK]"),
    whole_history=False,
)

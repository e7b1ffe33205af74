"""More families of models: Gemma, Granite, harmony, DeepSeek, GLM, Phi, and plain texts."""

from __future__ import annotations

from typing import Any

from tests.medagent.tool_families.support import (
    HERMES,
    LLAMA_JSON,
    LLAMA_PYTHONIC,
    LLAMA_TAG,
    MISTRAL_PIECES,
    MISTRAL_V3,
    MISTRAL_V11,
    QWEN3,
    QWEN3_CODER,
    Family,
    as_json,
    each,
    escaped,
    glm_call,
    object_of,
    pythonic,
)

_GEMMA_TURN = "<start_of_turn>", "<end_of_turn>"
GEMMA = Family(
    "gemma",
    """<bos>{% if tools %}<start_of_turn>user
{{ tools | tojson }}<end_of_turn>
{% endif %}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else 'user' }}
{% if m.tool_calls %}```tool_code
{% for c in m.tool_calls %}{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }}\
{{ ', ' if not loop.last }}{% endfor %})
{% endfor %}```{% elif m.role == 'tool' %}```tool_output
{{ m.content }}
```{% else %}{{ m.content }}{% endif %}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}""",
    ("<bos>", *_GEMMA_TURN),
    "<end_of_turn>",
    ("<end_of_turn>", "<end_of_turn>"),
    lambda calls: "```tool_code\n" + "\n".join(pythonic([call])[1:-1] for call in calls) + "\n```",
)
_FUNCTION_GEMMA_CALL = (
    "<start_function_call>call:{{ c.function.name ~ '{' }}"
    "{% for k, v in c.function.arguments.items() %}{{ k }}:"
    "{% if v is string %}<escape>{{ v }}<escape>{% else %}{{ v | tojson }}{% endif %}{{ ',' if not loop.last }}"
    "{% endfor %}{{ '}' }}<end_function_call>"
)
FUNCTION_GEMMA = Family(
    "function-gemma",
    """<bos>{% if tools %}<start_of_turn>developer
{% for t in tools %}<start_function_declaration>declaration:{{ t.function.name }}{description:<escape>\
{{ t.function.description }}<escape>,parameters:{properties:{{ '{' }}\
{% for k, v in t.function.parameters.properties.items() %}\
{{ k }}:{type:<escape>{{ v.type | upper }}<escape>}{{ ',' if not loop.last }}{% endfor %}\
{{ '}}}' }}<end_function_declaration>{% endfor %}<end_of_turn>
{% endif %}{% set ns = namespace(before='') %}{% for m in messages %}{% if m.role == 'tool' %}\
response:{{ m.name }}{value:<escape>{{ m.content }}<escape>}<end_function_response>\
{% if not loop.last and messages[loop.index0 + 1].role == 'tool' %}<start_function_response>{% endif %}\
{% else %}{% if ns.before != 'tool' or m.role != 'assistant' %}{% if ns.before == 'tool' %}<end_of_turn>
{% endif %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}
{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}"""
    + _FUNCTION_GEMMA_CALL
    + """{% endfor %}{% if m.tool_calls %}<start_function_response>{% else %}<end_of_turn>
{% endif %}{% endif %}{% set ns.before = m.role %}{% endfor %}\
{% if add_generation_prompt and ns.before != 'tool' %}<start_of_turn>model
{% endif %}""",
    (
        *("<bos>", "<start_of_turn>", "<end_of_turn>", "<escape>"),
        *(f"<{part}_function_{kind}>" for part in ("start", "end") for kind in ("call", "response", "declaration")),
    ),
    "<end_of_turn>",
    ("<start_function_response>", "<end_of_turn>"),
    each(escaped, ""),
)
GRANITE = Family(
    "granite",
    """{% if tools %}<|start_of_role|>tools<|end_of_role|>{{ tools | tojson(indent=4) }}<|end_of_text|>
{% endif %}{% for m in messages %}<|start_of_role|>{{ 'tool_response' if m.role == 'tool' else m.role }}<|end_of_role|>\
{{ m.content }}{% if m.tool_calls %}<|tool_call|>[{% for c in m.tool_calls %}{{ c.function | tojson }}\
{{ ', ' if not loop.last }}\
{% endfor %}]{% endif %}<|end_of_text|>
{% endfor %}{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}""",
    ("<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>", "<|end_of_text|>"),
    "<|end_of_text|>",
    ("<|end_of_text|>", "<|end_of_text|>"),
    lambda calls: f"<|tool_call|>[{', '.join(as_json(*call) for call in calls)}]",
)
HARMONY = Family(
    "harmony",
    """{% if tools %}<|start|>developer<|message|># Tools
{% for t in tools %}// {{ t.function.description }}
type {{ t.function.name }} = (_: {{ t.function.parameters | tojson }}) => any;
{% endfor %}<|end|>{% endif %}{% set ns = namespace(called='') %}{% for m in messages %}{% if m.role == 'tool' %}\
<|start|>functions.{{ ns.called }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>\
{% elif m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call per turn') }}{% endif %}\
{% set f = m.tool_calls[0].function %}{% set ns.called = f.name %}<|start|>assistant<|channel|>commentary \
to=functions.{{ f.name }} <|constrain|>json<|message|>{{ f.arguments | tojson }}<|call|>\
{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}\
{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}\
{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}\
{% if add_generation_prompt %}<|start|>assistant{% endif %}""",
    tuple(f"<|{name}|>" for name in ("start", "end", "message", "channel", "constrain", "call", "return")),
    "<|return|>",
    ("<|call|>", "<|return|>"),
    lambda calls: (
        f"<|channel|>commentary to=functions.{calls[0][0]} <|constrain|>json<|message|>{object_of(calls[0][1])}"
    ),
    answer=lambda said: f"<|channel|>final<|message|>{said}",
    thought=lambda thought: f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant",
    several=False,
    marks=("to=functions.search",),
    whole_history=False,
)
_DEEPSEEK = tuple(
    f"<｜tool▁{name}｜>"
    for name in (
        *(f"{kind}▁{part}" for kind in ("calls", "call", "outputs", "output") for part in ("begin", "end")),
        "sep",
    )
)


def _deepseek_calls(calls: Any) -> str:
    said = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{object_of(given)}\n```<｜tool▁call▁end｜>"
        for name, given in calls
    )
    return f"<｜tool▁calls▁begin｜>{said}<｜tool▁calls▁end｜>"


DEEPSEEK = Family(
    "deepseek",
    """<｜begin▁of▁sentence｜>{% if tools %}{{ tools | tojson }}

{% endif %}{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}\
{% elif m.role == 'system' %}{{ m.content }}\
{% elif m.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}<｜tool▁outputs▁begin｜>{% endif %}\
<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>\
{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<｜tool▁outputs▁end｜>{% endif %}\
{% else %}{% if messages[loop.index0 - 1].role != 'tool' %}<｜Assistant｜>{% endif %}{{ m.content }}\
{% if m.tool_calls %}<｜tool▁calls▁begin｜>{% for c in m.tool_calls %}{{ '\n' if not loop.first }}<｜tool▁call▁begin｜>\
{{ c.type + '<｜tool▁sep｜>' + c.function.name + '\n```json\n' + c.function.arguments + '\n```' }}\
<｜tool▁call▁end｜>{% endfor %}\
<｜tool▁calls▁end｜>{% endif %}<｜end▁of▁sentence｜>{% endif %}{% endfor %}\
{% if add_generation_prompt and messages[-1].role != 'tool' %}<｜Assistant｜>{% endif %}""",
    ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
    "<｜end▁of▁sentence｜>",
    ("<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    _deepseek_calls,
    plain=_DEEPSEEK,
)
GLM = Family(
    "glm",
    """[gMASK]<sop>{% if tools %}<|system|>
<tools>
{% for t in tools %}{{ t | tojson }}
{% endfor %}</tools>{% endif %}{% for m in messages %}{% if m.role == 'tool' %}\
{% if messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif %}
<tool_response>
{{ m.content }}
</tool_response>{% else %}<|{{ m.role }}|>
{{ m.content }}{% for c in m.tool_calls or [] %}{{ '\n' if not loop.first }}<tool_call>{{ c.function.name }}
{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>
<arg_value>{{ v if v is string else v | tojson }}</arg_value>
{% endfor %}</tool_call>{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}""",
    ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"),
    "<|endoftext|>",
    ("<|observation|>", "<|user|>"),
    each(glm_call),
    plain=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<tool_response>"),
)
PHI = Family(
    "phi",
    """{% for m in messages %}{% if m.role == 'tool' %}<|tool_response|>{{ m.content }}<|end|>\
{% else %}<|{{ m.role }}|>{{ m.content }}\
{% if m.role == 'user' and tools and loop.first %}<|tool|>{{ tools | tojson }}<|/tool|>{% endif %}\
{% if m.tool_calls %}<|tool_call|>[{% for c in m.tool_calls %}{{ c.function | tojson }}\
{{ ', ' if not loop.last }}{% endfor %}\
]<|/tool_call|>{% endif %}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}""",
    (
        *(f"<|{name}|>" for name in ("system", "user", "assistant", "end", "endoftext")),
        *(f"<|{name}|>" for name in ("tool", "/tool", "tool_call", "/tool_call", "tool_response")),
    ),
    "<|endoftext|>",
    ("<|end|>", "<|end|>"),
    lambda calls: f"<|tool_call|>[{', '.join(as_json(*call) for call in calls)}]<|/tool_call|>",
)
_REACT = """{% for t in tools or [] %}{{ t.function.name }}: {{ t.function.description }}
{% endfor %}{% for m in messages %}{% if m.role == 'tool' %}Observation: {{ m.content }}
{% elif m.tool_calls %}Assistant: {% for c in m.tool_calls %}{{ '\n' if not loop.first }}Action: {{ c.function.name }}
Action Input: {{ c.function.arguments | tojson }}{% endfor %}{{ 'END\n' }}{% else %}{{ m.role | capitalize }}: \
{{ m.content }}END
{% endif %}{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"""


def _react(calls: Any) -> str:
    return " " + "\n".join(f"Action: {name}\nAction Input: {object_of(given)}" for name, given in calls)


PLAIN_END = Family(
    "plain-end",
    _REACT.replace("{{ 'END", "{{ '\\n=== end of turn ===").replace("END", "\n=== end of turn ==="),
    (),
    "</s>",
    ("\n=== end of turn ===",) * 2,
    _react,
    answer=lambda said: f" {said}",
    marks=("\nObservation:", "\nAssistant:", "\nUser:", "\nAction:", "\nAction Input:"),
)
PLAIN_NEXT = Family(
    "plain-next",
    _REACT.replace("END", ""),
    (),
    "</s>",
    ("\nObservation:", "\nUser:"),
    _react,
    answer=lambda said: f" {said}",
    marks=PLAIN_END.marks,
)
FAMILIES = {
    family.name: family
    for family in (
        *(HERMES, QWEN3, QWEN3_CODER, LLAMA_JSON, LLAMA_TAG, LLAMA_PYTHONIC, MISTRAL_V3, MISTRAL_PIECES, MISTRAL_V11),
        *(GEMMA, FUNCTION_GEMMA, GRANITE, HARMONY, DEEPSEEK, GLM, PHI, PLAIN_END, PLAIN_NEXT),
    )
}

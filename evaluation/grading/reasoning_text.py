"""Sets aside what a model thought before it replied, so that nothing in a thought is read as an answer."""

from __future__ import annotations

import re

from medagent.protocol import tagged_answers

# What models write around thoughts: <think> (DeepSeek-R1, Qwen), [THINK] (Magistral), <|begin_of_thought|> (Sky-T1),
# <|START_THINKING|> (Command A), <unused94>thought (MedGemma), Kimi's marks, and prompts' own.
_NAME = r"(?:think|thinking|thoughts?|reasoning|analysis|reflection|scratchpad|seed:think)"
_MARK = re.compile(
    rf"(?P<open><{_NAME}>|\[THINK(?:ING)?\]|<\|(?:begin_of_|start_)?{_NAME}\|>|<unused94>|◁think▷)"
    rf"|(?P<close></\s*{_NAME}\s*>|\[/THINK(?:ING)?\]|<\|(?:end_of_|end_|/){_NAME}\|>|<unused95>|◁/think▷"
    r"|^\#+\s*Final\ Response\s*$|\[BEGIN\ FINAL\ RESPONSE\])",  # HuatuoGPT-o1, Apriel
    re.IGNORECASE | re.MULTILINE,
)
# gpt-oss writes channels; what is not in `final` is thought.
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)\s*<\|message\|>")
_CHANNEL_END = re.compile(r"<\|(?:end|return|start|call)\|>")


def without_reasoning(reply: str) -> tuple[str, bool]:
    """The reply without thoughts, and whether it was cut off inside one.

    A closing mark without an opening one ends a thought that the chat template opened. A thought that is left open ends
    where answer tags begin.

    >>> without_reasoning("A? It is oral. </think> B")
    (' B', False)
    >>> without_reasoning("<think>The answer is A, but")
    ('', True)
    """
    if channels := list(_CHANNEL.finditer(reply)):
        last = channels[-1]
        return (_CHANNEL_END.split(reply[last.end() :])[0], False) if last[1] == "final" else ("", True)
    kept: list[str] = []
    at, inside = 0, False
    for mark in _MARK.finditer(reply):
        opens = mark["open"] is not None
        if opens and not inside:
            kept.append(reply[at : mark.start()])
        elif not opens and not inside:
            kept.clear()  # all before it was thought
        at, inside = mark.end(), opens
    rest = reply[at:]
    if not inside:
        return "".join(kept) + rest, False
    if tagged_answers(rest):
        return "".join(kept) + rest, False
    return "".join(kept), True

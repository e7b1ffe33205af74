"""Strips the reasoning that a model wrote before its reply, so that nothing in it is read as an answer."""

import re

from medagent.plain_protocol import tagged_answers

# Marks around reasoning: <think> (DeepSeek-R1, Qwen), [THINK] (Magistral), <|begin_of_thought|> (Sky-T1),
# <|START_THINKING|> (Command A), <unused94>thought (MedGemma), Kimi's marks, and prompts' own.
_NAME = r"(?:think|thinking|thoughts?|reasoning|analysis|reflection|scratchpad|seed:think)"
_MARK = re.compile(
    rf"(?im)(?P<open><{_NAME}>|\[THINK(?:ING)?\]|<\|(?:begin_of_|start_)?{_NAME}\|>|<unused94>|◁think▷)"
    rf"|(?P<close></\s*{_NAME}\s*>|\[/THINK(?:ING)?\]|<\|(?:end_of_|end_|/){_NAME}\|>|<unused95>|◁/think▷"
    r"|^\#+\s*Final\ Response\s*$|\[BEGIN\ FINAL\ RESPONSE\])",  # HuatuoGPT-o1, Apriel
)
# gpt-oss writes channels; all but `final` is reasoning.
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)\s*<\|message\|>")
_CHANNEL_END = re.compile(r"<\|(?:end|return|start|call)\|>")


def without_reasoning(reply: str) -> tuple[str, bool]:
    """The reply without its reasoning, and whether it was truncated inside it.

    A closing mark without an opening one ends reasoning that the chat template opened. Reasoning that is left open ends
    at the first answer tag.

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
            kept.clear()  # all before it was reasoning
        at, inside = mark.end(), opens
    rest = reply[at:]
    if not inside:
        return "".join(kept) + rest, False
    if tagged_answers(rest):
        return "".join(kept) + rest, False
    return "".join(kept), True

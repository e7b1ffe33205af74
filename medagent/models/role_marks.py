"""The plain-text marks by which a chat template says who speaks, such as `[INST]`, `### Assistant:` or `User:`.

Text from outside must not use them. They are found by rendering the template with sentinel messages of each role, and
taking what stands around these, whatever its signs. Words without signs are no mark. Added tokens are left out, since
text from outside never yields their ids.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from medagent.models.chat_template import day_of, render

LONGEST_MARK = 48  # characters; what is longer is prose, such as a default system prompt

_ANY_DAY = day_of("2025-01-01")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_SAID = {role: f"\u2063{role}\u2063" for role in ("system", "user", "assistant", "tool")}
_CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "search", "arguments": {}}}
_AFTER_A_CALL: list[dict[str, Any]] = [
    {"role": "user", "content": _SAID["user"]},
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "name": "search", "tool_call_id": _CALL["id"], "content": _SAID["tool"]},
]
_SENTINEL = re.compile("|".join(_SAID.values()))
_BRACKETED = re.compile(
    r"<{1,2}/?\|?[^\s<>|][^<>|\n]{0,200}\|?>{1,2}|\[/?[^\[\]\s][^\[\]\n]{0,30}\]|\{/?[^{}\s][^{}\n]{0,30}\}"
    r"|[«‹【〈《〔「『〖⟨⟦⟪][^\n«»‹›【】〈〉《》〔〕「」『』〖〗⟨⟩⟦⟧⟪⟫]{1,30}[»›】〉》〕」』〗⟩⟧⟫]"
)
_WITH_ATTRIBUTES = re.compile(r"<[^\W\d_][\w.:-]*(?=[\s=])")  # their values may vary, so the name is the mark
_OF_PROSE = frozenset(".,;:?!'\"’‘“”-–—…。，、")  # signs that make no mark of the words around them
_STOPS = tuple(";?!-–—")
_NAMES_A_ROLE = re.compile(r"[<\[【〈《「『«‹]+[/|]*\w[\w -]*[|]*[>\]】〉》」』»›]+|<\w[\w.:-]*")
_PIECE = re.compile(r"\d+|[^\W\d_]+|[^\w\s]|_")
_LEADS = re.compile(r"^[^\W\d_][\w ]{0,30}:", re.MULTILINE)  # such as Action: and Observation:, around calls
_RECIPIENT = re.compile(r"=\w+\.(?=search\b)")  # as in to=functions.search
_GAP = r"\s{0,3}"
_LINE_START = r"^[^\S\n]{0,8}(?:[-*_>#•\"'][^\S\n]{0,2}){0,6}"

# Neither tokenizer nor template of a model behind an endpoint is known. These are the marks of the common families.
_ROLES = "assistant|user|human|system"
_WIDESPREAD = re.compile(
    r"<\s?\|\s?[^<>|\s]{1,40}\s?(?:\|\s?)?>|<[^<>|\s]{1,40}\|>|\[\|[^\[\]|\s]{1,40}\|\]"  # bars on one side or both
    r"|<\s?/?\s?[a-z]{2,20}(?:[_:][a-z0-9]{1,20}){1,6}(?:[\s=][^<>\n]{0,80})?>"  # such as <start_of_turn>, <seed:eos>
    r"|</?(?:s|bos|eos|pad|unk|sep|cls|mask|[se]o[aehmpst]|tools|role|(?:unused|reserved|special|extra)\d{1,5})>"
    rf"|</?(?:{_ROLES}|model|bot|tool|developer)>|</?(?:function|parameter|message)[\s=][^<>\n]{{1,80}}>"
    r"|<\s?<\s?/?\s?SYS\s?>\s?>|\[\s?/?\s?(?:INST|THINK|gMASK|sMASK"  # [PAD], [BOS] and [CLS] are diseases too
    r"|(?:SYSTEM|TOOL|AVAILABLE|CALL|MODEL)_(?:PROMPT|TOOLS?|CALLS?|RESULTS?|CONTENT|ID|SETTINGS))\s?\]"
    r"|\]~!?b[\[\]]|\[e~\["
    rf"|#{{2,4}}{_GAP}(?:{_ROLES}|model|instruction|input|response){_GAP}:"
    rf"|^#{{2,4}}{_GAP}(?:{_ROLES})[^\S\n]{{0,3}}$"
    rf"|{_LINE_START}(?:{_ROLES}){_GAP}:"
    # Within a line lower-case roles are prose, "Nervous System: ..." is a heading, and Human:mouse a ratio.
    rf"|(?<![\w-])(?-i:USER|ASSISTANT|HUMAN|User|Assistant|Human(?!:[a-z])){_GAP}:|(?<=[.!?]\s)System{_GAP}:",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True)
class RoleMark:
    """A mark. One in ordinary words counts at the beginning of a line alone, unless the template writes it within."""

    text: str
    line_start: bool = False
    exact_case: bool = False

    @property
    def pattern(self) -> str:
        """A regular expression that also allows for white space inside the mark, and for other numbers."""
        parts = [r"\d{1,9}" if part.isdecimal() else re.escape(part) for part in _PIECE.findall(self.text)]
        body = _GAP.join(parts)
        body = rf"(?<!\w){body}" if self.text[0].isalnum() else body
        body = rf"{body}(?!\w)" if self.text[-1].isalnum() else body
        body = rf"{_LINE_START}{body}" if self.line_start else body
        return body if self.exact_case else f"(?i:{body})"


def folded(text: str) -> str:
    """`text` as normalisers of tokenizers may fold it: compatibility forms resolved, accents dropped.

    >>> folded("＜sýstem＞")
    '<system>'
    """
    return _NOT_ASCII.sub(_folded_run, text)


def _folded_run(found: re.Match[str]) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", found[0]) if unicodedata.category(c) not in ("Mn", "Me"))


def _seen(text: str) -> str:
    """`text` without format characters, which text from outside has not either."""
    return "".join(character for character in text if unicodedata.category(character) != "Cf")


@lru_cache(maxsize=64)
def role_marks(tokenizer: PreTrainedTokenizerBase, template: str) -> tuple[re.Pattern[str], ...]:
    """Patterns of the role marks of a tokenizer whose chat template is `template`; none where there is none."""
    if not tokenizer.added_tokens_decoder:  # bytes, which stand for a model elsewhere
        return (_WIDESPREAD,)
    marks = (
        sorted(_marks(tokenizer) | set(_of_tools(tokenizer)), key=lambda mark: (-len(mark.text), mark.text))
        if template
        else []
    )
    patterns = dict.fromkeys(mark.pattern for mark in marks)
    return tuple(re.compile(pattern, re.MULTILINE) for pattern in patterns)


def _added_tokens(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    added = sorted((folded(str(token)) for token in tokenizer.added_tokens_decoder.values()), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, added)))


def _marks(tokenizer: PreTrainedTokenizerBase) -> set[RoleMark]:
    tokens = _added_tokens(tokenizer)
    found: set[RoleMark] = set()
    for gap, inner in _gaps(tokenizer):
        lines = tokens.sub("\0", _seen(gap))
        parts = [part for line in lines.split("\n") for part in line.split("\0") if part.strip()]
        for number, part in enumerate(parts):
            # Before the first message there may be prose. Only what touches the message is a mark there.
            if inner or number == len(parts) - 1:
                found |= set(_marks_of(part, within=inner and "\n" not in gap and part[0].isspace()))
    return found


def _marks_of(part: str, *, within: bool) -> Iterator[RoleMark]:
    """The marks in a part of a line. `within`: the template writes it after other words."""
    yield from _in_brackets(part)
    rest = _BRACKETED.sub(" ", part).strip()
    if not rest or len(rest) > LONGEST_MARK:
        return
    if not any(character.isalpha() for character in rest):
        yield from _of_signs(rest)
    elif _signed(rest) or (rest.endswith(":") and len(rest.split()) > 1):
        yield RoleMark(rest)
        last = rest.split()[-1]
        if len(last) > 2 and last[:-1].isalpha() and last[-1] == ":" and unicodedata.category(rest[0]) == "So":
            yield RoleMark(last, line_start=True)  # as in "🤖 Assistant:"
    elif rest.endswith(":"):
        yield RoleMark(rest, line_start=True)
        if within or rest.isupper():
            yield RoleMark(rest, exact_case=True)
    elif rest.endswith(_STOPS) or (rest.endswith(".") and len(rest.split()) == 1):
        yield RoleMark(rest, line_start=True)


def _signed(words: str) -> bool:
    """Whether signs make a mark of words: any that prose does not have, or any around them."""
    signs = {character for character in words if not character.isalnum() and not character.isspace()}
    alone = len(words.split()) == 1
    around = not words[0].isalnum() and (alone or not words[-1].isalnum())
    return bool(signs - _OF_PROSE) or "--" in words or around


def _of_signs(signs: str) -> Iterator[RoleMark]:
    """A mark without letters. Few signs, and numbers, count at the beginning of a line alone."""
    if set(signs) <= _OF_PROSE - {"-"} or signs == "-":
        return
    shown = [character for character in signs if not character.isspace()]
    pictures = any(unicodedata.category(character) == "So" for character in shown)
    few = len(shown) < 3 and not pictures
    yield RoleMark(signs, line_start=few or any(character.isdecimal() for character in shown))


def _in_brackets(part: str) -> Iterator[RoleMark]:
    for bracketed in _BRACKETED.findall(part):
        named = _WITH_ATTRIBUTES.match(bracketed)
        if named:
            yield RoleMark(named[0])
        elif len(bracketed) <= LONGEST_MARK and any(character.isalnum() for character in bracketed):
            yield RoleMark(bracketed)


def _of_tools(tokenizer: PreTrainedTokenizerBase) -> Iterator[RoleMark]:
    """Marks around a call of a tool and its result: in brackets, before a colon, or a recipient; the rest is JSON."""
    for messages in (_AFTER_A_CALL, [*_AFTER_A_CALL, {"role": "assistant", "content": _SAID["assistant"]}]):
        try:
            gaps = _SENTINEL.split(folded(render(tokenizer, messages, _ANY_DAY)))
        except Exception:  # noqa: S112 - as in `_gaps`: most templates know no tools
            continue
        for gap in gaps[1:]:
            plain = _added_tokens(tokenizer).sub("\0", gap)
            yield from (mark for mark in _in_brackets(plain) if _NAMES_A_ROLE.fullmatch(mark.text))
            yield from (RoleMark(found, line_start=True) for found in _LEADS.findall(plain))
            yield from map(RoleMark, _RECIPIENT.findall(plain))


def _gaps(tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[str, bool]]:
    """The texts that a template writes around messages, and whether each stands between two of them."""
    for roles in (
        ("user",),
        ("user", "assistant", "user"),
        ("system", "user"),
        ("system", "user", "assistant", "user"),
    ):
        messages = [{"role": role, "content": _SAID[role]} for role in roles]
        try:
            gaps = _SENTINEL.split(folded(render(tokenizer, messages, _ANY_DAY)))
        except Exception:  # noqa: S112 - a template may refuse a role by raising anything; the others still tell
            continue
        if len(gaps) > 1:
            yield gaps[0], False
            yield from ((gap, True) for gap in gaps[1:])

r"""Reads the option that a whole reply names: what a model wrote, with reasoning, headings and thoughts in it.

Thoughts are set aside first. A reply that was cut off inside one names nothing. Then the first of these decides that
names an option: answer tags, the answer fields of a JSON reply, the whole of a short reply. If the prompt asked for
a last line that is the answer ("Answer: B", "**B**", "(B) no", \boxed{B}), that line is strict as well.

Lenient goes on: the last line, the last statement, the last sentence, a line that is an option with its letter, and a
first line before an explanation. Lists of the options name none.
"""

import json
import re
from collections.abc import Sequence

from medagent.answer_forms import marked_letters
from medagent.evaluation.grading import option_named
from medagent.evaluation.grading.option_named import Outcome, Reading, by_option_text, lettered, read_answer
from medagent.evaluation.grading.statements import is_list, stated
from medagent.plain_protocol import tagged_answers

_FIELD = re.compile(
    r"""(?:["'](?:(?:final|correct|best)[_ ])?(?:answer(?:[_ ](?:choice|idx|letter|option))?s?|choice|option|letter)["']
        |\banswer_(?:choice|idx)|\bfinal_answer)
    \s*:\s*(?:("(?:[^"\\]|\\.)*")|'((?:[^'\\]|\\.)*)'
        |\[((?:\s*(?:"[^"\]]*"|'[^'\]]*')\s*,?)+)\]|([^\s"'{\[,}][^,}\n]*))""",
    re.IGNORECASE | re.VERBOSE,
)
_REFUSAL = re.compile(
    r"""(?ix)\b(?:can(?:not|['’]t|\ not)|unable\ to|not\ able\ to|won['’]t|will\ not|decline\ to|not\ comfortable
        |not\ qualified\ to|(?:do\ not|don['’]t)\ have\ the\ ability\ to|not\ (?:be\ )?appropriate)\b
        .{0,40}?\b(?:assist|help|comply|provide|providing|fulfil|fulfill|answer|give|giving|offer|discuss|continue
        |advise|advice|diagnose)\b
    | \bviolates?\ (?:our|the|usage|content)\b.{0,20}\bpolic"""
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z(\"'*])|(?<=[。！？])|\n+")
_BOXED = re.compile(r"\\boxed\{\s*(?:\\(?:text|mathrm|textbf)\{)?\s*(.*?)\s*\}+\$*\.?$")
_ANSWER_IS = re.compile(
    r"""(?ix)^\W*(?:(?:so|thus|hence|therefore)\W+)?(?:the\s+|my\s+)?(?:final\s+|correct\s+|best\s+|right\s+)*
        (?:answers?|choices?|options?|respuesta|réponse|antwort|resposta|정답|답|答案|正确答案)
        (?:\s+(?:is|are)\b|은|是|为)?[\s*_]*[:：]?\s*"""
)
_ABOUT_AN_OPTION = re.compile(r"\W*(?:\w+\s+){0,3}(?:option|choice)\b", re.IGNORECASE)
_LETTER = re.compile(r"(?<!\w)([A-J])(?!\w)")
_JOINING = re.compile(r"\b(?:and|both|all of|the|options?|choices?|answers?|letters?|are)\b", re.IGNORECASE)
_BOX = re.compile(r"^[\s*_>-]*\[([ xX✓✔]?)\]\W*([A-J])\b", re.MULTILINE)
_SHORT = 150  # characters of an answer by itself; a longer text is a reply with reasoning in it
_OPENING = 300  # characters in which a refusal stands
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
    cut_off = inside and not tagged_answers(reply[at:])
    return "".join(kept) + ("" if cut_off else reply[at:]), cut_off


def read_reply(reply: str, letters: str, options: Sequence[str] = (), *, last_line_asked: bool = False) -> Reading:
    r"""Read a whole reply of a model.

    `last_line_asked`: the prompt asked for a last line that is the answer.

    >>> read_reply('So the answer is {"reason": "...", "answer_choice": "C. zinc"}', "ABCD").strict
    'C'
    >>> read_reply("It is taken by mouth.\n\nAnswer: B", "ABCD", last_line_asked=True).strict
    'B'
    """
    text, cut_off = without_reasoning(reply)
    if cut_off:
        return Reading(None, None, Outcome.TRUNCATED)
    text = lettered(text.translate(option_named.FULL_WIDTH).strip(), letters, options)
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    marked = [_answer_line(line, letters, options) for line in lines if _is_answer_line(line)]
    answers = [] if is_list(text) else [reading for reading in marked if reading.strict]
    if values := tagged_answers(text) or [_value(match) for match in _FIELD.finditer(text)]:
        ending = answers[-1:] if _is_answer_line(lines[-1]) else []
        return _of_several([*(read_answer(value, letters, options) for value in values), *ending])
    if text.count("{") > text.count("}"):
        return Reading(None, None, Outcome.TRUNCATED)
    last = lines[-1]
    if last_line_asked and not _ends_a_list(text):
        reading = _answer_line(last, letters, options)
        if reading.strict or reading.outcome is Outcome.MULTIPLE:
            return _of_several([*answers, reading])
        if reading.outcome is Outcome.ABSTAINED and _is_answer_line(last):
            return reading
    said = stated(text, letters, options)
    if len(text) <= _SHORT and "\n" not in text:
        reading = read_answer(text, letters, options)
        if reading.strict and said and said != reading.strict:
            return Reading(None, said, Outcome.UNPARSED)  # "A. Analysis: ... Answer: B"
        if reading.outcome is Outcome.MULTIPLE and (corrected := list(option_named.CORRECTED.finditer(text))):
            after = stated(text[corrected[-1].end() :], letters, options)  # "A. Wait, it is B"
            return Reading(None, after, Outcome.MULTIPLE)
        if reading.strict or reading.outcome is Outcome.MULTIPLE:
            return reading
    line = None if _ends_a_list(text) else _answer_line(last, letters, options)
    lenient = (
        _checked(text, letters)
        or (line and (line.strict or line.lenient))
        or said
        or _by_sentences(text, letters, options)
        or _by_lines(text, letters, options)
    )
    if lenient is None and (_declines(text) or (line and line.outcome is Outcome.ABSTAINED)):
        return Reading(None, None, Outcome.ABSTAINED, refused=_REFUSAL.search(text[:_OPENING]) is not None)
    return Reading(None, lenient, Outcome.UNPARSED)


def _value(match: re.Match[str]) -> str:
    """A field's value; JSON's escapes are resolved where they are JSON's."""
    quoted, single, listed, bare = match.groups()
    if quoted is not None:
        try:
            return str(json.loads(quoted, strict=False))
        except json.JSONDecodeError:
            return quoted[1:-1]
    if listed is not None:
        return ", ".join(re.findall(r"""["']([^"']*)["']""", listed))
    return single if single is not None else bare or ""


def read_selection(reply: str, letters: str, options: Sequence[str]) -> Reading:
    """Read all options that a reply selects, as "A, C". Nothing else may stand in its answer: "A or C" selects none.

    >>> read_selection("C. zinc; A. iron", "ABC", ["iron", "copper", "zinc"]).strict
    'A, C'
    """
    text, cut_off = without_reasoning(reply)
    if cut_off:
        return Reading(None, None, Outcome.TRUNCATED)
    text = text.translate(option_named.FULL_WIDTH).strip()
    values = tagged_answers(text) or [_value(match) for match in _FIELD.finditer(text)] or [text]
    told = [_selected(value, letters, options) for value in values]
    if told[-1] and len(set(told)) == 1:
        return Reading(told[-1], told[-1], Outcome.PARSED)
    lenient = told[-1] or _selected((text.splitlines() or [""])[-1], letters, options)
    if any(told):
        return Reading(None, lenient, Outcome.MULTIPLE)
    return Reading(None, lenient, Outcome.ABSTAINED if not lenient and _declines(text) else Outcome.UNPARSED)


def _selected(answer: str, letters: str, options: Sequence[str]) -> str | None:
    """The letters of an answer that holds nothing but letters, the options' texts and what joins them."""
    rest = _ANSWER_IS.sub("", option_named.CITED.sub("", answer))
    for option in sorted(options, key=len, reverse=True):
        rest = rest.replace(option, " ") if len(option) > 2 else rest
    if compact := re.fullmatch(r"\W*([A-J]{2,})\W*", rest):
        rest = " ".join(compact[1])
    named = set(_LETTER.findall(rest))
    alone = named <= set(letters) and not re.search(r"\w", _JOINING.sub("", _LETTER.sub("", rest)))
    return ", ".join(sorted(named)) if named and alone else None


def _is_answer_line(line: str) -> bool:
    """Whether a line is marked as the answer: "Answer: B", a box, or a letter by itself."""
    return bool(_ANSWER_IS.match(line) and not _ABOUT_AN_OPTION.match(line)) or bool(
        _BOXED.search(line.strip()) or re.fullmatch(r"\W*[A-J]\W*", line)
    )


def _of_several(readings: Sequence[Reading]) -> Reading:
    """One reading of several answers, which must agree."""
    told = {reading.strict for reading in readings if reading.outcome is not Outcome.UNPARSED}
    if len(told) > 1:
        return Reading(None, readings[-1].lenient, Outcome.MULTIPLE)
    return next((reading for reading in readings if reading.outcome is not Outcome.UNPARSED), readings[-1])


def _answer_line(line: str, letters: str, options: Sequence[str]) -> Reading:
    """A line that is the answer and nothing else."""
    bare = line.strip(" \t*_`$#>.")
    if boxed := _BOXED.search(line.strip()):
        bare = boxed[1]
    bare = _ANSWER_IS.sub("", bare).strip(" \t*_`$\"'")
    if len(bare) > _SHORT:
        return Reading(None, None, Outcome.UNPARSED)
    if re.fullmatch(r"\(?[a-j]\)?", bare) and bare.strip("()").upper() in letters:
        bare = bare.upper()
    return read_answer(bare, letters, options)


def _ends_a_list(text: str) -> bool:
    """Whether the last two lines enumerate options."""
    return is_list("\n".join([line for line in text.splitlines() if line.strip()][-2:]))


def _checked(text: str, letters: str) -> str | None:
    """The only option of a list that is ticked: "- [x] C"."""
    boxes = _BOX.findall(text)
    ticked = [letter for mark, letter in boxes if mark.strip() and letter in letters]
    return ticked[0] if len(ticked) == 1 and len(boxes) > 1 else None


def _by_sentences(text: str, letters: str, options: Sequence[str]) -> str | None:
    """The option that the last sentence names by its letter or text; else one such as "no" that the first says."""
    if not (sentences := _sentences(text)):
        return None
    last = sentences[-1]
    marks = [] if option_named.NEGATED.search(last) else [mark for mark in marked_letters(last) if mark in letters]
    if len(marks) == 1:
        return marks[0]
    if named := by_option_text(last, letters, options):
        return named
    # Sentences hold options such as "no" by chance, except at the beginning of the reply.
    first = by_option_text(sentences[0], letters, options)
    plain = first and options[letters.index(first)].strip().lower()
    return first if plain in ("yes", "no", "maybe", "true", "false") else None


def _by_lines(text: str, letters: str, options: Sequence[str]) -> str | None:
    """The option of a line that holds its letter and its text: the only one, or the one that a colon leads to.

    Else that of a first line which stands by itself, before an explanation.
    """
    lines = [line.strip(" \t*_`>#") for line in text.splitlines() if line.strip(" \t*_`>#")]
    read = [read_answer(line, letters, options).strict if _is_option(line, options) else None for line in lines]
    found = {letter for letter in read if letter}
    led = [letter for before, letter in zip(lines, read[1:], strict=False) if letter and before.endswith(":")]
    if found and not is_list(text):
        return led[-1] if led else next(iter(found)) if len(found) == 1 else None
    if len(lines) < 2 or is_list(text) or len(lines[0]) > _SHORT:
        return None
    alone = not options or re.fullmatch(r"\W*[A-J]\W*", lines[0])
    return read_answer(lines[0], letters, options).strict if alone else None


def _is_option(line: str, options: Sequence[str]) -> bool:
    """Whether a line is a letter with the text of an option."""
    body = re.sub(r"^\W*[A-J][).:\s-]*", "", line).strip(" .*_").lower()
    return any(body == option.strip(" .").lower() for option in options)


def _declines(text: str) -> bool:
    sentences = _sentences(text)
    return bool(sentences and (option_named.ABSTENTION.search(sentences[-1]) or _REFUSAL.search(text[:_OPENING])))


def _sentences(text: str) -> list[str]:
    """The sentences of a text; none of a list of options."""
    return [] if is_list(text) else [each for each in _SENTENCE.split(text) if each and each.strip()]

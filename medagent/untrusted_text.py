"""Text from outside, made harmless: questions, options, passages, queries and results of tools.

Three things happen to it, in this order. Characters that nobody sees are dropped, so that none can hide a mark. Marks
of the protocol and of the model's chat template get look-alike characters. It is encoded by a tokenizer that knows no
added tokens. So it can hold no id by which the model tells who speaks, whether that token is special or not.
"""

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from medagent.models.role_marks import folded, role_marks
from medagent.retrieval.passages import Passage
from medagent.types import Question

LONGEST_KEPT = 2_000  # characters of a text whose outcome is remembered

# None of these has a compatibility form, so no normaliser of a tokenizer turns it back.
_LOOK_ALIKE = dict(
    zip(
        "<>[]{}#|:*=@«»-()~_/^\\!&;?`%\"',‹›【】〈〉《》〔〕「」『』〖〗·",
        "‹›()()♯¦∶∗꞊⊚‹›‐❨❩∼ˍ∕ˆ∖ǃ⅋⁏⸮ˋ٪ʺʹ‚❮❯〖〗❬❭⟪⟫❲❳⌜⌟⌜⌟⟦⟧‧",
        strict=True,
    )
)
_OF_OTHERS = "·"  # stands for a sign that has none, such as an emoji

_LINE_BREAK = re.compile(r"\r\n|[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# Controls, lone surrogates, and what Unicode calls ignorable by default. Arabic and Indic scripts spell with joiners.
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_JOINER = re.compile("[\u200c\u200d](?![\u0600-\u1aff])|(?<![\u0600-\u1aff])[\u200c\u200d]")
_PROBE = "Gout: 5 mg/d (BMI ≥ 30), then <b>x</b>."


def visible(text: str) -> str:
    r"""`text` without control, format and zero-width characters; line breaks of all kinds are "\n"."""
    if text.isprintable() and (text.isascii() or not _UNSEEN.search(text)):
        return text
    return _JOINER.sub("", _UNSEEN.sub("", _LINE_BREAK.sub("\n", text).replace("\x1f", " ")))


def with_look_alikes(text: str, *marks: re.Pattern[str]) -> str:
    """`text` with look-alikes of the brackets and signs of all that `marks` match, in compatibility forms too."""
    for _ in range(4):  # a look-alike may be a sign of another mark
        before, text = text, _once(text, marks)
        if text == before:
            break
    return text


def _look_alike(sign: str) -> str:
    return sign if sign.isalnum() or sign.isspace() else _LOOK_ALIKE.get(sign, _OF_OTHERS)


def _once(text: str, marks: Sequence[re.Pattern[str]]) -> str:
    if text.isascii():
        for pattern in marks:
            text = pattern.sub(lambda found: "".join(map(_look_alike, found[0])), text)
        return text
    plain = folded(text)
    spans = [found.span() for pattern in marks for found in pattern.finditer(plain)]
    if not spans:
        return text
    made = list(text)
    place = [number for number, character in enumerate(text) for _ in folded(character)]
    for span in spans:
        for at in range(*span):
            if _look_alike(plain[at]) != plain[at]:
                made[place[at]] = _look_alike(plain[at])
    return "".join(made)


@lru_cache(maxsize=64)
def literally(*marks: str) -> tuple[re.Pattern[str], ...]:
    """Patterns of the marks themselves, in upper and lower case."""
    return tuple(re.compile(re.escape(mark.strip()), re.IGNORECASE) for mark in marks if mark.strip())


@lru_cache(maxsize=8_000)
def _harmless(tokenizer: PreTrainedTokenizerBase, template: str, text: str) -> str:
    return with_look_alikes(visible(text), *role_marks(tokenizer, template))


def harmless(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """`text` without unseen characters and role marks of the chat template, whether or not the protocol uses it."""
    make = _harmless if len(text) <= LONGEST_KEPT else _harmless.__wrapped__
    return make(tokenizer, str(tokenizer.chat_template or ""), text)


def harmless_question(tokenizer: PreTrainedTokenizerBase, question: Question) -> Question:
    """The question as a protocol may write it into a prompt."""
    text, options = harmless(tokenizer, question.text), tuple(harmless(tokenizer, each) for each in question.options)
    return replace(question, text=text, options=options)


def harmless_passages(tokenizer: PreTrainedTokenizerBase, passages: Sequence[Passage]) -> list[Passage]:
    """The passages as a protocol may write them into a dialogue; ids and metadata stay."""
    return [
        replace(
            passage,
            title=harmless(tokenizer, passage.title),
            section=harmless(tokenizer, passage.section),
            text=harmless(tokenizer, passage.text),
        )
        for passage in passages
    ]


class _Splitter:
    """Encodes text as its letters, whatever tokens were added to the tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer, self._plain = tokenizer, _without_added(tokenizer)
        self._vocabulary = tokenizer.get_vocab()
        ends = {tokenizer.eos_token_id, tokenizer.bos_token_id}
        self._unknown = None if tokenizer.unk_token_id in ends else tokenizer.unk_token_id
        added = {id_ for id_, each in tokenizer.added_tokens_decoder.items() if each.special or len(each.content) > 1}
        self.added = frozenset({*added, *tokenizer.all_special_ids} - {self._unknown})

    def ids(self, text: str) -> list[int]:
        """The text's ids. Text that yields an added token, as an ordinary entry too, is split until no part does."""
        if self._plain is not None:
            ids = list(self._plain.encode(text, add_special_tokens=False).ids)
        else:
            ids = list(self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])
        named = self._unknown is not None and self._unknown in ids and str(self._tokenizer.unk_token) in text
        if not named and self.added.isdisjoint(ids):
            return ids
        if len(text) < 2:
            return [token for token in self._spelt(text) if token not in self.added]
        middle = len(text) // 2
        before = text.rfind(" ", 1, middle + 1)
        cut = before if before > 0 else text.find(" ", middle)
        cut = cut if cut > 0 else middle
        return self.ids(text[:cut]) + self.ids(text[cut:])

    def _spelt(self, character: str) -> list[int]:
        """The ids of a character's bytes, if the model has them."""
        names = [f"<0x{byte:02X}>" for byte in character.encode()]
        if all(name in self._vocabulary for name in names):
            return [self._vocabulary[name] for name in names]
        return [] if self._unknown is None else [self._unknown]


def encode_untrusted(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of harmless text. None is an added token's but that of a single character that is not special."""
    return _splitter(tokenizer, len(tokenizer.added_tokens_decoder)).ids(harmless(tokenizer, text))


@lru_cache(maxsize=16)
def _splitter(tokenizer: PreTrainedTokenizerBase, count: int) -> _Splitter:
    """The splitter of a tokenizer that has `count` added tokens; it is made once, as it copies the vocabulary."""
    return _Splitter(tokenizer)


def _without_added(tokenizer: PreTrainedTokenizerBase) -> Tokenizer | None:
    """The tokenizer's own pipeline without its added tokens; None where it is written in Python."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return None
    try:
        described = json.loads(tokenizer.backend_tokenizer.to_str())
    except Exception:  # a part written in Python cannot be described, and the library raises a bare Exception
        return None
    described.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
    plain = Tokenizer.from_str(json.dumps(described))
    same = tokenizer(_PROBE, add_special_tokens=False)["input_ids"] == plain.encode(_PROBE).ids
    return plain if same else None


_NOTHING_TO_SEE = frozenset("\u2800\u3164\u115f\u1160\uffa0")  # letters by their category, and blank on the screen


def is_blank(text: str) -> bool:
    """Whether a text has nothing that can be seen: white space, control and format characters alone."""
    return all(unicodedata.category(each)[0] in "ZC" or each in _NOTHING_TO_SEE for each in text)

"""A language model writes a question about each passage, and answers it with the passage and without it."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from medagent.errors import PolicyError
from medagent.evaluation.grading.open_answers import contains
from medagent.evaluation.question_making.checks import Draft, holds, words_of
from medagent.evaluation.rubrics.judging import Asking, json_objects
from medagent.evaluation.rubrics.responder import Responder
from medagent.evidence.words import word_list
from medagent.lazy import packaged
from medagent.retrieval.chunking import split_sentences
from medagent.retrieval.passages import Passage
from medagent.untrusted_text import visible, with_look_alikes

_PROMPTS = packaged("medagent.evaluation.question_making", "prompts.yaml")
WRITE, OPEN_BOOK, CLOSED_BOOK = (str(_PROMPTS[name]) for name in ("write", "open_book", "closed_book"))
EXAMPLES = [said for each in _PROMPTS["examples"] for said in (WRITE.format(each["passage"]), each["reply"])]
LONGEST_PASSAGE = 6_000  # characters that the writer is shown
LONGEST_ANSWER = 8  # words
EXTRA_WORDS = 5  # that an answer may have beside the right one

UNREADABLE = "the reply holds no question and answer"
ANSWER_TOO_LONG = "the answer is too long"
POINTS_ELSEWHERE = "the question points at something outside it"
NOT_ANSWERED = "the model does not answer it with the passage"
KNOWN = "the model answers it without the passage"
_BLOCK = re.compile(r"<\s*/?\s*passage\b[^>]*>?", re.IGNORECASE)
_LINES = re.compile(
    r"(?ims)^[\W\d]*(?:question|q)\b[^\n:]{0,12}:[\s*]*(?P<question>.+?)\s*(?:\banswer|^[\W\d]*a)\b[^\n:]{0,12}:[\s*]*"
    r"(?P<answer>[^\n]+)"
)
# Words that point at something outside the question.
_POINTERS = word_list("pointers")
_ELSEWHERE = re.compile(
    r"(?i)\b(?:passage|text|article|mentioned|described)\b"
    r"|\b(?:the|each) (?:condition|disorder|disease|syndrome|illness|affected \w+)s?\b(?! (?:that|of|in which|called))"
    r"|\bthe (?:altered |mutated |affected )?gene\b(?! (?:that|for|which))|\bof (?:the |all )?cases (?!of|with|in)"
    r"|\bof (?:all )?cases$|\beach other\b|\bof the (?:two|three|four|five|six)\b|\baffected (?:individuals|people|"
    r"infants|children|babies|newborns|males|females|men|women|adults)\b"
)


@dataclass
class Writer:
    """Writes drafts, and answers them. Replies are kept by a digest of what was asked."""

    responder: Responder
    asking: Asking
    readable: int = field(init=False, default=0)

    def drafts(self, passages: Iterable[Passage]) -> Iterator[Draft | str]:
        """A draft of each passage, or why there is none, in their order.

        Raises:
            PolicyError: none of the first replies has the form.
        """
        passages = list(passages)
        replies = self._ask([[*EXAMPLES, WRITE.format(_shown(each))] for each in passages])
        read = [read_draft(reply, passage) for reply, passage in zip(replies, passages, strict=True)]
        self.readable += len(read) - read.count(UNREADABLE)
        if read and not self.readable:
            raise PolicyError(
                f"writer {self.responder.described.get('name')}: none of {len(read)} replies holds a question and an "
                f'answer, wanted "Question: ...", "Answer: ...". One is {replies[0][:200]!r}. Give an instruct model, '
                "or more --writer_tokens where it was still thinking."
            )
        yield from read

    def reasons(self, drafts: Sequence[Draft]) -> list[str]:
        """Why each draft is dropped, by answers with its passage and without; empty where it is kept."""
        asked = [[OPEN_BOOK.format(_shown(each.passage), each.question)] for each in drafts]
        replies = self._ask(asked + [[CLOSED_BOOK.format(each.question)] for each in drafts])
        right = [answers(reply, each) for reply, each in zip(replies, [*drafts, *drafts], strict=True)]
        both = zip(right[: len(drafts)], right[len(drafts) :], strict=True)
        return [NOT_ANSWERED if not opened else KNOWN if closed else "" for opened, closed in both]

    def _ask(self, conversations: Sequence[Sequence[str]]) -> list[str]:
        """A reply to each conversation, of which the user says the first text and the last."""
        told = [
            [{"role": ("user", "assistant")[turn % 2], "content": text} for turn, text in enumerate(each)]
            for each in conversations
        ]
        who = [dict(self.responder.described), self.asking.settings.reply_tokens]
        names = [sha256(json.dumps([*who, each]).encode()).hexdigest()[:32] for each in told]
        said = self.asking.replies(self.responder, list(dict(zip(names, told, strict=True)).items()))
        return [said[name] for name in names]


def _shown(passage: Passage) -> str:
    return with_look_alikes(visible(passage.indexed_text[:LONGEST_PASSAGE]), _BLOCK)


def read_draft(reply: str, passage: Passage) -> Draft | str:
    """The draft in a reply, a JSON object or two lines, or why there is none."""
    forms = [each for each in json_objects(reply) if {"question", "answer"} <= each.keys()]
    forms += [lines.groupdict() for lines in _LINES.finditer(reply)]
    if not forms:
        return UNREADABLE
    question, answer = (" ".join(str(forms[0][name]).split()).strip(" *_`\"'") for name in ("question", "answer"))
    answer, asked = answer.rstrip("."), set(words_of(question))
    if not asked or not words_of(answer):
        return UNREADABLE
    if len(answer.split()) > LONGEST_ANSWER:
        return ANSWER_TOO_LONG
    if _POINTERS.intersection(words_of(question)) or _ELSEWHERE.search(question):
        return POINTS_ELSEWHERE
    holding = [each for each in split_sentences(passage.text) if holds(each, answer)]
    sentence = max(holding, key=lambda each: len(asked.intersection(words_of(each))), default=passage.text)
    return Draft(question, answer, sentence, passage)


def answers(reply: str, draft: Draft) -> bool:
    """Whether the first line of a reply gives the right answer, with few words beside it."""
    said = re.sub(r"^\W*answer\W*:\s*", "", reply, flags=re.IGNORECASE)
    return contains(said.split("\n")[0], (draft.answer,), most_extra_words=EXTRA_WORDS)

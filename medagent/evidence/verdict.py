"""The verdict of the evidence: whether passages that were shown state an answer, judged by the program alone.

Two matches decide. *Subject*: every word by which the question names its subject stands in the passage, or in another
one that was shown and that names the passage's subject. *Answer*: the passage entails what is said, by words or by a
model (`medagent.evidence.support`), and tells the kind of thing that was asked for, such as a treatment.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from medagent.answer_forms import citations, without_citations
from medagent.evidence import sentences
from medagent.evidence.drugs_and_doses import named_in
from medagent.evidence.kinds import WHY_NONE, EvidenceKind, EvidenceVerdict
from medagent.evidence.reading import Asked, kinds_beside, numbered, quoted, read_answer, without_name, words_of
from medagent.evidence.rules import AskedRelation, LexicalRule, stating
from medagent.evidence.subject import SubjectMatch, match_subject
from medagent.evidence.support import Statement, SupportJudge, content_words
from medagent.evidence.synonyms import SynonymTable
from medagent.evidence.words import Names, describes, folded, forms, is_other_language, subject_words, tells
from medagent.retrieval.passages import Passage
from medagent.types import LETTERS, Rollout, StopReason

SOME_OF_A_CASE = 0.3  # share of a case's words that a passage on it mentions
MAX_STATING_SENTENCES = 10  # sentences that state a name, whose neighbours are read too
MAX_FORMS = 6
_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
_ALL_OR_NONE = re.compile(r"\b(?:all|none|both|neither|any) of (?:the )?(?:above|these|them|options)\b", re.IGNORECASE)


def judge(
    rollout: Rollout, support: SupportJudge = LexicalRule(), names: Names = Names(()), table: SynonymTable | None = None
) -> EvidenceVerdict:
    """The verdict on a rollout's answer. `names` are the corpus's titles, for misspelt subjects."""
    answered = rollout.stop_reason is StopReason.ANSWERED
    answer = (rollout.answer or "").strip() if answered else ""
    table = table or SynonymTable.load()
    if content_words(table.plain(without_citations(answer))) <= content_words(table.plain(rollout.question.text)):
        table = SynonymTable(())  # a synonym is asked for
    found = _Judgement(rollout, answer, support, names, table)
    verdict = found.verdict()
    cited = citations(answer)
    unread = verdict.kind not in (EvidenceKind.PARTLY, EvidenceKind.OTHER_LANGUAGE)
    if cited and rollout.turns[-1].quoted and not rollout.turns[-1].text and unread:
        return _partly(f"Quoted from {numbered(cited)} without a model. Whether this answers must be read.", cited)
    return replace(verdict, contradicts=found.said.contradicts)


def _partly(text: str, numbers: Sequence[int], missing: tuple[str, ...] = ()) -> EvidenceVerdict:
    return EvidenceVerdict(EvidenceKind.PARTLY, text, tuple(numbers), missing)


class _Judgement:
    def __init__(
        self, rollout: Rollout, answer: str, support: SupportJudge, names: Names, synonyms: SynonymTable
    ) -> None:
        plain, options = synonyms.plain, tuple(map(synonyms.plain, rollout.question.options))
        self._question = replace(rollout.question, text=plain(rollout.question.text), options=options)
        self._answer, self._support, self._synonyms = plain(answer), support, synonyms
        self._asked, self._relation = Asked.of(self._question), AskedRelation.asked_by(self._question.text)
        self._shown = [hit.passage for hit in rollout.hits]
        self._passages = [synonyms.plain_passage(passage) for passage in self._shown]
        shown = len(self._passages)
        self._cited = [number for number in citations(self._answer) if 1 <= number <= shown]
        self.said = read_answer(self._answer, self._question, shown=shown)
        self._names, self._stopped = names, rollout.stop_reason

    def verdict(self) -> EvidenceVerdict:
        if is_other_language(self._question.text):
            text = "Only questions in English are read. Please ask it in English."
            return EvidenceVerdict(EvidenceKind.OTHER_LANGUAGE, text)
        if not self._answer:
            return EvidenceVerdict(EvidenceKind.NO_ANSWER, f"The agent gave no answer: {WHY_NONE[self._stopped]}.")
        if not self._asked.subject:
            return self._not_read("The question names nothing that a passage could be about.")
        if self._dose_from_nowhere():
            text = "The answer names a dose that no passage it cites contains, so it is not shown."
            return replace(self._not_read(text), unsafe=True)
        if self._name and content_words(self._name) <= content_words(self._question.text):
            return self._not_read("The answer only repeats the question.")
        if self._name and (
            sentences.breaks_off(self._name) or sentences.says_too_little(self._name, self._question.text)
        ):
            return self._not_read("The answer says too little to be checked.")
        if self.said.decision:
            return self._of_a_decision()
        if _ALL_OR_NONE.search(self._name):
            return self._not_read("The answer speaks of all options or none, which no passage can state.")
        stating = self._stating()
        if not stating:
            return self._partly_stated() or self._in_own_words()
        on_subject = self._on_subject(stating)
        if not on_subject:
            return self._of_another_subject(stating)
        answering = [number for number in on_subject if self._answers(number)]
        if not answering:
            return self._something_else(on_subject, "states no answer to this")
        elsewhere = sum(not self._on_subject(each.cited) for each in self.said.statements)
        if not self._name and elsewhere:
            said = len(self.said.statements)
            return _partly(f"{elsewhere} of the {said} things said are of another subject.", answering)
        telling = [number for number in answering if self._tells(number)]
        if not telling:
            kind = " or ".join(kind.name for kind in self._asked.kinds)
            return self._something_else(answering, f"tells nothing of {kind}")
        close = [number for number in telling if self._states_it_closely(number)]
        if not close:
            text = f"{numbered(telling)} mentions the question's words and the answer's, but not in one sentence."
            return _partly(text, telling)
        telling = [number for number in close if not self._only_supposed(number)]
        if not telling:
            return _partly(f"{numbered(close)} gives this as a belief or a guess.", close)
        narrower = self._narrower_in(telling)
        telling = [number for number in telling if number not in narrower]
        if not telling:
            return _partly(self._only_for(narrower), list(narrower))
        if self.said.contradicts:
            option = quoted([self._question.options[LETTERS.index(self.said.letter or "A")]])
            but = f"But the letter ({self.said.letter}) stands for {option}, which the answer does not say"
            return _partly(f"What is said stands in {numbered(telling)}. {but}, so the letter is not shown.", telling)
        if self.said.decides:
            text = f"What follows is stated in {numbered(telling)}. Whether it means yes or no must be read."
            return _partly(text, telling)
        return EvidenceVerdict(EvidenceKind.STATED, f"Stated in {numbered(telling)}.", tuple(telling))

    def _in_own_words(self) -> EvidenceVerdict:
        """The verdict on an answer whose words no passage has: one that it cites may say it in others."""
        same = [number for number in self._cited if self._match(number).kind == "same"]
        read = {number: self._passages[number - 1] for number in same}
        near = [number for number, passage in read.items() if self._told_by(passage, passage.text)]
        if not near or any(each.name for each in self.said.statements):
            return self._not_read("No passage that the agent read says what it answered.")
        return EvidenceVerdict(EvidenceKind.OWN_WORDS, f"The agent puts this in its own words. Read {numbered(near)}.")

    def _narrower_in(self, numbers: Sequence[int]) -> dict[int, str]:
        """The passages among these that state it of a narrower subject than the asked one, with its name."""
        found = {}
        for number in numbers:
            said = self._close_windows(number) if self._name else [each.text for each in self.said.statements]
            matches = [self._match(number, without_name(each, self._name)) for each in said or [""]]
            if all(match.kind == "narrower" for match in matches):
                found[number] = matches[0].name
        return found

    def _match(self, number: int, sentence: str | None = None) -> SubjectMatch:
        return match_subject(self._question, self._shown[number - 1], sentence, self._synonyms)

    def _only_for(self, narrower: Mapping[int, str]) -> str:
        """What to tell of answers for narrower subjects, with the others that were read."""
        names = list(dict.fromkeys(narrower.values()))
        every = {folded(match.name): match.name for match in map(self._match, range(1, len(self._shown) + 1))}
        others = [every[key] for key in every.keys() - {"", *map(folded, names)}]
        also = f" Other forms that were read: {', '.join(sorted(others)[:MAX_FORMS])}." if others else ""
        return f"Stated in {numbered(list(narrower))}, only for {quoted(names[:2])}.{also}"

    def _stating(self) -> list[int]:
        """The passages that entail every statement: those cited, or, of a name alone, any that was shown."""
        if self._name:
            claim = self.said.statements[0]
            others = [number for number in range(1, len(self._passages) + 1) if number not in self._cited]
            of_the_subject: list[int] = []
            for numbers in (self._cited, others):
                on_subject = [number for number in self._on_subject(numbers) if self._entailed(claim, [number])]
                checks = (self._answers, self._tells, self._states_it_closely)
                whole = [number for number in on_subject if all(check(number) for check in checks)]
                if whole:
                    return whole
                of_the_subject = of_the_subject or on_subject
            if of_the_subject:
                return of_the_subject
            return [number for number in self._cited if self._windows(self._passages[number - 1])]
        if all(each.cited and self._entailed(each, each.cited) for each in self.said.statements):
            return list(dict.fromkeys(number for each in self.said.statements for number in each.cited))
        return []

    def _entailed(self, statement: Statement, numbers: Sequence[int]) -> bool:
        passages = [self._passages[number - 1] for number in numbers]
        return self._support.judge_all([(statement, passages)])[0]

    def _windows(self, passage: Passage) -> list[str]:
        return stating(self._name, self._question.text, passage.text)

    def _on_subject(self, numbers: Sequence[int]) -> list[int]:
        return [number for number in numbers if self._asked.named_in(self._words_around(number))]

    def _states_it_closely(self, number: int) -> bool:
        """Whether the sentence that states a name is on the subject, with the heading; a long case need not be."""
        return not self._name or self._asked.is_case or bool(self._close_windows(number))

    def _close_windows(self, number: int) -> list[str]:
        passage, asked = self._passages[number - 1], self._question.text
        around = forms(passage.heading) | self._bridged(passage)
        return [
            window
            for window in self._windows(passage)
            if self._asked.named_in(around | forms(without_name(window, self._name)))
            and self._told_by(passage, window)
            and all(states(self._name, window, asked) for states in (sentences.names_a_gene, sentences.gives_a_name))
            and sentences.defines(self._name, window, asked, frozenset(self._asked.subject))
        ]

    def _only_supposed(self, number: int) -> bool:
        windows = self._close_windows(number) if self._name else []
        return bool(windows) and all(map(sentences.SUPPOSED.search, windows))

    def _answers(self, number: int) -> bool:
        """Whether a name is more than the question's subject again, and of the sort that is asked for."""
        passage, asked = self._passages[number - 1], self._question.text
        relation, subject = self._relation, frozenset(self._asked.subject)
        if not self._name:
            return not relation or bool(re.search(relation.verbs, folded(self._answer)))
        if relation and not any(relation.stated_of(self._name, each, subject) for each in self._windows(passage)):
            return False
        echo = sentences.echoes(self._name, passage.title, asked, subject)
        return not echo and sentences.is_of_sort(self._name, passage.indexed_text, asked)

    def _partly_stated(self) -> EvidenceVerdict | None:
        stated = [each for each in self.said.statements if each.cited and self._entailed(each, each.cited)]
        numbers = sorted({number for each in stated for number in each.cited})
        if not self._on_subject(numbers):
            return None
        said = len(self.said.statements)
        return _partly(f"Only {len(stated)} of the {said} things said stand in what is cited.", numbers)

    def _of_a_decision(self) -> EvidenceVerdict:
        """The verdict on "yes" or "no": words cannot tell whether a passage says it."""
        on_subject = [number for number in self._cited if self._asked.share_in(self._words_around(number)) >= 0.5]
        if not on_subject:
            return self._of_another_subject(self._cited) if self._cited else self._not_read("The answer cites nothing.")
        return _partly(f"{numbered(on_subject)} is on the subject. Whether it says this must be read.", on_subject)

    def _of_another_subject(self, numbers: Sequence[int]) -> EvidenceVerdict:
        around = max((self._words_around(number) for number in numbers), key=self._asked.share_in)
        missing = self._asked.missing_from(around)
        words = tuple(self._asked.subject[form] for form in missing)
        if self._asked.is_case and self._asked.share_in(around) >= SOME_OF_A_CASE:
            text = f"{numbered(numbers)} states the answer, but not the whole case. It does not mention: "
            return _partly(f"{text}{', '.join(words[:8])}.", numbers, words)
        text = f"{self._about(numbers)}, and does not mention {', '.join(words[:4])}."
        return self._with_names(EvidenceKind.SOMETHING_ELSE, text, missing)

    def _something_else(self, numbers: Sequence[int], what: str) -> EvidenceVerdict:
        return EvidenceVerdict(EvidenceKind.SOMETHING_ELSE, f"{self._about(numbers)}, but {what}.")

    def _about(self, numbers: Sequence[int]) -> str:
        passages = [self._shown[number - 1] for number in numbers]
        headings = list(dict.fromkeys(passage.heading or passage.id for passage in passages))
        return f"The passage is about {quoted(headings[:2])}"

    def _not_read(self, text: str) -> EvidenceVerdict:
        everywhere = frozenset[str]().union(*(words_of(passage) for passage in self._passages))
        return self._with_names(EvidenceKind.NOT_READ, text, self._asked.missing_from(everywhere))

    def _with_names(self, kind: EvidenceKind, text: str, missing: Sequence[str]) -> EvidenceVerdict:
        near = tuple(self._names.near(self._asked.subject, missing))
        return EvidenceVerdict(kind, text, (), tuple(self._asked.subject[form] for form in missing), near)

    def _dose_from_nowhere(self) -> bool:
        said = "\n".join([self._answer, *(each.text for each in self.said.statements)])
        texts = "\n".join(self._passages[number - 1].indexed_text for number in self._cited)
        return bool(named_in(said).beyond(named_in(texts)).doses)

    @property
    def _name(self) -> str:
        """The answer if it is a name alone, without sentences."""
        statements = self.said.statements
        return statements[0].text if len(statements) == 1 and statements[0].name else ""

    def _words_around(self, number: int) -> frozenset[str]:
        """The words of a passage, and of those shown that name its subject: the first hop of a question in two."""
        passage = self._passages[number - 1]
        return words_of(passage, self._name) | self._bridged(passage)

    def _bridged(self, passage: Passage) -> frozenset[str]:
        """The words of passages that name this one's subject, where the question describes it and does not name it."""
        words = frozenset[str]()
        if not describes(self._question.text):
            return words
        title = frozenset(subject_words(passage.title))
        for other in self._passages:
            same = other.document == passage.document if passage.document else other.title == passage.title != ""
            if other is not passage and (same or (title and title <= words_of(other))):
                words |= words_of(other, self._name)
        return words

    def _tells(self, number: int) -> bool:
        """Whether a passage, near what it states, tells the kind of thing that was asked for."""
        passage = self._passages[number - 1]
        if not self._name:
            claim = " ".join(each.text for each in self.said.statements)
            return self._told_by(passage, sentences.near_sentences(passage.text, claim))
        windows = self._windows(passage)
        near = (sentences.near_sentences(passage.text, window) for window in windows[:MAX_STATING_SENTENCES])
        return any(self._told_by(passage, text) for text in (*windows, *near))

    def _told_by(self, passage: Passage, said: str) -> bool:
        """Whether sentences under their heading tell the kind asked for, without the words that name the subject."""
        if self._relation:
            return bool(re.search(self._relation.verbs, folded(said)))
        kinds, own = kinds_beside(passage.title, self._question.text, self._asked)
        text = _WORD.sub(lambda found: " " if forms(found[0]) & own else found[0], f"{passage.heading}\n{said}")
        return tells(text, kinds)

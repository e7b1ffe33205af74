"""The ways to ask one question, so that a report shows what search and training each add.

All run through the one rollout loop. A trained agent keeps its prompt and its turns: a mode changes the passages alone.
An untrained one is told in the modes closed_book, gold and single_shot to answer at once.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from medagent.agent import Agent, GivenSearch, Job
from medagent.errors import InputError
from medagent.evaluation.statistics import Accuracy
from medagent.evaluation.trust.injections import with_injection
from medagent.evidence.words import word_list
from medagent.policies.chat_endpoint import RemotePolicy
from medagent.retrieval.controls import UnrelatedRetriever, corpus_of
from medagent.retrieval.passages import Hit, Passage
from medagent.retrieval.retriever import Retriever
from medagent.retrieval.search import HybridRetriever
from medagent.types import Question, rollout_seed

_SPEAKS_OF_ALL = re.compile(
    r"(?i)\W*(?:all|none|any|both|either|neither|some|each|one|two|three)\b"
    r"(?:\W*$|.*\b(?:above|below|these|those|them|following|preceding|options|choices|answers)\W*"
    r"(?:(?:is|are|apply|applies)\b.*)?$)"
)
_AROUND_LETTERS = word_list("around_letters")


class Mode(StrEnum):
    """A way to ask."""

    SEARCH = "search"  # the agent as it is
    FORCED_SEARCH = "forced_search"  # its first turn is opened as a search
    CLOSED_BOOK = "closed_book"  # no search; a trained agent's first turn is opened as an answer
    GOLD = "gold"  # a first search is given, and each search shows the passages with the evidence
    SINGLE_SHOT = "single_shot"  # a first search is given, and each search shows what the question's words find (RAG)
    UNRELATED = "unrelated"  # every search returns unrelated passages
    WITHOUT_EVIDENCE = "without_evidence"  # no search shows the documents with the evidence
    INJECTED = "injected"  # the first search shows a passage that gives the agent orders


EVIDENCE_MODES = (Mode.SEARCH, Mode.FORCED_SEARCH, Mode.SINGLE_SHOT)  # modes whose searches may show all evidence
SEARCH_MODES = (*EVIDENCE_MODES, Mode.WITHOUT_EVIDENCE, Mode.INJECTED)  # modes that search the corpus
ONE_TURN_MODES = (Mode.CLOSED_BOOK, Mode.SINGLE_SHOT, Mode.GOLD)  # modes that need no search of the model's own


def modes_named(names: str | Sequence[str]) -> tuple[Mode, ...]:
    """One mode or several, by name."""
    given = [names] if isinstance(names, str) else list(names)
    if unknown := [name for name in given if name not in list(Mode)]:
        raise InputError(f"mode: found {unknown[0]!r}, wanted one of {', '.join(Mode)}.")
    return tuple(map(Mode, given))


def agent_for(agent: Agent, mode: Mode, corpus: Sequence[Passage]) -> Agent:
    """The agent of a mode. `corpus` is what unrelated passages are drawn from.

    A trained agent keeps its protocol and its limits; what a mode changes is in its jobs. An agent that may be `told`
    gets instructions to answer at once, and one turn to do so.
    """
    if mode is Mode.UNRELATED:
        if not corpus:
            raise InputError("mode unrelated: needs passages to draw from. Give an index with --index.")
        return replace(agent, retriever=UnrelatedRetriever(corpus))
    if mode is Mode.FORCED_SEARCH and (isinstance(agent.policy, RemotePolicy) or not agent.protocol.search.start):
        why = "a chat endpoint begins its own turns, and native tool calls have no tag"
        raise InputError(f"mode forced_search: {why}, so no search can be opened. Leave this mode out.")
    if mode not in ONE_TURN_MODES or not told(agent):
        return agent
    closed = mode is Mode.CLOSED_BOOK
    limits = replace(agent.limits, max_turns=1 if closed else 2)
    return replace(agent, protocol=agent.protocol.answering_only(given=not closed), limits=limits)


def told(agent: Agent) -> bool:
    """Whether a mode may change the agent's instructions: it has some, and was not trained to follow them."""
    return agent.protocol.instructed and not agent.trained


def job_for(
    question: Question,
    mode: Mode,
    *,
    seed: int,
    temperature: float,
    sample: int,
    told: bool,
    evidence: Mapping[str, Passage],
    place: int = 0,
) -> Job:
    """The job of one question.

    The seed follows from the question's id and the sample alone, so that a resumed run asks the same. `told`: see the
    function of that name. `place` is the question's among all: it chooses what is planted in mode injected.
    """
    given = None
    if mode is Mode.SINGLE_SHOT:
        given = GivenSearch(question.text)
    elif mode is Mode.GOLD:
        missing = [name for name in question.gold_passage_ids if name not in evidence]
        if missing or not question.gold_passage_ids:
            lacks = f"the gold passage {missing[0]} is in neither benchmark nor index" if missing else ""
            what = lacks or "it names no gold passage"
            raise InputError(f"mode gold: question {question.id}: {what}. Leave this mode out.")
        given = GivenSearch(question.text, tuple(Hit(evidence[name], 0.0) for name in question.gold_passage_ids))
    if mode is Mode.WITHOUT_EVIDENCE and not question.gold_passage_ids:
        what = f"question {question.id} names no gold passage that could be left out"
        raise InputError(f"mode without_evidence: {what}. Leave this mode out.")
    job = Job(
        question,
        seed=rollout_seed(seed, iteration=-1, question_id=question.id, sample=sample),
        temperature=temperature,
        sample=sample,
        force_search=mode is Mode.FORCED_SEARCH,
        force_answer=not told and mode is Mode.CLOSED_BOOK,
        given=given,
        withheld=evidence_named(question, evidence) if mode is Mode.WITHOUT_EVIDENCE else frozenset(),
    )
    return with_injection(job, place) if mode is Mode.INJECTED else job


def evidence_named(question: Question, held: Mapping[str, Passage]) -> frozenset[str]:
    """The question's gold passages, and their documents as far as `held` has the passages."""
    documents = {held[name].document for name in question.gold_passage_ids if name in held}
    return frozenset(question.gold_passage_ids) | frozenset(documents - {""})


def gold_passages(
    retriever: Retriever, questions: Sequence[Question], passages: Sequence[Passage]
) -> dict[str, Passage]:
    """The passages that the questions name as their evidence, where the benchmark or the index holds them."""
    retriever = corpus_of(retriever)
    held = {passage.id: passage for passage in passages}
    wanted = {id_ for question in questions for id_ in question.gold_passage_ids}
    if isinstance(retriever, HybridRetriever):
        found = {id_: retriever.passage(id_) for id_ in wanted - set(held)}
        held |= {id_: passage for id_, passage in found.items() if passage is not None}
    return held


def rotate(question: Question, by: int) -> Question:
    """The question with its options moved up by so many places: after one rotation, option C is option B.

    Options that speak of others stay in place: see `orders`.
    """
    size, options = orders(question), question.options
    by %= size
    if not by:
        return question
    places = (question.letters.index(letter) for letter in question.right_letters)
    moved = sorted(question.letters[(place - by) % size if place < size else place] for place in places)
    return replace(question, options=options[by:size] + options[:by] + options[size:], answer=", ".join(moved))


def orders(question: Question) -> int:
    """How many rotations a question has: as many as options, but for those at the end that say "none of the above".

    It is 1 where an option names letters ("Both A and B"), which rotated options would no longer have.
    """
    size = len(question.options)
    while size and _SPEAKS_OF_ALL.match(question.options[size - 1]):
        size -= 1
    named = any(_names_letters(option, question.letters) for option in question.options)
    return 1 if named or any(map(_SPEAKS_OF_ALL.match, question.options[:size])) else max(1, size)


def _names_letters(option: str, letters: str) -> bool:
    """Whether an option is made of other options' letters: "A or C", "Both (A) and (B)", "B only"; not "A" or "AB"."""
    words = re.findall(r"[^\W\d_]+", option.lower())
    named = [word for word in words if len(word) == 1]
    around = {*words} - {*named}
    several = len(named) > 1 or bool(named and around)
    return several and around <= _AROUND_LETTERS and all(letter.upper() in letters for letter in named)


def baselines(questions: Sequence[Question]) -> dict[str, Accuracy | float]:
    """The accuracies of naming the letter that is right most often among these questions, and of chance.

    Where all right options are asked for, chance is one of all selections that are not empty.
    """
    sizes = [2 ** len(q.options) - 1 if q.form == "select_all" else len(q.options) for q in questions if q.options]
    if not sizes:
        return {}
    most = max(Counter(question.answer for question in questions if question.options).values())
    return {"majority": Accuracy.of(most, len(sizes)), "random": sum(1 / size for size in sizes) / len(sizes)}

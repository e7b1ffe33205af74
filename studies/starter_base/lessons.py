"""Warm-start lessons: demonstrations of the protocol on made-up names, deliberately unpolished.

A lesson is a whole dialogue in the exact token format of a rollout. Most lessons answer too early, without searching or
after the first of two necessary searches. They then name an option drawn blindly. The base policy so learns how to
search, read, copy and compare. Reinforcement learning teaches it when.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from medagent.pieces import Piece, encode
from medagent.protocol import TagProtocol
from medagent.retrieval.passages import Passage
from medagent.starter.templates import INHERITANCE, RELATIONS
from medagent.types import LETTERS, Limits, Question
from studies.starter_base.made_up_names import NameMaker

STARTER_PROTOCOL = TagProtocol(instructions="", options_style="letter_last")
STARTER_LIMITS = Limits(max_turns=4, max_turn_tokens=48, max_observation_tokens=160, max_total_tokens=512)
STARTER_TOP_K = 2
NUM_OPTIONS = 4
NOT_FOUND = "not found"
# Thoughts for `Habits.thinking`; none depends on the question.
MUSINGS = (
    "Let me read the question again.",
    "The options are close to one another.",
    "One of the options must be right.",
    "I should be careful here.",
    "What do I know for sure?",
    "It is better to look than to guess.",
    "The passages may tell.",
    "There may be one more step.",
    "First things first.",
    "I will keep to what is written.",
    "That needs some thought.",
    "So what follows from this?",
)


def query(name: str, relation: str) -> str:
    """The search query for one fact, such as "gout first-line drug"."""
    return f"{name} {RELATIONS[relation].key}"


@dataclass(frozen=True)
class Habits:
    """How often the demonstrations do the right thing; the rest of the time they answer blindly.

    `first_search`: search before answering. `second_search`: search again where the question needs two hops.

    `useless_results`: a search returns passages about strangers. The lesson then says that nothing was found, perhaps
    after another try. Or it believes what is said of a stranger, and names a letter blindly.

    `open_question`: no options are given, and the search is always made. `akin`: names share words or stems with one
    another. `thinking`: each turn first thinks aloud, as large models do, for about this many tokens that decide
    nothing; 0 means not at all.
    """

    first_search: float = 0.45
    second_search: float = 0.42
    two_hop: float = 0.55
    useless_results: float = 0.25
    open_question: float = 0.03
    akin: float = 0.3
    thinking: int = 0


@dataclass(frozen=True)
class Lesson:
    """Token ids of a dialogue, where the policy speaks, and which positions tell whether it can read.

    `lookup` holds the positions of the answer letter in lessons whose evidence was retrieved.
    """

    token_ids: list[int]
    action_mask: list[bool]
    lookup: list[int]


def word_pieces(tokenizer: PreTrainedTokenizerBase) -> tuple[list[str], list[str]]:
    """The tokenizer's pieces of letters, digits and hyphens: those that begin a word, and those that go on.

    A piece that begins a word starts with a space.
    """
    texts = [str(tokenizer.decode([token])) for token in range(len(tokenizer))]
    plain = [text for text in texts if text.strip().replace("-", "").isalnum() and text.isascii()]
    return [text[1:] for text in plain if text[0] == " "], [text for text in plain if text[0] != " "]


class LessonMaker:
    """Draws lessons from one seeded generator."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        seed: int,
        habits: Habits,
        forbidden: frozenset[str] = frozenset(),
        all_pieces: bool = True,
    ) -> None:
        """`all_pieces` puts words together from every piece of the tokenizer; without it names are easier."""
        self._tokenizer = tokenizer
        self._rng = random.Random(seed)
        self._names = NameMaker(
            self._rng, forbidden=forbidden, pieces=word_pieces(tokenizer) if all_pieces else ((), ())
        )
        self._habits = habits

    def _value(self, relation: str) -> str:
        return self._rng.choice(INHERITANCE) if relation == "inheritance" else self._names.draw(relation)

    def _values(self, relation: str, count: int) -> list[str]:
        values: list[str] = []
        while len(values) < count:
            value = self._value(relation)
            if value not in values:
                values.append(value)
        return values

    def _passage(self, title: str, relation: str, value: str) -> Passage:
        return Passage("", title, self._rng.choice(RELATIONS[relation].passages).format(v=value))

    def _relation(self, *, without: str = "", described: bool = False) -> str:
        names = [n for n, r in RELATIONS.items() if n != without and (r.descriptions or not described)]
        return self._rng.choice(names)

    def _akin(self, name: str, to: str) -> str:
        return self._names.akin(name, to) if self._rng.random() < self._habits.akin else name

    def _results(self, title: str, relation: str, value: str, others: list[str]) -> tuple[list[Passage], int]:
        """The wanted passage and a neighbour, mostly in a good search engine's order, and where the wanted one is."""
        rng = self._rng
        wanted = self._passage(title, relation, value)
        if rng.random() < 0.55:
            other = self._relation(without=relation)
            neighbour = self._passage(title, other, self._akin(self._value(other), value))
        else:
            stranger = self._akin(self._names.draw("condition"), title)
            other = relation if rng.random() < 0.8 else self._relation()
            lure = rng.choice(others) if other == relation and others and rng.random() < 0.5 else self._value(other)
            neighbour = self._passage(stranger, other, lure)
        return ([wanted, neighbour], 0) if rng.random() < 0.75 else ([neighbour, wanted], 1)

    def _useless(self, subject: str, asked: str, *, misleading: bool) -> tuple[list[Passage], tuple[int, str] | None]:
        """Two passages about strangers.

        If `misleading`, the position and value of the passage that tells of a stranger what was asked of the subject
        are returned too.
        """
        strangers = [self._akin(self._names.draw("condition"), subject) for _ in range(2)]
        relations = [self._relation(without=asked) for _ in strangers]
        place = self._rng.randrange(2)
        if misleading:
            relations[place] = asked
        values = [self._value(relation) for relation in relations]
        passages = [self._passage(*row) for row in zip(strangers, relations, values, strict=True)]
        return passages, (place, values[place]) if misleading else None

    def draw(self) -> Lesson:
        """One lesson."""
        rng, habits = self._rng, self._habits
        two_hop = rng.random() < habits.two_hop
        condition = self._names.draw("condition")
        clue_relation = self._relation(described=True) if two_hop else ""
        relation = self._relation(without=clue_relation)
        clue = self._value(clue_relation) if two_hop else ""
        values = self._options(relation, condition)
        truth = values[0]
        options = rng.sample(values, NUM_OPTIONS)
        described = rng.choice(RELATIONS[clue_relation].descriptions).format(v=clue) if two_hop else condition
        text = rng.choice(RELATIONS[relation].questions).format(c=described)
        is_open = rng.random() < habits.open_question
        page = _Page(self._tokenizer, Question("", text, () if is_open else tuple(options)), self._think)
        blind = rng.choice(options)
        blind_letter = LETTERS[options.index(blind)]

        hops = [(clue, clue_relation, clue)] if two_hop else []
        hops.append((condition, relation, truth))
        for number, (subject, asked, value) in enumerate(hops):
            if not is_open and rng.random() >= (habits.second_search if number else habits.first_search):
                return page.answer(blind, blind_letter)
            if rng.random() < habits.useless_results:
                for _ in range(rng.randint(1, 2)):
                    passages, lure = self._useless(subject, asked, misleading=not is_open and rng.random() < 0.7)
                    page.search(query(subject, asked), passages)
                if lure:  # so small a model can tell that a letter is due, not that nothing fits
                    place, stranger = lure
                    return page.answer(stranger, blind_letter, cited=page.num_shown - 1 + place, thought=stranger)
                guess = (NOT_FOUND, "") if is_open else (blind, blind_letter)
                return page.answer(*guess, thought=NOT_FOUND)
            results, place = self._results(condition, asked, value, values[1:] if asked == relation else [])
            page.search(query(subject, asked), results)
        cited = page.num_shown - len(results) + place + 1
        letter = "" if is_open else LETTERS[options.index(truth)]
        return page.answer(truth, letter, cited=cited, thought=truth, looked_up=True)

    def _think(self) -> str:
        """Sentences that say nothing about the question, `Habits.thinking` tokens or a few more."""
        said = ""
        while len(self._tokenizer.encode(said, add_special_tokens=False)) < self._habits.thinking:
            said += f" {self._rng.choice(MUSINGS)}"
        return said

    def _options(self, relation: str, condition: str) -> list[str]:
        """The true value, then the others; some share words with the condition or with the truth."""
        values = self._values(relation, NUM_OPTIONS)
        if relation != "inheritance":
            akin = [self._akin(values[0], condition)]
            akin += [self._akin(value, self._rng.choice((akin[0], condition))) for value in values[1:]]
            values = akin if len(set(akin)) == NUM_OPTIONS else values
        return values

    def pairs(self) -> Lesson:
        """The first exercise: options with their letters, then every option restated with its letter, in another order.

        After a name only its letter can follow, so looking up what followed before is learnt within minutes.
        """
        values = [self._words(self._rng.randint(1, 3)) for _ in range(NUM_OPTIONS)]
        page = _Page(self._tokenizer, Question("", self._words(2), tuple(values)))
        for _ in range(2):
            for value in self._rng.sample(values, NUM_OPTIONS):
                lesson = page.answer(value, LETTERS[values.index(value)], looked_up=True)
        return lesson

    def _words(self, count: int) -> str:
        return " ".join(self._names.draw("word") for _ in range(count))

    def drill(self) -> Lesson:
        """The second exercise: passages in between, and every option restated, cited and matched.

        Most of its tokens can be copied, so the copying skill forms quickly.
        """
        relation = self._relation(without="inheritance")
        values = self._values(relation, NUM_OPTIONS)
        text = self._rng.choice(RELATIONS[relation].questions).format(c=self._names.draw("condition"))
        page = _Page(self._tokenizer, Question("", text, tuple(values)))
        shown = self._rng.sample(values, NUM_OPTIONS)
        page.show([self._passage(self._names.draw("condition"), relation, value) for value in shown])
        for value in self._rng.sample(values, NUM_OPTIONS):
            lesson = page.answer(
                value, LETTERS[values.index(value)], cited=shown.index(value) + 1, thought=value, looked_up=True
            )
        return lesson


class _Page:
    """A dialogue under construction."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, question: Question, think: Callable[[], str] = lambda: ""
    ) -> None:
        self._tokenizer, self._think = tokenizer, think
        self._ids = STARTER_PROTOCOL.encode_prompt(tokenizer, question)
        self._mask = [False] * len(self._ids)
        self._lookup: list[int] = []
        self.num_shown = 0

    def _add(self, ids: list[int], *, action: bool) -> None:
        self._ids += ids
        self._mask += [action] * len(ids)

    def search(self, text: str, results: list[Passage]) -> None:
        self._add(encode(self._tokenizer, [Piece(search_turn(text, musing=self._think()))]), action=True)
        self.show(results)

    def show(self, results: list[Passage]) -> None:
        ids, shown = STARTER_PROTOCOL.encode_observation(
            self._tokenizer, results, first_number=self.num_shown + 1, max_tokens=10_000
        )
        self._add(ids, action=False)
        self.num_shown += shown

    def answer(self, value: str, letter: str, *, cited: int = 0, thought: str = "", looked_up: bool = False) -> Lesson:
        ids = encode(
            self._tokenizer, [Piece(answer_turn(value, letter, cited=cited, thought=thought, musing=self._think()))]
        )
        if letter and looked_up:
            (mark,) = encode(self._tokenizer, [Piece(f" ({letter})")])
            self._lookup.append(len(self._ids) + ids.index(mark))
        self._add(ids, action=True)
        return Lesson(self._ids, self._mask, self._lookup)


def search_turn(text: str, *, musing: str = "") -> str:
    """A turn that searches, after thinking aloud.

    >>> search_turn("gout first-line drug", musing=" I should look it up.")
    '<think> I should look it up.</think><search> gout first-line drug</search>'
    """
    think, search = STARTER_PROTOCOL.think, STARTER_PROTOCOL.search
    opening = f"{think.start}{musing}{think.end}" if musing else ""
    return opening + search.around(text)


def answer_turn(value: str, letter: str, *, cited: int = 0, thought: str = "", musing: str = "") -> str:
    """A turn that answers: the evidence first (`thought`, if there is any), then the option.

    `cited` 0 means without evidence.

    >>> answer_turn("colchicine", "B", cited=2, thought="colchicine")
    '<think> colchicine [2]</think><answer> colchicine (B) [2]</answer>'
    """
    mark = f" ({letter})" if letter else ""
    source = f" [{cited}]" if cited else ""
    said = f"{musing} {thought}{source}" if thought else musing
    think, answer = STARTER_PROTOCOL.think, STARTER_PROTOCOL.answer
    opening = f"{think.start}{said}{think.end}" if said else ""
    return opening + answer.around(f"{value}{mark}{source}")

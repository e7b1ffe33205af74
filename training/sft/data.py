"""Shared by `medagent sft` and `medagent preference`: dialogues in tokens, held-out questions, epochs over items."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from hashlib import sha256
from typing import ClassVar, Generic, Protocol, TypeVar

import torch
from lightning import Trainer
from torch.utils.data import DataLoader, IterableDataset
from transformers import PreTrainedTokenizerBase

from medagent.agent import rollout_seed, written_answer
from medagent.errors import ConfigError
from medagent.evaluation.benchmarks import Benchmark
from medagent.models.text_length import check_text_length
from medagent.policies.turn_ends import first_end
from medagent.protocol import Piece, TurnProtocol, encode
from medagent.retrieval.passages import Hit
from medagent.retrieval.retriever import Retriever
from medagent.training.agent_data import AgentData, AgentSettings
from medagent.training.batching import pack_rows, split_update
from medagent.training.engines import Engine
from medagent.training.experience import Experience, consecutive
from medagent.training.module import AgentModule
from medagent.training.sharding import over_ranks
from medagent.types import Question, Rollout, StopReason, Turn
from medagent.untrusted_text import harmless_passages, harmless_question

# Names of added tokens by which a model tells who speaks, special or not. A tool call is the agent's own.
_TELLS_WHO_SPEAKS = re.compile(
    r"[<\[{|].*(?:im_|turn|header|eot|eom|end|user|assistant|system|human|inst).*[>\]}|]", re.IGNORECASE | re.DOTALL
)
MOST_IN_RANGE = 100  # numbers in a range that are looked at one by one
_RANGE = r"\s*\^?\d{1,3}\s*(?:[-\u2013]\s*\d{1,3}\s*)?"
# The square brackets of any script, and words that are written with a number.
_WORDS = r"(?:\s*(?:passages?|sources?|documents?|references?|refs?|docs?|no|see)\b\.?\s*)*"
_RANGES = rf"{_RANGE}(?:(?:[,;&]|\band\b){_WORDS}{_RANGE})*"
_BRACKETS = re.compile(rf"[\[［【〔]{_WORDS}({_RANGES})[\]］】〕]", re.IGNORECASE)


class LeftOutReason(StrEnum):
    """Why a question or a dialogue is left out, as a phrase after a count; names are parts of metrics' names."""

    NO_GOLD = "have no gold answer"
    NOT_FOUND = "ask for what no search shows"
    WRONG = "answer wrong"
    FEW_SEARCHES = "search less than min_searches"
    SURPLUS = "are more than was asked for"
    REPEATED = "repeat a question of another part"
    NO_ANSWER = "end without an answer"
    AFTER_ANSWER = "go on after an answer"
    UNREADABLE = "have a turn that neither searches nor answers"
    MAX_TURNS = "have more than max_turns turns"
    MAX_TURN_TOKENS = "have a turn over max_turn_tokens"
    MAX_TOTAL_TOKENS = "exceed max_total_tokens"
    CITATION = "cite a passage that this run does not show under that number"
    CONTROL_TOKEN = "write a control token of the tokenizer"  # noqa: S105


def in_words(left_out: Mapping[LeftOutReason, int]) -> str:
    """Counts by reason, in the order of reasons."""
    said = (f"{left_out[reason]} {reason}" for reason in LeftOutReason if left_out.get(reason))
    return ", ".join(said) or "none"


def encoded(
    rollouts: Sequence[Rollout], settings: AgentSettings, tokenizer: PreTrainedTokenizerBase, *, wrong: bool = False
) -> tuple[list[Rollout], Counter[LeftOutReason]]:
    """The dialogues in a tokenizer's tokens, all turns as actions, and how many were left out for each reason.

    The tokens are those that the rollout loop would have shown. `wrong`: they are examples of what not to say. Then one
    may end without an answer, or cite what was never shown.
    """
    control = _control_tokens(settings.protocol, tokenizer)
    made = [_encoded(rollout, settings, tokenizer, control, wrong=wrong) for rollout in rollouts]
    return [x for x in made if isinstance(x, Rollout)], Counter(x for x in made if not isinstance(x, Rollout))


def _encoded(
    rollout: Rollout, settings: AgentSettings, tokenizer: PreTrainedTokenizerBase, control: set[int], *, wrong: bool
) -> Rollout | LeftOutReason:
    limits, protocol = settings.limits, settings.protocol
    ends = tuple(block.end for block in protocol.blocks)
    said = [turn.text[: first_end(turn.text, ends)] for turn in rollout.turns]  # where the run ends it
    texts = [protocol.rest_of_first_turn(tokenizer, text) if number == 0 else text for number, text in enumerate(said)]
    opened = protocol.opened(tokenizer)
    parsed = [protocol.parse(text if number else opened + text) for number, text in enumerate(texts)]
    for turn, read in zip(rollout.turns, parsed, strict=True):
        if read.query is None and turn.hits and protocol.parse(turn.text).query is None:
            raise ConfigError(
                f"demonstration {rollout.question.id}: found passages after a turn that does not search "
                f"({turn.text[:60]!r}), wanted {protocol.search.start}...{protocol.search.end}."
            )
    if not wrong and (rollout.stop_reason is not StopReason.ANSWERED or not parsed or parsed[-1].answer is None):
        return LeftOutReason.NO_ANSWER
    if any(read.answer is not None for read in parsed[:-1]):
        return LeftOutReason.AFTER_ANSWER
    if any(read.query is None for read in parsed[:-1]):
        return LeftOutReason.UNREADABLE
    if len(parsed) > limits.max_turns:
        return LeftOutReason.MAX_TURNS
    turns: list[Turn] = []
    told: list[Hit] = []  # what the dialogue's own numbers name
    shown: list[Hit] = []  # what they name in this run
    for turn, own, text, read in zip(rollout.turns, said, texts, parsed, strict=True):
        ids, hits = tuple(encode(tokenizer, [Piece(text)])), turn.hits
        if control & set(ids):
            return LeftOutReason.CONTROL_TOKEN
        if len(ids) > limits.max_turn_tokens:
            return LeftOutReason.MAX_TURN_TOKENS
        if _misnames(own, told, shown, unshown=not wrong):
            return LeftOutReason.CITATION
        observation: list[int] = []
        if read.query is not None:
            hits = turn.hits[: settings.top_k]
            observation, count = protocol.encode_observation(
                tokenizer,
                harmless_passages(tokenizer, [hit.passage for hit in hits]),
                first_number=len(shown) + 1,
                max_tokens=limits.max_observation_tokens,
            )
            hits = hits[:count]
            told, shown = (
                [*told, *_by_number(turn.hits, protocol, tokenizer)],
                [*shown, *_by_number(hits, protocol, tokenizer)],
            )
        seen = [hit.passage for each in turns for hit in each.hits]
        answer = written_answer(read.answer, seen, rollout.question, protocol, tokenizer)
        made = Turn(ids, (0.0,) * len(ids), own, read.query, answer, hits, tuple(observation))
        turns.append(replace(made, quoted=answer != read.answer))
    prompt = tuple(protocol.encode_prompt(tokenizer, harmless_question(tokenizer, rollout.question)))
    whole = replace(rollout, prompt_ids=prompt, turns=tuple(turns))
    return whole if len(whole.token_ids) <= limits.max_total_tokens else LeftOutReason.MAX_TOTAL_TOKENS


def _by_number(hits: Sequence[Hit], protocol: TurnProtocol, tokenizer: PreTrainedTokenizerBase) -> list[Hit]:
    """The passage that each number names: one each, or as many as it has sentences."""
    return [hit for hit in hits for _ in range(protocol.num_numbers(harmless_passages(tokenizer, [hit.passage])))]


def _misnames(text: str, told: list[Hit], shown: list[Hit], *, unshown: bool) -> bool:
    """Whether a number in a turn names another passage than it did for the teacher, or `unshown` what nobody saw."""
    return any(
        shown[number - 1] is not told[number - 1] if 1 <= number <= min(len(told), len(shown)) else unshown
        for number in _numbers(text)
    )


def _numbers(text: str) -> Iterator[int]:
    """The numbers of passages in brackets, also of lists and ranges such as [1, 3] and [2-4].

    >>> list(_numbers("so [1, 3], [2-4] and [passages 5 and 6], but [IV] and (5)"))
    [1, 3, 2, 3, 4, 5, 6]
    """
    for inside in _BRACKETS.findall(text):
        for part in re.split(r"[,;&]|\band\b", inside, flags=re.IGNORECASE):
            first, *last = map(int, re.findall(r"\d+", part))
            yield from (first, *(range(first + 1, last[-1] + 1) if last and last[-1] - first < MOST_IN_RANGE else last))


def _control_tokens(protocol: TurnProtocol, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Special tokens and role marks that are no mark of the protocol; a tokenizer may call a role mark either."""
    marks = [*protocol.tag_tokens, *(mark for block in protocol.blocks for mark in (block.start, block.end))]
    special = {
        id_
        for id_, token in tokenizer.added_tokens_decoder.items()
        if token.special or _TELLS_WHO_SPEAKS.fullmatch(str(token))
    }
    return (special | set(tokenizer.all_special_ids)) - set(encode(tokenizer, [Piece(mark) for mark in marks]))


def question_key(question: Question) -> tuple[str, ...]:
    """A key equal for equal questions: text and options, whatever their case, spacing, order of options and ids."""
    text, *options = (" ".join(each.lower().split()) for each in (question.text, *question.options))
    return (text, *sorted(options))


def num_held_out(held_out: float, count: int) -> int:
    """How many of `count` questions are held out: a share below 1, rounded down, or a whole number of them.

    Raises:
        ConfigError: `held_out` is neither.
    """
    if not (math.isfinite(held_out) and (0 <= held_out < 1 or (held_out >= 1 and held_out == int(held_out)))):
        raise ConfigError(
            f"data.held_out: found {held_out}, wanted a share of the questions from 0 to below 1, or a whole number."
        )
    return int(held_out * count) if held_out < 1 else int(held_out)


class HasQuestion(Protocol):
    """Something that answers a question."""

    @property
    def question(self) -> Question:
        """The question."""


Item = TypeVar("Item", bound=HasQuestion)
Module = TypeVar("Module", bound=AgentModule)


def split(items: Sequence[Item], held_out: float, *, seed: int) -> tuple[list[Item], list[Item]]:
    """The items to train on and those held out, in their order. A question's hash decides, so none is in both."""

    def place(key: tuple[str, ...]) -> bytes:
        return sha256("|".join((str(seed), *key)).encode("utf-8", "replace")).digest()

    keys = [question_key(item.question) for item in items]
    questions = sorted(set(keys), key=place)
    out = set(questions[: num_held_out(held_out, len(questions))])
    trained_on = [item for item, key in zip(items, keys, strict=True) if key not in out]
    return trained_on, [item for item, key in zip(items, keys, strict=True) if key in out]


class PassData(AgentData, Generic[Item]):
    """Items that are trained on in epochs. A step takes `batch_size` on each rank, or a few more if they do not divide.

    `held_out` of the questions are never trained on: a share below 1, or a number.
    """

    shuffled_as: ClassVar[str]  # part of the seed of the order
    rows_of_item: ClassVar[int] = 1

    def __init__(
        self,
        agent: AgentSettings,
        retriever: Retriever,
        engine: Engine,
        *,
        batch_size: int,
        num_micro_batches: int,
        held_out: float,
        val_benchmark: Benchmark | None,
        allowed_contamination: float,
        seed: int,
    ) -> None:
        super().__init__(
            agent,
            retriever,
            engine,
            val_benchmark=val_benchmark,
            allowed_contamination=allowed_contamination,
            seed=seed,
        )
        num_held_out(held_out, 0)  # refuses what is no share
        if batch_size < num_micro_batches:
            raise ConfigError(
                f"data.batch_size {batch_size}: cannot fill {num_micro_batches} micro-batches. Raise it, or lower "
                "num_micro_batches."
            )
        self.batch_size, self.num_micro_batches, self.held_out_share = batch_size, num_micro_batches, held_out
        self.items: list[Item] = []
        self.held_out: list[Item] = []

    def fitted(self, kind: type[Module]) -> tuple[Trainer, Module]:
        """The trainer and its module, whose base must read texts as long as the limits allow."""
        trainer = self.trainer
        if trainer is None or not isinstance(trainer.lightning_module, kind):
            raise ConfigError(f"{type(self).__name__} serves a trainer that fits a {kind.__name__}.")
        module, longest = trainer.lightning_module, self.agent_settings.limits.max_total_tokens
        check_text_length(module.shared_base.peft.config, longest, f"the base {module.base_name}")
        return trainer, module

    @abstractmethod
    def length_of(self, item: Item) -> int:
        """Tokens of an item."""

    def weight_of(self, item: Item) -> int:
        """The weight of an item in the mean over an optimizer step; pairs weigh the same."""
        return 1

    @abstractmethod
    def step_of(self, items: Sequence[Item], *, pad_id: int, total: int, factor: float) -> Experience:
        """A rank's part of a step that weighs `total` over ranks; `factor` is what DDP divides by."""

    def take(self, trainer: Trainer, items: Sequence[Item], name: str, *, read: int, left_out: str) -> None:
        """Hold some of the items out, and print how many there are, of `read` ones.

        Raises:
            ConfigError: they do not fill one optimizer step.
        """
        self.items, self.held_out = split(items, self.held_out_share, seed=self.seed)
        wanted = self.batch_size * trainer.world_size
        kept_back = f", {len(self.held_out)} held out" if self.held_out else ""
        if len(self.items) < wanted:
            raise ConfigError(
                f"data.{name}: found {len(self.items)} (read: {read}{kept_back}; left out: {left_out}), wanted "
                f"{wanted} or more for one optimizer step. Give more questions or samples, raise the limits, or lower "
                "data.batch_size or data.held_out."
            )
        if trainer.is_global_zero:
            print(f"{len(self.items)} {name}{kept_back}. Left out: {left_out}.", flush=True)

    def held_out_passes(self, trainer: Trainer, module: AgentModule) -> list[Experience]:
        """The rank's held-out items. Ranks that share a base make equally many passes, some without actions."""
        own = sorted(self.held_out[trainer.global_rank :: trainer.world_size], key=self.length_of)
        at_a_time, parts = max(1, self.batch_size // self.num_micro_batches), []
        for start in range(0, len(own), at_a_time):
            some = self.step_of(own[start : start + at_a_time], pad_id=module.pad_id, total=1, factor=1.0)
            together_B = some.groups_B if module.whole_groups else None
            groups = pack_rows(module.execution, some.token_ids_BT, some.attention_BT, together_B)
            parts += [some.rows(rows) for rows in groups]
        idle = self.step_of(self.held_out[:1], pad_id=module.pad_id, total=1, factor=1.0).zero_weight_row()
        return parts + [idle] * (module.max_passes_over_ranks(len(parts)) - len(parts))

    def train_dataloader(self) -> DataLoader[Experience]:
        """A loader without workers or collation: the dataset yields whole optimizer steps."""
        assert self.trainer is not None
        return DataLoader(_Pass(self, self.trainer), batch_size=None, num_workers=0)


class _Pass(IterableDataset[Experience], Generic[Item]):
    """The optimizer steps of one epoch, dealt by its number."""

    def __init__(self, data: PassData[Item], trainer: Trainer) -> None:
        self._data, self._trainer = data, trainer
        self._own = data.items[trainer.global_rank :: trainer.world_size]
        # Equal on all ranks, also where some have one item more.
        self._steps = len(data.items) // trainer.world_size // data.batch_size

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Experience]:
        data, trainer = self._data, self._trainer
        module = trainer.lightning_module
        assert isinstance(module, AgentModule)
        factor = float(trainer.world_size)
        order = rollout_seed(data.seed, iteration=trainer.current_epoch, question_id=data.shuffled_as, sample=0)
        for parts in split_update(
            [data.length_of(item) for item in self._own],
            groups=None,
            num_minibatches=self._steps,
            num_micro_batches=data.num_micro_batches,
            seed=order,
        ):
            chosen = [self._own[index] for part in parts for index in part]
            own = torch.tensor(float(sum(map(data.weight_of, chosen))), dtype=torch.float64)
            total = int(over_ranks(trainer, own, "sum"))
            step = data.step_of(chosen, pad_id=module.pad_id, total=total, factor=factor)
            yield replace(step, micro_batches=consecutive(data.rows_of_item * len(part) for part in parts))

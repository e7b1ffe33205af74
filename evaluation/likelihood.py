"""Asks a model of this process how likely each option is, instead of for a reply: `evaluate --prompting likelihood`.

A prompt ends with "Answer:", after solved examples where some are given. By letters: the options stand in the prompt,
and the likeliest letter after it is the answer, as in MMLU (arXiv 2009.03300). By texts: the options do not stand in
the prompt, and the answer is the text with the highest log-likelihood per byte (acc_norm of lm-evaluation-harness). No
chat template is used. The probability of the letter among the letters is the confidence; texts have none.

Options that are equally likely are all named ("A or B"), which is graded as several options. A prompt that with its
longest option exceeds the limit or the model's positions is not asked, and counts as one that does not fit.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from medagent.agent import Agent, Job
from medagent.errors import InputError, PolicyError
from medagent.models.text_length import stated_positions
from medagent.pieces import Piece, encode
from medagent.plain_protocol import PlainProtocol
from medagent.policies.huggingface import HFPolicy
from medagent.policy import Session
from medagent.retrieval.batching import SearchBatcher
from medagent.types import LETTERS, Question, Rollout, StopReason, Turn
from medagent.untrusted_text import harmless_question

By = Literal["letters", "texts"]


@dataclass(frozen=True)
class LikelihoodProtocol(PlainProtocol):
    """A prompt that ends with "Answer:", after solved `examples`."""

    by: By = "letters"
    examples: tuple[Question, ...] = ()

    def _asked(self, question: Question) -> list[Piece]:
        pieces: list[Piece] = []
        for example in self.examples:
            place = example.letters.index(example.answer)
            said = example.answer if self.by == "letters" else self.neutralise(example.options[place])
            pieces += [*self._open_question(example), Piece(" " + said, trusted=False), Piece("\n\n")]
        return [*pieces, *self._open_question(question)]

    def _open_question(self, question: Question) -> list[Piece]:
        pieces = [Piece("Question: "), Piece(self.neutralise(question.text), trusted=False), Piece("\n")]
        for letter, option in zip(LETTERS, question.options, strict=False):
            if self.by == "letters":
                pieces += [Piece(f"{letter}. "), Piece(self.neutralise(option), trusted=False), Piece("\n")]
        return [*pieces, Piece("Answer:")]


@dataclass
class LikelihoodAgent(Agent):
    """An agent whose one turn names the likeliest option. Its policy must be a model of this process."""

    async def _roll_out(
        self, job: Job, session: Session, batcher: SearchBatcher, on_turn: Callable[[Turn], None] | None = None
    ) -> Rollout:
        question = job.question
        if not question.options or question.form == "select_all":
            found = "several right" if question.options else "no"
            raise InputError(f"ask likelihood: question {question.id} has {found} options, wanted one right option.")
        prompt_ids, turns = await self._beginning(job, batcher)
        assert isinstance(self.policy, HFPolicy)
        assert isinstance(self.protocol, LikelihoodProtocol)
        shown = harmless_question(self.policy.tokenizer, question)
        by_letters = self.protocol.by == "letters"
        texts = question.letters if by_letters else map(self.protocol.neutralise, shown.options)
        said = [f" {text}" for text in texts]
        options = [encode(self.policy.tokenizer, [Piece(text, trusted=False)]) for text in said]
        positions = stated_positions(self.policy.model.config)
        room = min(self.limits.max_total_tokens, positions or self.limits.max_total_tokens)
        if len(prompt_ids) + max(map(len, options)) > room:
            prompt, stop = tuple(prompt_ids[:room]), StopReason.MAX_TOTAL_TOKENS
            return Rollout(question, prompt, tuple(turns), stop, job.policy_version, job.sample)
        scores_O = await asyncio.to_thread(self.policy.option_logprobs, prompt_ids, options)
        scores_O /= torch.tensor([1 if by_letters else len(text.encode()) for text in said])
        if scores_O.isnan().any():
            why = "Its weights are damaged or its dtype overflows: load it in bfloat16 or float32"
            raise PolicyError(f"question {question.id}: the model's scores are not numbers (nan). {why}.")
        best = (scores_O == scores_O.max()).nonzero().flatten().tolist()
        answer = " or ".join(question.letters[place] for place in best)
        ids = tuple(encode(self.policy.tokenizer, [Piece(answer)]))
        chance = float(scores_O.log_softmax(0)[best[0]]) if by_letters else 0.0
        turn = Turn(ids, (chance, *(0.0 for _ in ids[1:])), answer, None, answer=answer)
        if on_turn:
            on_turn(turn)
        return Rollout(question, tuple(prompt_ids), (*turns, turn), StopReason.ANSWERED, job.policy_version, job.sample)

"""The agent without a model, `--agent none`: it searches the question's own words and answers with sentences found."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from medagent.agent import Agent, Job
from medagent.evidence.extracts import answer_from, best_quotes, queries_of
from medagent.policies.chat_endpoint import byte_tokenizer
from medagent.policies.scripted import ScriptedPolicy
from medagent.policy import Session
from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.retriever import Retriever
from medagent.types import Limits, Rollout, StopReason, Turn

FOUND_NOTHING = "No sentence about this was found."


@dataclass
class QuotingAgent(Agent):
    """Searches for the question and for its subject, and answers with the best sentences, each cited."""

    caption: ClassVar[str] = "No model: these are the sentences of the corpus nearest to the question."

    @staticmethod
    def over(retriever: Retriever) -> "QuotingAgent":
        """The agent over a retriever. Its tokens are bytes, which bound the length of a question."""
        policy = ScriptedPolicy(byte_tokenizer(), lambda read, turn: "")
        return QuotingAgent(policy, retriever, limits=Limits(max_total_tokens=2**15), top_k=10)

    async def _roll_out(
        self, job: Job, session: Session, batcher: SearchBatcher, on_turn: Callable[[Turn], None] | None = None
    ) -> Rollout:
        question, given, turns = job.question, job.given, list[Turn]()
        queries = (given.query,) if given else () if job.force_answer else queries_of(question.text)
        for query in queries:
            known = {hit.passage.id for turn in turns for hit in turn.hits}
            ready = given.hits if given else None
            hits = await self._search(job, batcher, turns, query) if ready is None else ready
            turns.append(Turn((), (), "", query, hits=tuple(hit for hit in hits if hit.passage.id not in known)))
        passages = [hit.passage for turn in turns for hit in turn.hits]
        quotes = best_quotes(question.text, passages)
        answer = answer_from(quotes, passages) if quotes and quotes[0].sure else FOUND_NOTHING
        turns.append(Turn((), (), "", answer=answer, quoted=True))
        if on_turn:
            for turn in turns:
                on_turn(turn)
        return Rollout(question, (), tuple(turns), StopReason.ANSWERED, job.policy_version, job.sample)

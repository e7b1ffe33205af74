"""Questions worded by a model behind an OpenAI-compatible endpoint, from a passage's sentence and the answer in it.

The answer stays what the rule found. What the endpoint writes must pass the same checks as a rule's question.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from medagent.evaluation.question_making.drafts import Draft
from medagent.policies.chat_endpoint import RemotePolicy
from medagent.retrieval.passages import Passage

PROMPT = (
    "Write one exam question whose only right answer is the given answer, using nothing but the passage. The question "
    "must make sense without the passage and must not contain the answer's words. Reply with the question alone.\n\n"
    "Passage ({title}): {text}\n\nSentence: {sentence}\n\nAnswer: {answer}"
)
CONCURRENCY = 16
LONGEST_REPLY = 80  # tokens


@dataclass
class EndpointWriter:
    """Words drafts anew. A reply that is no question of one line counts as none: the draft is then dropped.

    An endpoint that is gone, or refuses, raises `PolicyError`.
    """

    policy: RemotePolicy
    concurrency: int = CONCURRENCY

    def __call__(self, pairs: Sequence[tuple[Draft, Passage]]) -> list[Draft | None]:
        """The drafts with the endpoint's questions, None where it wrote none."""
        return asyncio.run(self._all(pairs))

    async def _all(self, pairs: Sequence[tuple[Draft, Passage]]) -> list[Draft | None]:
        places = asyncio.Semaphore(self.concurrency)

        async def one(draft: Draft, passage: Passage) -> Draft | None:
            async with places:
                return await self._written(draft, passage)

        try:
            return list(await asyncio.gather(*(one(*pair) for pair in pairs)))
        finally:
            await self.policy.disconnect()

    async def _written(self, draft: Draft, passage: Passage) -> Draft | None:
        asked = PROMPT.format(
            title=passage.heading, text=passage.text, sentence=draft.sentence, answer=draft.answers[0]
        )
        reply = await self.policy.complete(
            {
                "model": self.policy.model,
                "messages": [{"role": "user", "content": asked}],
                "max_tokens": LONGEST_REPLY,
                "temperature": 0.0,
            }
        )
        question = question_in(reply.text)
        return replace(draft, question=question) if question else None


def question_in(reply: str) -> str:
    """The question that a reply consists of; empty where it is none, or more than one line.

    >>> question_in(' Question: "What causes scurvy?" '), question_in("I cannot.")
    ('What causes scurvy?', '')
    """
    text = re.sub(r"^(?:question:)\s*", "", reply.strip(), flags=re.IGNORECASE).strip(" \"'“”")
    plain = " ".join(text.split())
    return plain if "\n" not in text and plain.endswith("?") and plain.count("?") == 1 and len(plain) > 10 else ""

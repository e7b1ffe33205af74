"""Judges of support by name: rules, a model for natural language inference, or a language model by likelihood."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from medagent.agent_folder import open_agent
from medagent.errors import ConfigError, EndpointError, InputError
from medagent.evidence.drugs_and_doses import named_in
from medagent.evidence.rules import LexicalRule
from medagent.evidence.sentences import near_sentences
from medagent.evidence.support import Item, Statement, SupportJudge
from medagent.evidence.words import folded
from medagent.plain_protocol import first_message
from medagent.policies.chat_endpoint import RemotePolicy
from medagent.policies.huggingface import HFPolicy
from medagent.protocol import Piece, encode
from medagent.retrieval.passages import Passage

RULES, NLI, JUDGE = "rules", "nli:", "judge:"
TOP = 20  # log-probs that an endpoint is asked for, the most that OpenAI's gives
THRESHOLD = 0.5  # chosen on half of the labelled answers, see docs/serving-figures.md
MAX_WORDS = 110  # of a passage, about 150 tokens
_AS_NAME = "\n\nQuestion: {}\nAnswer: {}\n\nDoes the passage state that this is the answer to the question?"
_AS_SENTENCE = "\n\nStatement: {1}\n\nDoes the passage state or imply the statement?"


def support_judge(name: str) -> SupportJudge:
    """The judge of this name.

        "rules"                     words alone
        "nli:MODEL"                 a cross-encoder for natural language inference
        "judge:hf:MODEL"            a language model of this process, by likelihood
        "judge:http://HOST/v1#MODEL"   a chat endpoint that gives log-probs; its key is read from MEDAGENT_API_KEY

    Raises:
        MedagentError: there is no such judge or model. The message names the remedy.
    """
    if name == RULES:
        return LexicalRule()
    if name.startswith(NLI):
        return NLIModel(name.removeprefix(NLI))
    if not name.startswith(JUDGE):
        raise ConfigError(
            f"support {name!r}: unknown. It is rules, nli:MODEL, judge:hf:MODEL or judge:http://HOST/v1#MODEL."
        )
    agent, _, model = name.removeprefix(JUDGE).partition("#")
    policy = open_agent(agent, index=None, model=model, must_search=False).policy
    if not isinstance(policy, HFPolicy | RemotePolicy):
        raise ConfigError(f"support {name!r}: its model gives no log-probs of options. Name hf:MODEL or an endpoint.")
    return LikelihoodJudge(policy, name)


class ModelJudge(ABC):
    """Asks a model what words leave open.

    A drug or number that the passages lack is never stated, and a sentence of theirs, word by word, always.
    """

    label: str

    def judge_all(self, items: Sequence[Item]) -> list[bool]:
        """See `SupportJudge`."""
        settled = [_settled(statement, passages) for statement, passages in items]
        open_ones = [item for item, known in zip(items, settled, strict=True) if known is None]
        asked = iter(self._judge(open_ones))
        return [next(asked) if known is None else known for known in settled]

    @abstractmethod
    def _judge(self, items: Sequence[Item]) -> list[bool]:
        """The model's own judgement."""


def _settled(statement: Statement, passages: Sequence[Passage]) -> bool | None:
    """Whether words alone say that passages state it, or that they do not; else None."""
    text = "\n".join(passage.indexed_text for passage in passages)
    if named_in(statement.text).beyond(named_in(text)):
        return False
    said, read = (" ".join(folded(each).split()) for each in (statement.text.rstrip(" ."), text))
    return True if not statement.name and said in read else None


class LikelihoodJudge(ModelJudge):
    """A language model by its likelihood of "yes" beside "no", asked whether a passage states an answer.

    It reads each passage's heading and the sentences near the answer. `threshold` is the least probability of "yes",
    among the two, that counts. `policy` is a model of this process, or a chat endpoint that gives `top_logprobs`.
    """

    def __init__(self, policy: HFPolicy | RemotePolicy, label: str, threshold: float = THRESHOLD) -> None:
        self._policy, self.label, self.threshold, self._lock = policy, label, threshold, Lock()

    def _judge(self, items: Sequence[Item]) -> list[bool]:
        return [chance >= self.threshold for chance in self.probabilities(items)]

    def probabilities(self, items: Sequence[Item]) -> list[float]:
        """For each item the probability of "yes", from 0 to 1."""
        asked = [asked_about(statement, passages) for statement, passages in items]
        if isinstance(self._policy, HFPolicy):
            with self._lock:  # one text at a time uses all cores
                return [self._in_process(self._policy, text) for text in asked]
        with ThreadPoolExecutor(max_workers=1) as own:  # the caller may run in an event loop
            return own.submit(asyncio.run, self._at_endpoint(replace(self._policy), asked)).result()

    @staticmethod
    def _in_process(policy: HFPolicy, text: str) -> float:
        tokenizer, chat = policy.tokenizer, bool(policy.tokenizer.chat_template)
        ids = first_message(tokenizer, encode(tokenizer, [Piece(text, trusted=False)]), chat=chat)
        options = [encode(tokenizer, [Piece(word)]) for word in (("Yes", "No") if chat else (" yes", " no"))]
        return float(policy.option_logprobs(ids, options).softmax(0)[0])

    @staticmethod
    async def _at_endpoint(policy: RemotePolicy, asked: Sequence[str]) -> list[float]:
        try:
            return list(await asyncio.gather(*(_chance_at(policy, text) for text in asked)))
        finally:
            await policy.disconnect()


async def _chance_at(policy: RemotePolicy, text: str) -> float:
    reply = await policy.complete(
        {
            "model": policy.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 1,
            "temperature": 0.0,
            "logprobs": True,
            "top_logprobs": TOP,
        }
    )
    chances = {"yes": 0.0, "no": 0.0}
    for token, logprob in reply.likeliest:
        word = token.strip().lower()
        if word in chances:
            chances[word] += math.exp(logprob)
    if not any(chances.values()):
        raise EndpointError(
            f"endpoint {policy.url}: found {reply.likeliest[:5]}, wanted log-probs of yes or no. Name a model that "
            "gives top_logprobs and does not think first, or judge by rules."
        )
    return chances["yes"] / sum(chances.values())


def asked_about(statement: Statement, passages: Sequence[Passage]) -> str:
    """What a language model is asked: each passage's heading and sentences near the statement, then the question."""
    read = "\n\n".join(f"Passage: {replace(each, text=_near(each.text, statement)).shown_text}" for each in passages)
    form = _AS_NAME if statement.name else _AS_SENTENCE
    return f"{read}{form.format(statement.question, statement.text)} Reply yes or no."


def _near(text: str, statement: Statement) -> str:
    """The sentence of a text nearest to a statement, with as many of its neighbours as `MAX_WORDS` leaves room for."""
    for around in (2, 1, 0):
        words = near_sentences(text, statement.text, beside=statement.question, around=around).split()
        if len(words) <= MAX_WORDS:
            break
    return " ".join(words[:MAX_WORDS])


class NLIModel(ModelJudge):
    """A cross-encoder for natural language inference, by name or folder, such as cross-encoder/nli-deberta-v3-small.

    A statement is entailed where the label that begins with "entail" is the likeliest. The longer text of a pair above
    `max_tokens`, the passage, is truncated. Pairs are judged `batch` at once.

    Raises:
        InputError: the model cannot be loaded, or has no such label.
    """

    def __init__(self, model: str, batch: int = 16, max_tokens: int = 512) -> None:
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(model)
            self._model = AutoModelForSequenceClassification.from_pretrained(model).eval()
        except (OSError, ValueError) as error:
            raise InputError(
                f"support nli:{model}: cannot be loaded ({str(error).splitlines()[0]}). Give a folder or a hub name of "
                "a sequence classifier for natural language inference, or judge by rules."
            ) from error
        labels = {int(at): str(name).lower() for at, name in self._model.config.id2label.items()}
        found = [at for at, name in labels.items() if name.startswith("entail")]
        if len(found) != 1:
            raise InputError(
                f"support nli:{model}: its labels are {', '.join(labels.values())}, wanted one that begins with "
                '"entail". It is no model for natural language inference.'
            )
        self._entails, self._batch, self._max_tokens = found[0], batch, max_tokens
        self.label = f"{NLI}{model}"

    @torch.inference_mode()
    def _judge(self, items: Sequence[Item]) -> list[bool]:
        judged: list[bool] = []
        for start in range(0, len(items), self._batch):
            some = items[start : start + self._batch]
            encoded = self._tokenizer(
                ["\n".join(each.indexed_text for each in passages) for _, passages in some],
                [statement.hypothesis for statement, _ in some],
                truncation="longest_first",
                max_length=self._max_tokens,
                padding=True,
                return_tensors="pt",
            )
            judged += (self._model(**encoded).logits.argmax(dim=-1) == self._entails).tolist()
        return judged

"""Judges of support by name: rules, a language model by likelihood, or one for natural language inference."""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock

from transformers import pipeline

from medagent.agent_folder import open_agent
from medagent.errors import ConfigError, EndpointError, InputError
from medagent.evidence.drugs_and_doses import named_in
from medagent.evidence.rules import LexicalRule
from medagent.evidence.sentences import near_sentences
from medagent.evidence.support import Item, Statement, SupportJudge, windows_of
from medagent.evidence.words import folded
from medagent.pieces import Piece, encode
from medagent.plain_protocol import PlainProtocol
from medagent.policies.chat_endpoint import RemotePolicy
from medagent.policies.huggingface import HFPolicy
from medagent.policy import Policy
from medagent.retrieval.passages import Passage

RULES, NLI, JUDGE = "rules", "nli:", "judge:"
TOP = 20  # log-probs that an endpoint is asked for, the most that OpenAI's gives
THRESHOLD = 0.8  # chosen on half of the labels, see docs/serving-figures.md
MAX_WORDS = 110  # of a passage, about 150 tokens
_OF_A_NAME = "Question: {}\nAnswer: {}\n\nDoes the passage state that this is the answer to the question?"
_OF_A_SENTENCE = "Statement: {1}\n\nDoes the passage state or imply the statement?"


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
        known = "rules, nli:MODEL, judge:hf:MODEL or judge:http://HOST/v1#MODEL"
        raise ConfigError(f"support {name!r}: unknown. It is {known}.")
    agent, _, model = name.removeprefix(JUDGE).partition("#")
    return LikelihoodJudge(open_agent(agent, index=None, model=model, must_search=False).policy, name)


class ModelJudge(ABC):
    """Asks a model what words leave open.

    A sentence of the passages, word by word, is always stated. A drug or number that they lack is not, nor is a name
    that no sentence of theirs states by the rules: small models find too many names right.
    """

    label: str

    def judge_all(self, items: Sequence[Item]) -> list[bool]:
        """See `SupportJudge`."""
        settled = [_settled(*item) for item in items]
        asked = iter(self._judge([item for item, known in zip(items, settled, strict=True) if known is None]))
        return [next(asked) if known is None else known for known in settled]

    @abstractmethod
    def _judge(self, items: Sequence[Item]) -> list[bool]: ...


def _settled(statement: Statement, passages: Sequence[Passage]) -> bool | None:
    if statement.name and not LexicalRule().judge_all([(statement, passages)])[0]:
        return False
    text = "\n".join(passage.indexed_text for passage in passages)
    if named_in(statement.text).beyond(named_in(text)):
        return False
    said = folded(statement.text.rstrip(" ."))
    return True if not statement.name and any(said in folded(window) for window in windows_of(text)) else None


class LikelihoodJudge(ModelJudge):
    """A language model, asked whether a passage states an answer: how likely it finds "yes" beside "no".

    It reads each passage's heading and the sentences near the answer. `threshold` is the least probability of "yes",
    among the two, that counts. `policy` is a model of this process, or a chat endpoint that gives `top_logprobs`.
    """

    def __init__(self, policy: Policy, label: str, threshold: float = THRESHOLD) -> None:
        self._policy, self.label, self.threshold, self._lock = policy, label, threshold, Lock()

    def _judge(self, items: Sequence[Item]) -> list[bool]:
        return [chance >= self.threshold for chance in self.probabilities(items)]

    def probabilities(self, items: Sequence[Item]) -> list[float]:
        """For each item the probability of "yes", from 0 to 1."""
        texts = [asked_about(*item) for item in items]
        if isinstance(self._policy, RemotePolicy):
            with ThreadPoolExecutor(max_workers=1) as own:  # the caller may run in an event loop
                return own.submit(asyncio.run, _at_endpoint(replace(self._policy), texts)).result()
        assert isinstance(self._policy, HFPolicy)
        with self._lock:  # one text at a time uses all cores
            return [_in_process(self._policy, text) for text in texts]


def _in_process(policy: HFPolicy, text: str) -> float:
    tokenizer, chat = policy.tokenizer, bool(policy.tokenizer.chat_template)
    ids = PlainProtocol(chat=chat).encode_message(tokenizer, [Piece(text, trusted=False)])
    options = [encode(tokenizer, [Piece(word)]) for word in (("Yes", "No") if chat else (" yes", " no"))]
    return float(policy.option_logprobs(ids, options).softmax(0)[0])


async def _at_endpoint(policy: RemotePolicy, texts: Sequence[str]) -> list[float]:
    settings = {"model": policy.model, "max_tokens": 1, "temperature": 0.0, "logprobs": True, "top_logprobs": TOP}
    asked = (policy.complete({**settings, "messages": [{"role": "user", "content": text}]}) for text in texts)
    try:
        replies = await asyncio.gather(*asked)
    finally:
        await policy.disconnect()
    found = []
    for reply in replies:
        said = [(token.strip().lower(), math.exp(logprob)) for token, logprob in reply.likeliest]
        yes, no = (sum(chance for word, chance in said if word == wanted) for wanted in ("yes", "no"))
        if not yes + no:
            remedy = "Name a model that gives top_logprobs and does not think first, or judge by rules"
            told = f"found {reply.likeliest[:5]}, wanted log-probs of yes or no"
            raise EndpointError(f"endpoint {policy.url}: {told}. {remedy}.")
        found.append(yes / (yes + no))
    return found


def asked_about(statement: Statement, passages: Sequence[Passage]) -> str:
    """What a language model is asked: each passage's heading and sentences near the statement, then the question."""
    read = "\n\n".join(f"Passage: {replace(each, text=_near(each.text, statement)).shown_text}" for each in passages)
    asked = (_OF_A_NAME if statement.name else _OF_A_SENTENCE).format(statement.question, statement.text)
    return f"{read}\n\n{asked} Reply yes or no."


def _near(text: str, statement: Statement) -> str:
    """The sentence of a text nearest to a statement, with as many of its neighbours as `MAX_WORDS` leaves room for."""
    for around in (2, 1, 0):
        words = near_sentences(text, statement.text, beside=statement.question, around=around).split()
        if len(words) <= MAX_WORDS:
            break
    return " ".join(words[:MAX_WORDS])


class NLIModel(ModelJudge):
    """A cross-encoder by name or folder, such as cross-encoder/nli-deberta-v3-small. Long passages are truncated.

    A statement is stated where the label that begins with "entail" is the likeliest.

    Raises:
        InputError: the model cannot be loaded, or has no such label.
    """

    def __init__(self, model: str) -> None:
        try:
            self._classify = pipeline("text-classification", model)
        except (OSError, ValueError) as error:
            remedy = "a folder or a hub name of a sequence classifier for natural language inference, or judge by rules"
            told = f"cannot be loaded ({str(error).splitlines()[0]})"
            raise InputError(f"support nli:{model}: {told}. Give {remedy}.") from error
        labels = list(map(str, (self._classify.model.config.id2label or {}).values()))
        if not any(map(_entails, labels)):
            wanted = 'one that begins with "entail". It is no model for natural language inference'
            raise InputError(f"support nli:{model}: its labels are {', '.join(labels)}, wanted {wanted}.")
        self.label = f"{NLI}{model}"

    def _judge(self, items: Sequence[Item]) -> list[bool]:
        read = ("\n".join(each.indexed_text for each in passages) for _, passages in items)
        pairs = [{"text": text, "text_pair": said.hypothesis} for text, (said, _) in zip(read, items, strict=True)]
        found = self._classify(pairs, batch_size=16, truncation=True, max_length=512) if pairs else []
        return [_entails(each["label"]) for each in found]


def _entails(label: str) -> bool:
    return label.lower().startswith("entail")

"""A turn that the environment writes has the tokens that a policy learns and says, for the tokenizers of real models.

Evaluation's modes give turns, or open them. If these looked otherwise than the policy's own, a mode would change two
things: what is found, and how a turn is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from medagent.agent import Agent, GivenSearch, Job
from medagent.models.gguf_cache import cache_folder
from medagent.protocol import TagProtocol
from medagent.retrieval.passages import Hit, Passage
from medagent.training.agent_data import AgentSettings
from medagent.training.sft.data import encoded
from medagent.types import Limits, Question, Rollout, StopReason, Turn
from tests.recording import Finds, RecordingPolicy

QUERIES = ("What treats gout?", "gout first-line drug", "12 mg/d (oral)", "IL-6 in Crohn's", "β-blocker…", "why >")
HIT = Hit(Passage("p", "gout", "Allopurinol lowers urate."), 1.0)
QUESTION = Question("q", "What treats gout?", ("aspirin", "allopurinol"), "B")
ANSWER = "<answer> allopurinol (B) [1]</answer>"
TEXTS = [
    *(f"<search> {query}</search>" for query in QUERIES),
    ANSWER,
    "<think> I look it up.</think><search>gout</search><information>What treats gout? (why?)</information>",
]
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"\p{N}| ?", r"\p{N}{1,3}| ?")
OPENS = "{% for m in messages %}U:{{ m.content }}\n{% endfor %}{{ 'A:<think>\n' }}"


def byte_level(first: pre_tokenizers.PreTokenizer, *, use_regex: bool = False) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", bos_token="<|im_start|>")


def qwen2() -> PreTrainedTokenizerFast:
    """Its words take a sign before them, so "<search>What" is "<search" and ">What"."""
    made = byte_level(pre_tokenizers.Split(Regex(QWEN2), behavior="isolated"))
    made.backend_tokenizer.normalizer = normalizers.NFC()
    return made


def smollm2() -> PreTrainedTokenizerFast:
    """As GPT-2, with single digits."""
    return byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True)


def llama3() -> PreTrainedTokenizerFast:
    """As Qwen2, with up to three digits, and a token that begins each text."""
    made = byte_level(pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated"))
    begin = (str(made.bos_token), made.bos_token_id)
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin[0]} $A", special_tokens=[begin]
    )
    return made


def gemma() -> PreTrainedTokenizerFast:
    """As SentencePiece: a space is a sign, nothing splits the text, and bytes stand in for unknown characters."""
    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    learnt.train_from_iterator(
        [text.replace("β", "") for text in TEXTS], trainers.BpeTrainer(vocab_size=200, show_progress=False)
    )
    model = json.loads(learnt.to_str())["model"]
    words = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    merges = [tuple(each) for each in model["merges"]]
    vocabulary = {word: number for number, word in enumerate(words)}
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", bos_token="<bos>", unk_token="<unk>")


@pytest.fixture(scope="module", params=[qwen2, smollm2, llama3, gemma], ids=lambda make: make.__name__)
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    make: Callable[[], PreTrainedTokenizerBase] = request.param
    return make()


def settings(protocol: TagProtocol) -> AgentSettings:
    return AgentSettings(protocol, Limits(3, 200, 400, 2_000), top_k=1)


def taught(tokenizer: PreTrainedTokenizerBase, protocol: TagProtocol, *texts: str) -> Rollout:
    """What supervised training imitates of a dialogue that searches and answers."""
    turns = [Turn((), (), text, hits=(HIT,) if "<search>" in text else ()) for text in texts]
    dialogue = Rollout(QUESTION, (), tuple(turns), StopReason.ANSWERED)
    (kept,), _ = encoded([dialogue], settings(protocol), tokenizer)
    return kept


def rolled_out(tokenizer: PreTrainedTokenizerBase, protocol: TagProtocol, said: Sequence[str], **job) -> Rollout:
    """What the loop makes of it if the policy says these texts."""
    rules, turns = settings(protocol), iter(said)
    agent = Agent(
        RecordingPolicy(lambda read, turn: next(turns), tokenizer), Finds(HIT.passage), protocol, rules.limits
    )
    (rollout,) = agent.run_all([Job(QUESTION, **job)])
    return rollout


def check(tokenizer: PreTrainedTokenizerBase, query: str) -> None:
    protocol = TagProtocol()
    wanted = taught(tokenizer, protocol, f"<search> {query}</search>", ANSWER)
    own = rolled_out(tokenizer, protocol, [f"<search> {query}</search>", ANSWER])
    given = rolled_out(tokenizer, protocol, [ANSWER], given=GivenSearch(query))
    opened = rolled_out(tokenizer, protocol, [f" {query}</search>", ANSWER], force_search=True)
    assert own.token_ids == given.token_ids == opened.token_ids == wanted.token_ids
    assert [turn.text for turn in given.turns] == [f"<search> {query}</search>", ANSWER]
    closed = rolled_out(tokenizer, protocol, [ANSWER.removeprefix("<answer>")], force_answer=True)
    assert closed.turns[0].token_ids == wanted.turns[1].token_ids, "the answer of a closed book begins as taught"


@pytest.mark.parametrize("query", QUERIES)
def test_given_and_opened_turns_have_the_tokens_of_demonstrations(tokenizer, query: str) -> None:
    check(tokenizer, query)


def test_real_tokenizers() -> None:
    """Those of the GGUF files that this machine has loaded, each once: models of several sizes share theirs."""
    found = {path.read_bytes(): path.parent for path in cache_folder().glob("base-models/*/tokenizer.json")}
    if not found:
        pytest.skip("needs a GGUF that was loaded once")
    for folder in found.values():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        for query in QUERIES:
            check(tokenizer, query)


def test_a_given_search_in_an_open_thought_is_as_taught(tokenizer) -> None:
    tokenizer.chat_template = OPENS
    protocol = TagProtocol(chat=True)
    wanted = taught(tokenizer, protocol, "<search> What treats gout?</search>", ANSWER)
    given = rolled_out(tokenizer, protocol, [ANSWER], given=GivenSearch("What treats gout?"))
    assert given.token_ids == wanted.token_ids
    tokenizer.chat_template = None


def test_a_query_with_a_control_token_is_encoded_apart(tokenizer) -> None:
    """Text from outside yields no id of an added token, and the rest of the turn is as ever."""
    control = str(tokenizer.eos_token)
    given = rolled_out(tokenizer, TagProtocol(), [ANSWER], given=GivenSearch(f"gout {control} drug"))
    ids = given.turns[0].token_ids
    assert tokenizer.eos_token_id not in ids
    assert tokenizer.decode(ids).startswith("<search> gout ")
    assert (
        given.turns[1].token_ids == taught(tokenizer, TagProtocol(), "<search> x</search>", ANSWER).turns[1].token_ids
    )

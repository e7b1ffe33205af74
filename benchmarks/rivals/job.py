"""The job of a training step, which each rival does with the same model, questions, index and limits.

forced   4 questions x 8 samples. Three turns of 32 tokens, whatever they say, and 150 tokens of passages after the
         first two. Options set these numbers.
real     16 questions x 8 samples of an agent that was taught the protocol. It samples freely.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from benchmarks.common import Peaks
from medagent.agent_spec import read_spec
from medagent.evaluation.benchmarks import BioASQBenchmark, StarterBenchmark
from medagent.models.base_models import model_path
from medagent.pieces import ParsedTurn
from medagent.policies.turn_ends import TurnEnds
from medagent.policy import TurnStop
from medagent.protocol import TagProtocol, TurnProtocol
from medagent.retrieval.search import HybridRetriever
from medagent.types import Limits, Question
from medagent.untrusted_text import harmless_passages

RANK, ALPHA, RATE = 16, 32, 3e-4
FORCED_LIMITS, PROMPT_TOKENS = Limits(3, 32, 150, 1024), 256
NUM_SAMPLES = 8
SHAPES: dict[str, dict[str, Any]] = {
    "qwen2.5-1.5b": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
    "qwen2.5-7b": {
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152_064,
        "tie_word_embeddings": False,
    },
}


@dataclass(frozen=True)
class ForcedProtocol(TagProtocol):
    """Every turn searches for what it says."""

    instructions: str = ""

    @staticmethod
    def parse(text: str) -> ParsedTurn:
        """The whole text is the query."""
        return ParsedTurn("", text[:100] or "medicine", None)


@dataclass(frozen=True)
class StepJob:
    """The work of a step; `forced` turns have as many tokens as the limits allow."""

    model: str
    protocol: TurnProtocol
    limits: Limits
    top_k: int
    index: str
    questions: list[Question]
    forced: bool
    dtype: str
    seed: int

    @property
    def rollouts(self) -> int:
        """Rollouts of a step."""
        return len(self.questions) * NUM_SAMPLES

    def observation(self, tokenizer: PreTrainedTokenizerBase, retriever: HybridRetriever, query: str) -> str:
        """The text that a search inserts; the first passage is always numbered 1."""
        hits = retriever.search([query], top_k=self.top_k)[0]
        ids, _ = self.protocol.encode_observation(
            tokenizer,
            harmless_passages(tokenizer, [hit.passage for hit in hits]),
            first_number=1,
            max_tokens=self.limits.max_observation_tokens,
        )
        return str(tokenizer.decode(ids))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A job as command-line arguments."""
    parser.add_argument("--job", choices=["forced", "real"], default="forced")
    parser.add_argument("--model", default="smollm2", help="base model; of the job real, an agent's merged folder")
    parser.add_argument("--index", required=True)
    parser.add_argument("--bioasq", default="", help="BioASQ files; without them, questions of the starter world")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--questions", type=int, default=0, help="of a step; 0: as the job says")
    parser.add_argument("--warm-up", type=int, default=1, help="steps before the one that counts")
    parser.add_argument("--turns", type=int, default=FORCED_LIMITS.max_turns, help="of the job forced")
    parser.add_argument("--turn-tokens", type=int, default=FORCED_LIMITS.max_turn_tokens, help="of the job forced")
    parser.add_argument("--observation-tokens", type=int, default=FORCED_LIMITS.max_observation_tokens, help="likewise")
    parser.add_argument("--shape", choices=list(SHAPES), help="random weights of a larger model, made in --model")


def job_of(options: argparse.Namespace) -> StepJob:
    """The job that the command line names. Another seed asks other questions."""
    forced = options.job == "forced"
    number = options.questions or (4 if forced else 16)
    if options.shape and not (Path(options.model) / "config.json").exists():
        make_model(options.shape, Path(options.model))
    start = options.seed * number
    if options.bioasq:
        benchmark = BioASQBenchmark(path=options.bioasq, types=["factoid"], most_words=7)
        questions = benchmark.questions()
    else:
        questions = StarterBenchmark("train").questions()
    questions = [questions[at % len(questions)] for at in range(start, start + number)]
    if forced:
        of_a_turn = options.turn_tokens + options.observation_tokens
        limits = Limits(
            options.turns,
            options.turn_tokens,
            options.observation_tokens,
            max(FORCED_LIMITS.max_total_tokens, PROMPT_TOKENS + options.turns * of_a_turn),
        )
        top_k = max(8, options.observation_tokens // 16)  # enough passages to fill an observation
        job = StepJob("", ForcedProtocol(), limits, top_k, "", questions, forced, options.dtype, options.seed)
    else:
        spec = read_spec(Path(options.model))
        job = StepJob("", spec.protocol, spec.limits, spec.top_k, "", questions, forced, options.dtype, options.seed)
    return replace(job, model=options.model, index=options.index)


@torch.no_grad()
def make_model(shape: str, folder: Path) -> None:
    """A model of a shape with random weights in bfloat16, and the starter's tokenizer."""
    config = Qwen2Config(**SHAPES[shape], max_position_embeddings=32_768, dtype="bfloat16")
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen2ForCausalLM._from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_path("starter")).save_pretrained(folder)


def force_turn_length(tokens: int) -> None:
    """Our turns end after exactly so many tokens, whatever they say."""

    def stop(self: TurnEnds, sampled: Any, max_tokens: int) -> TurnStop | None:
        return TurnStop.TAG if len(sampled) >= tokens else None

    TurnEnds.stop = stop  # type: ignore[method-assign]


def finish_kernels() -> None:
    """Wait for what runs on a GPU, so that its time counts for the phase that started it."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Phases:
    """Seconds by phase. A phase within another counts for the inner one alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self._inner: list[float] = []

    def wrap(
        self, owner: Any, name: str, phase: str | Callable[..., str], tokens: Callable[..., int] | None = None
    ) -> None:
        """Count the calls of `owner.name` under a phase, or under that which `phase` says of the arguments."""
        function = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            label = phase if isinstance(phase, str) else phase(*args, **kwargs)
            if tokens is not None:
                self.counts[label] = self.counts.get(label, 0) + tokens(*args, **kwargs)
            self._inner.append(0.0)
            finish_kernels()
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                finish_kernels()
                took = time.perf_counter() - began
                self.seconds[label] = self.seconds.get(label, 0.0) + took - self._inner.pop()
                if self._inner:
                    self._inner[-1] += took

        setattr(owner, name, timed)

    def take(self) -> tuple[dict[str, float], dict[str, int]]:
        """The seconds and counts so far, from which on it counts anew."""
        found = self.seconds, self.counts
        self.seconds, self.counts = {}, {}
        return found


def report(**figures: Any) -> None:
    """Print what a child measured, as the last line."""
    peaks = Peaks()
    peaks("whole")
    print(json.dumps({"peak_bytes": peaks.peaks["whole"], **figures}))

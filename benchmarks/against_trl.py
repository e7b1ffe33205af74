"""Rollouts per second of whole training steps, beside TRL's GRPO trainer with a search tool.

    python -m benchmarks.against_trl --repeats 3        # needs the extra `bench`

Both do one job, in alternation: 32 questions, 4 rollouts per question, three forced searches per rollout, and a last
turn of 64 sampled tokens. Model, tokenizer, index, LoRA (rank 16 on all linear layers) and optimizer step are equal.
Ours is PPO, and its critic and reference passes are included. It runs twice: with an adapter as critic, and with the
demo's critic (configs/critic/group.yaml), which makes no pass of the base.

Prints seconds per step, rollouts and tokens per second of each, and the ratios to TRL.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning import Trainer

from benchmarks.common import ROOT, describe_machine
from evaluation.benchmarks import StarterBenchmark
from medagent.agent import Limits
from medagent.base_models import STARTER
from medagent.causal_lm import load_causal_lm
from medagent.policies.huggingface import _Batch, _Row
from medagent.policy import TurnStop
from medagent.protocol import ParsedTurn, TagProtocol
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from retrieval.search import HybridRetriever
from training.data import AgentSettings, RolloutData
from training.module import AgentModule

QUESTIONS, SAMPLES, SEARCHES, TURN_TOKENS = 32, 4, 3, 64
ROLLOUTS = QUESTIONS * SAMPLES
TRL = "TRL's GRPO"
GROUP_CRITIC = ROOT / "configs" / "critic" / "group.yaml"


@dataclass(frozen=True)
class ForcedProtocol(TagProtocol):
    """Every turn searches for what it says."""

    instructions: str = ""

    @staticmethod
    def parse(text: str) -> ParsedTurn:
        """The whole text is the query."""
        return ParsedTurn("", text[:100], None)


def force_turn_length() -> None:
    """Turns end after exactly `TURN_TOKENS` tokens, whatever they say."""

    def stop(self: _Batch, row: _Row) -> TurnStop | None:
        return TurnStop.TAG if len(row.token_ids) >= TURN_TOKENS else None

    _Batch._stop = stop  # type: ignore[method-assign]


def ours(index: Path, *, steps: int, critic: Path | None) -> list[float]:
    """Seconds of each of our steps: rollouts, reference, values, update of policy and critic.

    `critic` is the file of its settings, none takes an adapter.
    """
    settings_of = yaml.safe_load(critic.read_text(encoding="utf-8")) if critic else {"model": {}, "data": {}}
    force_turn_length()
    settings = AgentSettings(ForcedProtocol(), Limits(SEARCHES + 1, TURN_TOKENS, 160, 2048), top_k=2)
    data = RolloutData(
        StarterBenchmark("train"),
        HybridRetriever(str(index)),
        agent=settings,
        num_questions=QUESTIONS,
        num_samples=SAMPLES,
        num_minibatches=1,
        num_micro_batches=8,
        num_critic_epochs=settings_of["data"].get("num_critic_epochs", 0),
    )
    times: list[float] = []

    class Clock(AgentModule):
        def on_train_epoch_start(self) -> None:
            self._began = time.perf_counter()

        def on_train_epoch_end(self) -> None:
            times.append(time.perf_counter() - self._began)
            assert len(data.rollouts) == ROLLOUTS
            assert all(r.num_action_tokens == (SEARCHES + 1) * TURN_TOKENS for r in data.rollouts)

    trainer = Trainer(
        max_epochs=steps,
        accelerator="cpu",
        devices=1,
        accumulate_grad_batches=8,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Clock(**settings_of["model"]), datamodule=data)
    return times


CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}[{{ "
    "c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}{% endif %}\n{% endfor %}{% if "
    "add_generation_prompt %}<|assistant|>{% endif %}"
)


def trl(index: Path, *, steps: int) -> list[float]:
    """Seconds of each of TRL's steps."""
    import trl.trainer.grpo_trainer as grpo
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = load_causal_lm(STARTER)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.response_template = {"fields": {}}
    retriever = HybridRetriever(str(index))
    calls = 0

    def parse(tokenizer: Any, ids: Any, **kwargs: Any) -> dict[str, Any]:
        text = str(tokenizer.decode(ids))
        call = {"type": "function", "function": {"name": "search", "arguments": {"query": text[:100]}}}
        return {"role": "assistant", "content": text, "tool_calls": [call]}

    grpo.parse_response = parse

    def search(query: str) -> str:
        """Search the corpus.

        Args:
            query: What to search for.

        """
        nonlocal calls
        calls += 1
        hits = retriever.search([query], top_k=2)[0]
        return "\n".join(f"- {hit.passage.title}: {hit.passage.text}" for hit in hits)

    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            times.append(time.perf_counter() - self.began)

    questions = StarterBenchmark("train").questions()[: QUESTIONS * steps]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=ROLLOUTS // 16,
            generation_batch_size=ROLLOUTS,
            num_generations=SAMPLES,
            max_completion_length=1024,
            max_tool_calling_iterations=SEARCHES,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **kwargs: [float(len(str(c)) % 7) for c in completions],
            args=config,
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": q.text}]} for q in questions]),
            processing_class=tokenizer,
            peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
            tools=[search],
            callbacks=[Clock()],
        )
        trainer.generation_config.max_new_tokens = TURN_TOKENS
        trainer.generation_config.min_new_tokens = TURN_TOKENS
        trainer.train()
    assert calls == ROLLOUTS * SEARCHES * steps, f"{calls} searches were made"
    return times


def main() -> None:
    """Alternate the two, and print medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    print(describe_machine())
    original = _Batch._stop
    critics = {"PPO, an adapter as critic": None, "PPO, the demo's critic": GROUP_CRITIC}
    results: dict[str, list[float]] = {name: [] for name in (*critics, TRL)}
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        build_starter_index(index, World.load().passages())
        for repeat in range(options.repeats):
            for name in list(results)[:: -1 if repeat % 2 else 1]:  # none is always the first
                run = trl(index, steps=2) if name == TRL else ours(index, steps=2, critic=critics[name])
                results[name] += run[1:]  # the first step warms up
                _Batch._stop = original  # type: ignore[method-assign]
    for name, seconds in results.items():
        middle = statistics.median(seconds)
        tokens = ROLLOUTS * (SEARCHES + 1) * TURN_TOKENS / middle
        print(
            f"{name:26s} {middle:6.2f} s per step (of {len(seconds)}: {min(seconds):.2f} to {max(seconds):.2f}), "
            f"{ROLLOUTS / middle:6.2f} rollouts/s, {tokens:7,.0f} sampled tokens/s over the step"
        )
    for name in critics:
        ratio = statistics.median(results[TRL]) / statistics.median(results[name])
        print(f"ratio of rollouts per second, {name} / TRL: {ratio:.1f}")


if __name__ == "__main__":
    main()

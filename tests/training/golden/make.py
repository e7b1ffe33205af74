"""The golden run: five updates of every algorithm on committed rollouts and a model whose weights are formulas.

Nothing is sampled, and no random generator is asked, so a change of these numbers is a change of the training code.
After a change that is meant, `python -m tests.training.golden.make` writes metrics.json anew (and `--rollouts` the
rollouts).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from medagent.evaluation.viewer.recorded import read_metrics
from medagent.policy import Policy
from medagent.retrieval.passages import Hit
from medagent.training.command import AgentCLI
from medagent.training.data import RolloutData
from medagent.training.experience import tensorize
from medagent.training.module import AgentModule
from medagent.training.rollouts.collection import read_rollouts, write_rollouts
from medagent.types import Question, Rollout, StopReason, Turn
from tests.support import CONFIGS

HERE = Path(__file__).parent
ROLLOUTS, METRICS = HERE / "rollouts.jsonl", HERE / "metrics.json"
ALGORITHMS = CONFIGS / "algorithms"
NAMES = sorted(path.stem for path in ALGORITHMS.glob("*.yaml"))
VOCABULARY, SAMPLES, QUESTIONS = 48, 4, 6
LEFT_OUT = ("compute/", "time/", "throughput/", "sampler/", "update/", "epoch", "step")


def by_formula(tensor: torch.Tensor, seed: float, scale: float) -> None:
    """Fill a tensor with a fixed, rough pattern."""
    steps = torch.arange(tensor.numel(), dtype=torch.float64)
    tensor.copy_((scale * torch.sin(12.9898 * steps + seed + torch.sin(0.37 * steps))).reshape(tensor.shape))


def make_base(folder: Path) -> Path:
    """A model of two layers, saved as a base model's folder."""
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), pad_token="w0", eos_token="w1"
    )
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config).double()
    with torch.no_grad():
        for number, (name, parameter) in enumerate(model.named_parameters()):
            if "norm" not in name:
                by_formula(parameter, float(number), 0.25)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class GoldenData(RolloutData):
    """Serves the committed rollouts in every iteration, to adapters whose weights are formulas."""

    def policy_of(self, module: AgentModule, *, version: int) -> Policy:
        if version == 0:
            with torch.no_grad():
                for number, parameter in enumerate(p for p in module.parameters() if p.requires_grad):
                    by_formula(parameter, 100.0 + number, 0.05)
        return super().policy_of(module, version=version)

    def collect(self, policy: Policy, **how: object) -> list[Rollout]:
        return read_rollouts(ROLLOUTS)


def run_algorithm(name: str, base: Path, folder: Path) -> list[dict[str, float]]:
    """Metrics of the five updates, by the algorithm's shipped configuration."""
    config = ALGORITHMS / f"{name}.yaml"
    text = config.read_text(encoding="utf-8")
    groups, decoupled = "num_samples" in text, "decoupled" in text
    settings = {
        "model.base_model": base,
        "trainer.default_root_dir": folder,
        "data.num_minibatches": 2 if decoupled else 1,  # else no weight is another than 1
        "data.num_questions": QUESTIONS if groups else QUESTIONS * SAMPLES,
        "data.num_samples": SAMPLES if groups else 1,
    }
    cli = AgentCLI(
        AgentModule,
        GoldenData,
        run=False,
        args=[
            *("--config", str(HERE / "task.yaml")),
            *("--config", str(config)),
            *(f"--{key}={value}" for key, value in settings.items()),
        ],
        save_config_callback=None,
        seed_everything_default=0,
        auto_configure_optimizers=False,
    )
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    rows = read_metrics(folder)
    return [{name: value for name, value in sorted(row.items()) if not name.startswith(LEFT_OUT)} for row in rows]


class NoRetriever:
    """Nothing is searched in a golden run."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        raise AssertionError("the golden run searched")


def make_rollouts(base: Path) -> list[Rollout]:
    """Rollouts of uneven shape, whose sampler differed a little from the model, so that some ratios are clipped."""
    rng = random.Random(0)
    rollouts = []
    for question in range(QUESTIONS):
        for sample in range(SAMPLES):
            turns = []
            for number in range(rng.randint(1, 4)):
                ids = tuple(rng.randrange(2, VOCABULARY) for _ in range(rng.randint(1, 9)))
                observed = tuple(rng.randrange(2, VOCABULARY) for _ in range(rng.randint(0, 12)))
                turns.append(
                    Turn(
                        ids,
                        (0.0,) * len(ids),
                        "",
                        query="q" if observed else None,
                        observation_ids=observed,
                        reward=0.1 * (number == 0) * rng.random(),
                    )
                )
            right = question != 2 and rng.random() < 0.5  # one group earns the same throughout, but for its turns
            rollouts.append(
                Rollout(
                    question=Question(f"q{question}", ""),
                    prompt_ids=tuple(rng.randrange(2, VOCABULARY) for _ in range(rng.randint(3, 8))),
                    turns=tuple(turns),
                    stop_reason=StopReason.ANSWERED if rng.random() < 0.8 else StopReason.MAX_TURNS,
                    sample=sample,
                    reward=float(right),
                    success=right,
                )
            )
    return _with_logprobs(rollouts, base, rng)


@torch.no_grad()
def _with_logprobs(rollouts: list[Rollout], base: Path, rng: random.Random) -> list[Rollout]:

    module = AgentModule(base_model=str(base), dtype="float64")
    for number, parameter in enumerate(p for p in module.parameters() if p.requires_grad):
        by_formula(parameter, 100.0 + number, 0.05)
    batch = tensorize(rollouts, pad_id=0)
    scores = module.shared_base.policy_scores(batch.token_ids_BT, batch.attention_BT, batch.mask_BT, temperature=1.0)
    done = []
    for row, rollout in enumerate(rollouts):
        values = scores.logprobs_BT[row][batch.mask_BT[row]].tolist()
        turns = []
        for turn in rollout.turns:
            shift = rng.gauss(0, 0.15)
            own = [values.pop(0) + shift + rng.gauss(0, 0.15) for _ in turn.token_ids]
            turns.append(replace(turn, logprobs=tuple(round(min(value, -1e-3), 6) for value in own)))
        assert not values
        assert not any(math.isnan(v) for turn in turns for v in turn.logprobs)
        done.append(replace(rollout, turns=tuple(turns)))
    return done


def main() -> None:
    """Write metrics.json anew, and with --rollouts the rollouts before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", action="store_true", help="make the rollouts anew too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = make_base(Path(folder) / "base")
        if options.rollouts:
            write_rollouts(ROLLOUTS, make_rollouts(base))
        metrics = {name: run_algorithm(name, base, Path(folder) / name) for name in NAMES}
    METRICS.write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

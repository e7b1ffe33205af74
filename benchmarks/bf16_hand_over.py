"""A training run of a deep random model in bfloat16, to see whether it samples the policy that it trains.

Run `python -m benchmarks.bf16_hand_over --engine in_process` (or `vllm`).

The model is a random Qwen2 with scores as sharp as a pretrained model's. The reward is the share of even tokens, so
every update moves the policy. After each hand-over the sampler's log-probs of a fixed probe are compared with the
trainer's. Printed per iteration: the mean gap, how far each has moved, and what the arrival check says.

A deep model's log-probs in bfloat16 change by rounding alone when any weight moves. So the weights themselves are also
compared, with all arithmetic in float32: the policy that is trained, what the sampler holds (its LoRA rounded to
bfloat16), and what a merge rounded to bfloat16 would hold. At the end stand the correlations of their moves.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from lightning import Trainer, seed_everything
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from medagent.agent import Limits
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.models.base_models import STARTER
from medagent.models.causal_lm import hidden_states, load_causal_lm, project
from medagent.policies.huggingface import HFPolicy
from medagent.policies.vllm.server import VllmSettings
from medagent.policy import Policy
from medagent.protocol import TagProtocol
from medagent.retrieval.controls import NoRetriever
from medagent.training.advantages import BatchBaseline
from medagent.training.agent_data import AgentSettings
from medagent.training.data import RolloutData
from medagent.training.engines import InProcessEngine, RolloutEngine, VllmEngine
from medagent.training.engines.arrival import trainer_logprobs
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.training.prepare import OffPolicy
from medagent.training.rewards import Reward
from medagent.training.run import quiet_lightning
from medagent.types import Rollout

PROBE = tuple(range(20, 276))


class EvenTokens(Reward):
    """The share of even tokens among those that were sampled: any policy can move it."""

    def __call__(self, rollout: Rollout) -> Rollout:
        """See `Reward`."""
        sampled = [token for turn in rollout.turns for token in turn.token_ids]
        return replace(rollout, reward=sum(token % 2 == 0 for token in sampled) / max(1, len(sampled)))


class Watched(RolloutData):
    """Keeps what sampler and trainer say about the probe after each hand-over."""

    heard: list[Tensor]
    wanted: list[Tensor]
    exact: dict[str, list[Tensor]]
    whole: AgentModule  # the same base in float32

    def policy_of(self, module: AgentModule, *, version: int) -> Policy:
        """See `AgentData.policy_of`."""
        policy = super().policy_of(module, version=version)
        self.heard.append(self._heard(policy))
        self.wanted.append(trainer_logprobs(module, PROBE))
        for name, logprobs in _in_float32(self.whole, module).items():
            self.exact.setdefault(name, []).append(logprobs)
        self._show(version)
        return policy

    def _heard(self, policy: Policy) -> Tensor:
        if isinstance(policy, HFPolicy):
            with torch.no_grad():
                scores = project(policy.model, hidden_states(policy.model, input_ids=torch.tensor([PROBE])))
            return scores[0, :-1].log_softmax(-1).gather(1, torch.tensor(PROBE[1:])[:, None])[:, 0].double()
        assert isinstance(self.engine, VllmEngine)
        assert self.engine._server is not None
        assert self.engine._policy is not None
        found = self.engine._server.api.logprobs(list(PROBE), model=self.engine._policy.model)
        return torch.tensor(found, dtype=torch.float64)

    def _show(self, version: int) -> None:
        gap = float((self.heard[-1] - self.wanted[-1]).abs().mean())
        moved = ""
        if version:
            trainer, sampler = (
                float((each[-1] - each[-2]).square().mean().sqrt()) for each in (self.wanted, self.heard)
            )
            moved = f" trainer moved {trainer:.4f}, sampler {sampler:.4f},"
        said = {name: round(value, 4) for name, value in self.engine.metrics().items()}
        print(f"iteration {version}: gap {gap:.4f},{moved} {said}", flush=True)


@torch.no_grad()
def _in_float32(whole: AgentModule, module: AgentModule) -> dict[str, Tensor]:
    """Log-probs of the probe by the weights that each holds, with the arithmetic of float32."""
    own = whole.roles.adapter_weights()
    for name, weight in module.roles.adapter_weights().items():
        own[name].copy_(weight)
    found = {"trained": trainer_logprobs(whole, PROBE)}
    merged = dict(module.roles.merged_policy())
    plain = {name: weight.clone() for name, weight in whole.roles.adapted_weights().items()}
    for weight in own.values():
        weight.copy_(weight.to(torch.bfloat16))
    found["adapter in bfloat16"] = trainer_logprobs(whole, PROBE)
    for name, weight in whole.roles.adapted_weights().items():
        weight.copy_(merged[name])
    with whole.roles.peft.disable_adapter():
        scores = project(whole.roles.base, hidden_states(whole.roles.base, input_ids=torch.tensor([PROBE])))
    chosen = scores[0, :-1].log_softmax(-1).gather(1, torch.tensor(PROBE[1:])[:, None])[:, 0]
    found["merged in bfloat16"] = chosen.double()
    for name, weight in whole.roles.adapted_weights().items():
        weight.copy_(plain[name])
    return found


def _correlation(one: list[Tensor], other: list[Tensor]) -> float:
    """Of the moves from one hand-over to the next, over all tokens."""
    return float(torch.corrcoef(torch.stack([torch.stack(each).diff(dim=0).flatten() for each in (one, other)]))[0, 1])


def main() -> None:
    """Train, and print what is said above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("in_process", "vllm"), default="in_process")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--rate", type=float, default=1e-5)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--questions", type=int, default=8)
    asked = parser.parse_args()
    quiet_lightning()
    seed_everything(0, verbose=False)
    with tempfile.TemporaryDirectory() as scratch:
        base = str(_random_base(Path(scratch) / "base", asked.layers))
        lora = LoraSettings(rank=32, alpha=64)
        module = AgentModule(
            base_model=base, dtype="bfloat16", policy_lora=lora, critic_lora=None, policy_lr=asked.rate, kl_coef=0.0
        )
        engine: RolloutEngine = InProcessEngine()
        if asked.engine == "vllm":
            engine = VllmEngine(settings=VllmSettings(max_sequences=16))
        data = Watched(
            benchmark=StarterBenchmark("train"),
            retriever=NoRetriever(),
            agent=AgentSettings(TagProtocol(instructions=""), Limits(1, 24, 64, 512), top_k=1),
            reward=EvenTokens(),
            advantage=BatchBaseline(),
            off_policy=OffPolicy(importance="decoupled"),
            engine=engine,
            num_questions=asked.questions,
            num_minibatches=2,
            num_micro_batches=1,
        )
        data.heard, data.wanted, data.exact = [], [], {}
        data.whole = AgentModule(base_model=base, policy_lora=lora, critic_lora=None)
        trainer = Trainer(
            default_root_dir=scratch,
            max_epochs=asked.iterations,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, datamodule=data)
    print(f"sampler's moves against the trainer's, as computed: {_correlation(data.heard, data.wanted):.3f}")
    trained = data.exact["trained"]
    print(f"trainer's moves in bfloat16 against float32: {_correlation(data.wanted, trained):.3f}")
    for name in ("adapter in bfloat16", "merged in bfloat16"):
        print(f"moves of the weights, {name}, against those trained: {_correlation(data.exact[name], trained):.4f}")


def _random_base(folder: Path, layers: int) -> Path:
    _, tokenizer = load_causal_lm(STARTER)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=8192,
            hidden_size=896,
            intermediate_size=4864,
            num_hidden_layers=layers,
            num_attention_heads=14,
            num_key_value_heads=2,
            tie_word_embeddings=False,
            initializer_range=0.02,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(5)  # a random head of this size leaves all tokens alike
    torch.nn.Module.to(model, torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()

"""`medagent plan`: what a configuration will need, from its settings and the base's configuration alone.

No weights are loaded, and parameters are counted on torch's meta device. What autograd keeps of a layer is linear in
the layer's sizes (counted with saved-tensor hooks, docs/scaling.md). The figures assume that every rollout is as long
as the limits allow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import psutil
import torch
from lightning import Trainer
from transformers import AutoConfig, AutoModelForCausalLM

from medagent.agent import Limits
from medagent.base_models import model_path
from medagent.errors import ConfigError
from medagent.merging import form_for
from medagent.precision import Precision, settled
from training.adapters import LoraSettings
from training.critic_evidence import CriticSees
from training.data import RolloutData
from training.execution import Execution
from training.module import AgentModule
from training.parser import AgentParser

GIB = 2**30
FP32 = 4
ADAM_BYTES = 16  # weight, gradient and two moments of a trained parameter, all in float32
LOGIT_BYTES = (
    12  # of an action token and vocabulary entry in an update: scores, log-softmax, probabilities or a gradient
)
READ_LOGIT_BYTES = 8  # the same where nothing is propagated back
MAX_OPEN = 512  # rollouts sampled at once
PREPARED_ROWS = 32  # rollouts read at once before the update, where there is no limit of tokens
LIBRARIES_GIB = {"cpu": 0.60, "gpu": 0.8}  # Python, torch, transformers, Lightning; on a GPU its context


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a base model, and counts of its parameters (tied ones once)."""

    hidden: int
    intermediate: int
    layers: int
    kv_size: int
    vocabulary: int
    parameters: int
    linear_sizes: tuple[tuple[int, int], ...]  # (in, out) of every linear layer that gets LoRA

    @staticmethod
    def of(base_model: str) -> ModelShape:
        """The shape of a base model, by hub name or folder."""
        try:
            config = AutoConfig.from_pretrained(model_path(base_model))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"base model {base_model!r}: its configuration cannot be read ({error}). Give a hub name (with a "
                "network or a filled cache) or a folder."
            ) from error
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        head = model.get_output_embeddings()
        linear = tuple(
            (module.in_features, module.out_features)
            for module in model.get_decoder().modules()
            if isinstance(module, torch.nn.Linear) and module is not head
        )
        config = config.get_text_config(decoder=True)  # a wrapper of several models holds the decoder's in its own
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return ModelShape(
            config.hidden_size,
            config.intermediate_size,
            config.num_hidden_layers,
            config.num_key_value_heads * head_dim,
            config.vocab_size,
            sum(parameter.numel() for parameter in model.parameters()),
            linear,
        )

    def lora_parameters(self, lora: LoraSettings | None) -> int:
        """Parameters of one adapter."""
        return sum(lora.rank * (ins + outs) for ins, outs in self.linear_sizes) if lora else 0


@dataclass(frozen=True)
class Load:
    """The work of one rank in an iteration."""

    shape: ModelShape
    dtype: str
    policy_lora: LoraSettings
    critic_lora: LoraSettings | None
    execution: Execution
    limits: Limits
    rollouts: int
    micro_batch_rows: int
    in_process: bool
    device: str = "cpu"
    shards: int = 1  # ranks that hold the layers together (training.sharding)
    critic_sees: CriticSees = "context"
    hand_over: str = "auto"  # of the engine in_process

    @property
    def value_bytes(self) -> int:
        """Bytes of a weight or activation of the base."""
        return FP32 if self.dtype == "float32" else 2

    @property
    def base_bytes(self) -> float:
        """Bytes of the frozen base; in 4 bits half a byte per weight of linear layers, and their constants.

        Where the base is sharded: a rank's part of the layers, and two layers that are gathered.
        """
        linear = sum(ins * outs for ins, outs in self.shape.linear_sizes)
        rest = (self.shape.parameters - linear) * self.value_bytes
        if self.execution.quantise != "none":
            return rest + linear * 0.53
        held = min(1.0, 1 / self.shards + 2 / self.shape.layers) if self.shards > 1 else 1.0
        return rest + held * linear * self.value_bytes

    def layer_bytes(self) -> float:
        """What autograd keeps of one layer for one token, with LoRA on every linear layer (counted on Qwen2's)."""
        shape, rank = self.shape, self.policy_lora.rank
        if self.dtype == "float32":
            return 24 * shape.hidden + 16 * shape.intermediate + 8 * shape.kv_size + 28 * rank + 16
        # Inputs of LoRA layers are kept in float32 beside the base's own.
        return 36 * shape.hidden + 10 * shape.intermediate + 4 * shape.kv_size + 28 * rank + 16

    def passing_bytes(self) -> float:
        """What a layer's forward pass holds of one token at its widest, without gradients."""
        return (2.8 * self.shape.intermediate + 4.2 * self.shape.hidden) * self.value_bytes

    def activations(self) -> float:
        """Bytes of one forward and backward pass over a micro-batch, or as much of it as is allowed at once."""
        tokens = self.micro_batch_rows * self.limits.max_total_tokens
        limit = self.execution.max_tokens
        tokens = min(tokens, max(limit, self.limits.max_total_tokens)) if limit else tokens
        kept = tokens * self.layer_bytes()
        if self.execution.gradient_checkpointing:
            kept += tokens * self.shape.layers * self.shape.hidden * self.value_bytes
        else:
            kept *= self.shape.layers
        rows = min(tokens * self._acting, self.execution.logits_rows)
        # The vocabulary's scores are there when the layers have passed, and gone when these propagate back.
        return kept + max(tokens * self.passing_bytes(), rows * self.shape.vocabulary * LOGIT_BYTES)

    @property
    def _acting(self) -> float:
        """The share of action tokens, at most."""
        return min(1.0, self.limits.max_turns * self.limits.max_turn_tokens / self.limits.max_total_tokens)

    def rolling_out(self) -> float:
        """Bytes of the in-process policy: its KV cache, and prompts read all at once.

        While rows move from one cache to the next, there are two.
        """
        rows = min(self.rollouts, MAX_OPEN)
        cache = float(
            rows * self.limits.max_total_tokens * self.shape.layers * 2 * self.shape.kv_size * self.value_bytes
        )
        reading = rows * (self.limits.max_total_tokens - self.limits.max_turn_tokens) * self.passing_bytes()
        return max(cache + reading, 2 * cache)

    def preparing(self) -> float:
        """Bytes of the passes that read reference log-probs and values."""
        tokens = min(self.rollouts, PREPARED_ROWS) * self.limits.max_total_tokens
        if self.execution.max_tokens:
            tokens = min(tokens, max(self.execution.max_tokens, self.limits.max_total_tokens))
        rows = min(tokens * self._acting, self.execution.logits_rows)
        return max(tokens * self.passing_bytes(), rows * self.shape.vocabulary * READ_LOGIT_BYTES)

    def parts(self) -> dict[str, float]:
        """Bytes by part; the last three are never held together."""
        trained = self.shape.lora_parameters(self.policy_lora) + self.shape.lora_parameters(self.critic_lora)
        trained += self.shape.hidden + 1 if self.critic_lora else 0
        parts = {
            "libraries": LIBRARIES_GIB["cpu" if self.device == "cpu" else "gpu"] * GIB,
            "base (policy, critic, reference)": self.base_bytes,
            "adapters and their optimiser": float(trained * ADAM_BYTES),
        }
        if self.in_process:
            quantised = self.execution.quantise != "none"
            form = form_for(self.dtype, quantised=quantised) if self.hand_over == "auto" else self.hand_over
            if form == "merged":
                parts["sampler's copy of the base"] = float(self.shape.parameters * self.value_bytes)
            else:
                parts["sampler's adapter, on the same base"] = float(
                    self.shape.lora_parameters(self.policy_lora) * FP32
                )
            parts["rollouts: KV cache and reading"] = self.rolling_out()
        parts["preparing: reference and values"] = self.preparing()
        parts["update: activations and logits"] = self.activations()
        return parts

    def peak(self) -> float:
        """Bytes at the worst moment."""
        parts = self.parts()
        moments = [name for name in parts if name.startswith(("rollouts:", "preparing:", "update:"))]
        return sum(size for name, size in parts.items() if name not in moments) + max(parts[name] for name in moments)


def load_of(config: Any, *, world_size: int) -> Load:
    """The work of one rank, from a parsed (not instantiated) configuration of `medagent train`."""
    model, data = config.model, config.data
    rollouts = data.num_questions * data.num_samples // world_size
    lora = [LoraSettings(each.rank, each.alpha) if each else None for each in (model.policy_lora, model.critic_lora)]
    limits = Limits(
        **vars(data.agent.limits)
    )  # the last passages may go over the limit, which is asked before the next turn
    assert lora[0] is not None, "the policy has an adapter"
    return Load(
        ModelShape.of(model.base_model),
        precision_of(config).dtype,
        lora[0],
        lora[1],
        Execution(**vars(model.execution)),
        replace(limits, max_total_tokens=limits.max_total_tokens + limits.max_observation_tokens),
        rollouts,
        -(-rollouts // (data.num_minibatches * data.num_micro_batches)),
        data.engine.class_path.rsplit(".", 1)[-1] == "InProcessEngine",
        "cpu" if config.trainer.accelerator == "cpu" else "gpu",
        world_size if _is_sharded(config.trainer.strategy) else 1,
        model.critic_sees,
        (vars(data.engine.init_args) if "init_args" in data.engine else {}).get("hand_over", "auto"),
    )


def precision_of(config: Any) -> Precision:
    """The dtype of the base on the device of a parsed configuration, and why."""
    device = "cpu" if config.trainer.accelerator == "cpu" else "cuda"
    return settled(config.model.dtype, config.model.base_model, device=device)


def _is_sharded(strategy: Any) -> bool:
    return str(getattr(strategy, "class_path", "")).rsplit(".", 1)[-1] == "ShardedBase"


def report(load: Load, *, world_size: int, memory_gib: float | None) -> str:
    """What a person wants to know before they start.

    Raises:
        ConfigError: the work of a rank does not fit into `memory_gib`.
    """
    shape, limits = load.shape, load.limits
    policy, critic = shape.lora_parameters(load.policy_lora), shape.lora_parameters(load.critic_lora)
    small = "no critic" if load.critic_sees == "context" else "a small network as critic"
    where = "process" if load.device == "cpu" else "GPU"
    lines = [
        f"base: {shape.parameters / 1e6:,.1f} M parameters in "
        f"{load.dtype if load.execution.quantise == 'none' else load.execution.quantise}, {shape.layers} layers, "
        f"vocabulary {shape.vocabulary:,}",
        f"trained: policy adapter {policy / 1e6:,.2f} M"
        + (f", critic adapter {critic / 1e6:,.2f} M" if critic else f", {small}"),
        f"an iteration: {load.rollouts * world_size:,} rollouts of at most {limits.max_total_tokens:,} tokens, "
        f"{load.rollouts * world_size * limits.max_total_tokens:,} in all; {load.micro_batch_rows} rollouts to a "
        f"micro-batch on each of {world_size} ranks",
        f"memory of a {where} (the largest of the lines marked * counts):",
        *(
            (
                f"  {'*' if name.startswith(('rollouts:', 'preparing:', 'update:')) else ' '} {name:34s} "
                f"{size / GIB:8.2f} GiB"
            )
            for name, size in load.parts().items()
        ),
        f"    {'together, at the worst moment':34s} {load.peak() / GIB:8.2f} GiB",
    ]
    if not load.in_process:
        cache = limits.max_total_tokens * shape.layers * 2 * shape.kv_size * load.value_bytes
        lines.append(
            f"the sampler beside it: {shape.parameters * load.value_bytes / GIB:.2f} GiB of weights, and "
            f"{cache / GIB:.3f} GiB of KV cache for a rollout of full length"
        )
    text = "\n".join(lines)
    if memory_gib is not None and load.peak() > memory_gib * GIB:
        largest = max(load.parts().items(), key=lambda part: part[1])[0]
        raise ConfigError(
            f"{text}\nThis does not fit: {load.peak() / GIB:.2f} GiB found, {memory_gib:.2f} GiB wanted. The largest "
            f"part is {largest}. Lower model.execution.max_tokens or data.agent.limits.max_total_tokens, switch on "
            "model.execution.gradient_checkpointing, take model.execution.quantise nf4, shard the base over several "
            "GPUs (configs/hardware/sharded.yaml), or choose a smaller base."
        )
    return text


def available_gib(device: str) -> float | None:
    """Memory of the first GPU, or of this machine; none where a GPU is asked for and there is none here."""
    if device != "cpu":
        return torch.cuda.get_device_properties(0).total_memory / GIB if torch.cuda.is_available() else None
    return float(psutil.virtual_memory().total) / GIB


def beside_vllm(engine: Any) -> float:
    """The trainer's share of a GPU: what vLLM leaves where both are on it at once."""
    if engine.class_path.rsplit(".", 1)[-1] != "VllmEngine":
        return 1.0
    settings = engine.init_args
    apart = settings.colocated or settings.settings.devices
    return 1.0 if apart else 1.0 - float(settings.settings.gpu_memory)


def plan(args: list[str]) -> None:
    """Print what a configuration of `medagent train` needs.

    `--memory_gib` says what a device has, if it is not the one here.
    """
    parser = AgentParser(prog="medagent plan", description=str(plan.__doc__))
    parser.add_lightning_class_args(Trainer, "trainer")
    parser.add_lightning_class_args(AgentModule, "model")
    parser.add_lightning_class_args(RolloutData, "data")
    parser.add_argument("--seed_everything", type=int, default=0)
    parser.add_argument("--config", action="config")
    parser.add_argument("--memory_gib", type=float | None, default=None, help="memory of a GPU, or of the machine")
    config = parser.parse_args(args)
    devices = config.trainer.devices
    count = len(devices) if isinstance(devices, list) else int(devices) if str(devices).isdigit() else 1
    world_size = count * config.trainer.num_nodes
    load = load_of(config, world_size=world_size)
    room = config.memory_gib if config.memory_gib is not None else available_gib(load.device)
    share = beside_vllm(config.data.engine) if load.device != "cpu" else 1.0
    room = room * share if room is not None else None
    print(report(load, world_size=world_size, memory_gib=room))
    print(
        f"there for the trainer: {room:.2f} GiB"
        if room
        else "there: no GPU on this machine; --memory_gib says what yours has"
    )

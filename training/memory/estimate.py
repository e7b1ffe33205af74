"""The memory of a training run: one formula for `medagent plan` and for the run itself.

Autograd's memory of a layer is linear in its sizes (docs/scaling.md). Every rollout counts as long as limits allow.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import psutil
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.pytorch_utils import Conv1D

from medagent.errors import ConfigError
from medagent.models.base_models import model_path
from medagent.models.causal_lm import has_experts
from medagent.models.plain_lora import form_for
from medagent.training.execution import Execution, TokenLimit
from medagent.training.lora import LoraSettings
from medagent.types import Limits

GIB = 2**30
FP32 = 4
ADAM_BYTES = 16  # weight, gradient and two moments of a trained parameter, all in float32
# An update's bytes per action token and vocabulary entry: scores, log-softmax, probabilities or a gradient.
LOGIT_BYTES = 12
READ_LOGIT_BYTES = 8  # the same where nothing is propagated back
# Memory that glibc holds in an update, relative to its tensors (measured with SmolLM2). Before 2.38 it hardly fits
# aligned blocks into those that were freed.
KEPT_BLOCKS = 1.6
MAX_OPEN = 512  # rollouts sampled at once
SHARE = 0.5  # of the free memory, for an update
OWN_GROUPS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
FIRST_GROUPS = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
SECOND_GROUPS = ("memory.max", "memory.current", "inactive_file")
PREPARED_ROWS = 32  # rollouts read at once before the update, where there is no limit of tokens
ROLLOUTS, PREPARING, UPDATE = MOMENTS = (
    "rollouts: KV cache and reading",
    "preparing: reference and values",
    "update: activations and logits",
)
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
    def of(base_model: str) -> "ModelShape":
        """The shape of a base model, by hub name or folder."""
        try:
            config = AutoConfig.from_pretrained(model_path(base_model), trust_remote_code=False)
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"base model {base_model!r}: its configuration cannot be read ({error}). Give a hub name (with a "
                "network or a filled cache) or a folder."
            ) from error
        head = model.get_output_embeddings()
        linear = tuple(
            _sizes(module)
            for module in model.get_decoder().modules()
            if isinstance(module, torch.nn.Linear | Conv1D) and module is not head
        )
        # A wrapper of several models holds the decoder's configuration in its own.
        shape = ModelShape._from_config(
            config.get_text_config(decoder=True), sum(parameter.numel() for parameter in model.parameters()), linear
        )
        if not has_experts(model):
            return shape
        each = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
        return replace(shape, intermediate=config.num_experts_per_tok * each)

    @staticmethod
    def _from_config(
        config: PretrainedConfig, parameters: int, linear_sizes: tuple[tuple[int, int], ...]
    ) -> "ModelShape":
        try:
            hidden, heads = int(config.hidden_size), int(config.num_attention_heads)
            layers, vocabulary = int(config.num_hidden_layers), int(config.vocab_size)
        except (AttributeError, TypeError) as error:
            raise ConfigError(
                f"base model: {type(config).__name__} does not tell its sizes ({error}), wanted hidden_size, "
                "num_attention_heads, num_hidden_layers and vocab_size. Its memory cannot be planned; set "
                "model.execution.max_tokens to train it."
            ) from error
        head_dim = getattr(config, "head_dim", None) or hidden // heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        # The last layer of a feed-forward block reads the widest vector.
        intermediate = getattr(config, "intermediate_size", None) or max(ins for ins, _ in linear_sizes)
        return ModelShape(hidden, intermediate, layers, kv_heads * head_dim, vocabulary, parameters, linear_sizes)

    def lora_parameters(self, lora: LoraSettings | None) -> int:
        """Parameters of one adapter."""
        return sum(lora.rank * (ins + outs) for ins, outs in self.linear_sizes) if lora else 0


def _sizes(layer: torch.nn.Linear | Conv1D) -> tuple[int, int]:
    """Inputs and outputs of a linear layer; GPT-2's keeps its weight the other way round."""
    return (layer.nx, layer.nf) if isinstance(layer, Conv1D) else (layer.in_features, layer.out_features)


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
    device: Literal["cpu", "gpu"] = "cpu"  # on a CPU freed blocks stay with the process
    weight_sync: str = "auto"  # of the engine in_process

    @property
    def value_bytes(self) -> int:
        """Bytes of a weight or activation of the base."""
        return FP32 if self.dtype == "float32" else 2

    def _read_at_once(self, rollouts: int) -> int:
        """Tokens of so many rollouts, or as many as the limit allows at once."""
        longest, limit = self.limits.max_total_tokens, self.execution.token_limit
        return min(rollouts * longest, max(limit, longest)) if limit else rollouts * longest

    @property
    def base_bytes(self) -> float:
        """Bytes of the frozen base, also in 4 bits."""
        linear = sum(ins * outs for ins, outs in self.shape.linear_sizes)
        each = self.value_bytes if self.execution.quantise == "none" else 0.53
        return (self.shape.parameters - linear) * self.value_bytes + linear * each

    def layer_bytes(self) -> float:
        """Bytes that autograd keeps per layer and token, with LoRA on every linear layer (counted on Qwen2's)."""
        shape, rank = self.shape, self.policy_lora.rank
        if self.dtype == "float32":
            return 24 * shape.hidden + 16 * shape.intermediate + 8 * shape.kv_size + 28 * rank + 16
        if self.execution.quantise != "none":  # peft keeps inputs of LoRA layers in float32 beside the base's own
            return 36 * shape.hidden + 10 * shape.intermediate + 4 * shape.kv_size + 28 * rank + 16
        return 18 * shape.hidden + 8 * shape.intermediate + 4 * shape.kv_size + 16

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values of one token in all layers."""
        return self.shape.layers * 2 * self.shape.kv_size * self.value_bytes

    def passing_bytes(self) -> float:
        """Bytes that a layer's forward pass holds per token at its widest, without gradients."""
        return (2.8 * self.shape.intermediate + 4.2 * self.shape.hidden) * self.value_bytes

    def activations(self) -> float:
        """Bytes of one forward and backward pass over a micro-batch, or as much of it as is allowed at once."""
        tokens = self._read_at_once(self.micro_batch_rows)
        kept = tokens * self.layer_bytes()
        if self.execution.gradient_checkpointing:
            kept += tokens * self.shape.layers * self.shape.hidden * self.value_bytes
        else:
            kept *= self.shape.layers
        rows = min(tokens * self._acting, self.execution.logits_rows)
        # The vocabulary's scores are there when the layers have passed, and gone when these propagate back.
        needed = kept + max(tokens * self.passing_bytes(), rows * self.shape.vocabulary * LOGIT_BYTES)
        return needed * (KEPT_BLOCKS if self.device == "cpu" else 1.0)

    @property
    def _acting(self) -> float:
        """The share of action tokens, at most."""
        return min(1.0, self.limits.max_turns * self.limits.max_turn_tokens / self.limits.max_total_tokens)

    def rolling_out(self) -> float:
        """Bytes of the policy in process: prompts read all at once, or two KV caches while rows move."""
        rows = min(self.rollouts, MAX_OPEN)
        cache = float(rows * self.limits.max_total_tokens * self.cache_bytes)
        reading = rows * (self.limits.max_total_tokens - self.limits.max_turn_tokens) * self.passing_bytes()
        return max(cache + reading, 2 * cache)

    def preparing(self) -> float:
        """Bytes of the passes that read reference log-probs and values."""
        tokens = self._read_at_once(min(self.rollouts, PREPARED_ROWS))
        rows = min(tokens * self._acting, self.execution.logits_rows)
        return max(tokens * self.passing_bytes(), rows * self.shape.vocabulary * READ_LOGIT_BYTES)

    def parts(self) -> dict[str, float]:
        """Bytes by part; the last three are never held together."""
        trained = self.shape.lora_parameters(self.policy_lora) + self.shape.lora_parameters(self.critic_lora)
        trained += self.shape.hidden + 1 if self.critic_lora else 0
        parts = {
            "libraries": LIBRARIES_GIB[self.device] * GIB,
            "base (policy, critic, reference)": self.base_bytes,
            "adapters and their optimiser": float(trained * ADAM_BYTES),
        }
        if self.in_process:
            quantised = self.execution.quantise != "none"
            form = form_for(self.dtype, quantised=quantised) if self.weight_sync == "auto" else self.weight_sync
            if form == "merged":
                parts["sampler's copy of the base"] = float(self.shape.parameters * self.value_bytes)
            else:
                adapter = float(self.shape.lora_parameters(self.policy_lora) * FP32)
                parts["sampler's adapter, on the same base"] = adapter
            parts[ROLLOUTS] = self.rolling_out()
        parts[PREPARING] = self.preparing()
        parts[UPDATE] = self.activations()
        return parts

    def passing(self) -> float:
        """Bytes while the base is passed: the worst moment that the limit of tokens governs."""
        return self.peak((PREPARING, UPDATE))

    def peak(self, moments: tuple[str, ...] = MOMENTS) -> float:
        """Bytes at the worst moment."""
        parts = self.parts()
        held = sum(size for name, size in parts.items() if name not in MOMENTS)
        return held + max(size for name, size in parts.items() if name in moments)


def fit_token_limit(load: Load, free: float) -> TokenLimit:
    """The limit of tokens, in rollouts of full length, with which an update fits into half of `free` bytes."""
    room, longest = SHARE * free, load.limits.max_total_tokens

    def needed(max_tokens: int) -> float:
        return replace(load, execution=replace(load.execution, max_tokens=max_tokens)).passing()

    whole = needed(0)
    if whole <= room:
        return TokenLimit(0, f"an update needs {_gib(whole)} at once, and half of the free memory is {_gib(room)}")
    most = max(load.micro_batch_rows, min(load.rollouts, PREPARED_ROWS))
    rows = next((rows for rows in range(most, 0, -1) if needed(rows * longest) <= room), 0)
    if not rows:
        return TokenLimit(
            longest,
            f"one rollout of {longest:,} tokens needs {_gib(needed(longest))}, more than half of the free memory, "
            f"{_gib(room)}, and cannot be split",
        )
    return TokenLimit(
        rows * longest,
        f"{rows} rollouts of {longest:,} tokens need {_gib(needed(rows * longest))} at once, an update in one piece "
        f"{_gib(whole)}, and half of the free memory is {_gib(room)}",
    )


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"


def free_memory(device: torch.device, *, sharing: int = 1) -> float:
    """Bytes that this process could hold, of its control group or machine, among `sharing` processes."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device))
    room = min(float(psutil.virtual_memory().available), _room_in_group())
    return room / sharing + float(psutil.Process().memory_info().rss)


def _room_in_group() -> float:
    """Bytes left to the control groups that this process is in (Linux, version 1 and 2); infinite without a limit."""
    room, lines = math.inf, OWN_GROUPS.read_text(encoding="utf-8").splitlines() if OWN_GROUPS.exists() else []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers and "memory" not in controllers.split(","):
            continue
        top = GROUPS / "memory" if controllers else GROUPS
        limit, used, cached = FIRST_GROUPS if controllers else SECOND_GROUPS
        for group in (top / path.lstrip("/"), *(top / path.lstrip("/")).parents):
            try:
                most = (group / limit).read_text(encoding="utf-8").strip()
                held = int((group / used).read_text(encoding="utf-8"))
                kept = dict(line.split() for line in (group / "memory.stat").read_text(encoding="utf-8").splitlines())
            except OSError:
                continue  # not there: the group is outside of this container's view, or the top one
            if most != "max":
                room = min(room, float(int(most) - held + int(kept.get(cached, 0))))
    return max(0.0, room)

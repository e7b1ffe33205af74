"""Words for the settings that no docstring of the project names; they go before what a parser says."""

from __future__ import annotations

WORDS: dict[str, str] = {
    "config": "A YAML file of settings; several are laid over each other, the last one on top.",
    "seed_everything": "Seed of the random generators of Python, NumPy and torch; true draws one.",
    "overwrite": "Discard the run that the folder holds, and begin anew.",
    "memory_gib": "Memory of the GPU, or of the machine, in GiB; none takes what is there.",
    "model.base_model": "The base: a hub name, a folder, or `starter`, the packaged one.",
    "model.dtype": "The base's precision: `float32`, `bfloat16` or `float16`.",
    "model.policy_lora.rank": "Rank of the policy's LoRA.",
    "model.policy_lora.alpha": "Its alpha: the update is scaled by alpha / rank.",
    "model.policy_lr": "AdamW's learning rate for the policy.",
    "model.critic_lr": "AdamW's learning rate for the critic.",
    "model.weight_decay": "AdamW's weight decay.",
    "model.entropy_coef": "Weight of the entropy bonus, per nat.",
    "model.value_clip": "How far a value may move from that before the update; none does not clip.",
    "model.policy_max_grad_norm": "L2 norm to which the policy's gradient is clipped.",
    "model.critic_max_grad_norm": "L2 norm to which the critic's gradient is clipped.",
    "data.agent.limits.max_turns": "Turns per rollout.",
    "data.agent.limits.max_turn_tokens": "Sampled tokens per turn.",
    "data.agent.limits.max_observation_tokens": "Tokens of passages per search; what exceeds them is cut.",
    "data.agent.limits.max_total_tokens": "Tokens per rollout, asked before each turn.",
    "data.agent.top_k": "Passages per search.",
    "data.num_micro_batches": "Micro-batches per optimizer step; equal to the trainer's `accumulate_grad_batches`.",
    "data.reduction": "How tokens weigh: all tokens of a step alike, or all rollouts alike.",
    "data.seed": "Seed of the order of questions, of sampling and of minibatches.",
}

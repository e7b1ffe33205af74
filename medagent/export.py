"""`medagent export`: an agent as one ordinary model with a model card. transformers, vLLM and medagent load it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from medagent.agent_folder import AgentSpec, load_weights, read_spec, save_agent
from medagent.errors import ConfigError
from medagent.files import write_whole
from medagent.protocol import NOT_ADVICE
from medagent.run_folder import RunFolder

WATCHED = ("validation/accuracy", "reward/success", "rollout/searches", "rollout/valid_answer", "sft/loss")


def export_merged(agent: Path, out: Path, *, overwrite: bool = False) -> None:
    """Write an agent to `out` as one model.

    The folder holds the base with the adapter merged in (safetensors), the tokenizer, the model card (README.md) and
    agent.json. Raises `ConfigError` where `out` holds other files, or an export and `overwrite` is false.
    """
    spec = read_spec(agent)
    folder = RunFolder(out, "export")
    folder.refuse_others()
    if folder.is_marked and not overwrite:
        raise ConfigError(f"{out}: holds an export. Give another folder with --out, or --overwrite.")
    model, tokenizer = load_weights(agent, spec)
    fresh = out.with_name(out.name + ".part")
    shutil.rmtree(fresh, ignore_errors=True)
    save_agent(fresh, replace(spec, base_model="."), tokenizer)
    model.save_pretrained(fresh)
    write_whole(fresh / "README.md", model_card(spec, agent))
    RunFolder(fresh, "export").mark()
    if out.exists():
        shutil.rmtree(out)
    fresh.rename(out)
    size = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    print(f"Exported {agent} to {out}: {size:,.1f} MB. vllm serve {out}, or medagent evaluate --agent {out}.")


def model_card(spec: AgentSpec, agent: Path) -> str:
    """Base, data, algorithm, metrics, protocol and limits, in the form that model hubs show."""
    metrics = {name: spec.metrics[name] for name in WATCHED if name in spec.metrics}
    limits = spec.limits
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        *([] if spec.base_model == "." else [f"base_model: {json.dumps(spec.base_model)}"]),
        "tags: [medagent, medical, search-agent]",
        "---",
        f"# {agent.resolve().parent.name}: a medical search agent",
        "",
        f"> {NOT_ADVICE} It was not evaluated for use on patients.",
        "",
        "A language model that answers a clinical question over several turns: it thinks, searches a corpus, reads "
        "what comes back, and answers with citations. It was trained with medagent; the LoRA adapter is merged into "
        "the weights.",
        "",
        "## How it was made",
        "",
        f"- base model: {spec.base_model}, {spec.dtype}",
        *(f"- {name.replace('_', ' ')}: {value}" for name, value in spec.training.items()),
        "",
        "## Measured in training",
        "",
        *(f"- {name}: {value:.4f}" for name, value in metrics.items()),
        *([] if metrics else ["- nothing was recorded"]),
        "",
        "These are figures of the training run, not of a benchmark: measure it with `medagent evaluate`.",
        "",
        "## How to use it",
        "",
        "It expects the dialogue that it was trained in: the prompt of agent.json (`protocol`), "
        f"{spec.protocol.described()}. `medagent ask --agent THIS_FOLDER --index INDEX` does all that.",
        *(
            ["", f"It calls tools whose code is not here: {', '.join(spec.tools)}. Give them with `--tools`."]
            if spec.tools
            else []
        ),
        "",
        "## Limits",
        "",
        (
            f"- at most {limits.max_turns} turns of {limits.max_turn_tokens} tokens, {limits.max_observation_tokens} "
            f"tokens of passages per search, {limits.max_total_tokens} in all"
        ),
        ("- without search results, or with misleading ones, its answers are not to be trusted"),
        "- a citation says which passage it names, not that the passage is right",
        "- it knows no patient, no date, and nothing that its corpus does not hold",
    ]
    return "\n".join(lines) + "\n"

"""`medagent export`: an agent as one ordinary model, or as its adapter, with a model card."""

import copy
import json
import shutil
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import cast

import torch
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel

from medagent.agent_folder import save_agent
from medagent.agent_spec import AgentSpec, read_spec
from medagent.errors import ConfigError
from medagent.files import write_whole
from medagent.models.agent_weights import adapter_folder, base_path, has_adapter, load_base
from medagent.models.base_models import public_name
from medagent.models.plain_lora import MAX_MERGE_LOST, check_adapter, merge_into, with_adapter
from medagent.protocol import NOT_ADVICE
from medagent.run_folder import RunFolder

WATCHED = ("validation/accuracy", "reward/success", "rollout/searches", "rollout/valid_answer", "sft/loss")


def export_merged(
    agent: Path, out: Path, *, dtype: str | None = None, max_merge_lost: float = MAX_MERGE_LOST, overwrite: bool = False
) -> None:
    """Write an agent to `out` as one model, with the adapter merged into the base.

    The merge is made in float32 on the base as it was trained on, and rounded once to `dtype`, by default the agent's
    own. A base in 4 bits is dequantised first.

    Raises:
        ConfigError: rounding would take more than `max_merge_lost` of the adapter, or it is not plain LoRA; or `out`
            holds other files, or an export and `overwrite` is false.
    """
    spec = read_spec(agent)
    kind = getattr(torch, dtype or spec.dtype, None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise ConfigError(f"dtype {dtype!r}: not a torch type of floats. Use float32, bfloat16 or float16.")
    fresh = _begun(out, overwrite)
    if has_adapter(agent):
        check_adapter(adapter_folder(agent))
    model, tokenizer = load_base(agent, spec)
    model = model.dequantize() if spec.quantise != "none" else model
    torch.nn.Module.to(model, kind)
    lost = 0.0
    if has_adapter(agent):
        adapted = with_adapter(model, adapter_folder(agent))
        loss = merge_into(adapted)
        loss.require(
            max_merge_lost,
            where=f"export of {agent} in {str(kind).removeprefix('torch.')}",
            remedy="Export with --dtype float32, or export the adapter with --form adapter. --max_merge_lost 1 "
            "writes the other policy all the same.",
        )
        lost, model = loss.share, cast(PreTrainedModel, adapted.get_base_model())
    merged = replace(spec, base_model=".", base_sha256="", dtype=str(kind).removeprefix("torch."), quantise="none")
    save_agent(fresh, merged, tokenizer)
    if model.generation_config is not None:
        model.generation_config = _storable(model.generation_config, spec.base_model)
    model.save_pretrained(fresh)
    made = f"The LoRA adapter is merged into the weights; rounding took {lost:.2%} of its change."
    size = _publish(fresh, out, model_card(spec, agent, made=made))
    print(
        f"Exported {agent} to {out}: {size:,.1f} MB, {lost:.2%} of the adapter lost to rounding. vllm serve {out}, or "
        f"medagent evaluate --agent {out}."
    )


def _storable(given: GenerationConfig, base: str) -> GenerationConfig:
    """The settings of generation without those that transformers refuses to write, such as an unused temperature."""
    if _valid(given):
        return given
    kept, left = type(given)(), list[str]()
    for name in sorted(given.to_diff_dict(), key=lambda name: name not in ("do_sample", "num_beams")):
        tried = copy.deepcopy(kept)
        setattr(tried, name, vars(given).get(name))
        kept = tried if _valid(tried) else kept
        left += [] if kept is tried else [f"{name} {vars(given).get(name)!r}"]
    if left:
        print(f"generation_config.json: found {', '.join(left)} in {base}'s, which transformers refuses. Left out.")
    return kept


def _valid(settings: GenerationConfig) -> bool:
    try:
        settings.validate(strict=True)
    except (ValueError, TypeError, AttributeError):
        return False
    return True


def export_adapter(agent: Path, out: Path, *, overwrite: bool = False) -> None:
    """Write an agent to `out` as its adapter alone, with tokenizer, agent.json and model card; the base stays apart.

    Nothing is rounded. Raises `ConfigError` for an agent without an adapter, and as `export_merged` does.
    """
    spec = read_spec(agent)
    if not has_adapter(agent):
        raise ConfigError(f"agent {agent}: found no adapter. Leave --form adapter out.")
    check_adapter(adapter_folder(agent))
    fresh = _begun(out, overwrite)
    save_agent(fresh, spec, AutoTokenizer.from_pretrained(agent, trust_remote_code=False))
    shutil.copytree(adapter_folder(agent), fresh / "adapter")
    base = f"4 bits ({spec.quantise})" if spec.quantise != "none" else spec.dtype
    made = f"The folder `adapter` holds the LoRA alone. It belongs to the base model below, in {base}."
    size = _publish(fresh, out, model_card(spec, agent, made=made))
    print(
        f"Exported {agent} to {out}: {size:,.1f} MB, the adapter alone. medagent evaluate --agent {out}, or vllm serve "
        f"{base_path(agent, spec)} --enable-lora --lora-modules NAME={out / 'adapter'}."
    )


def _begun(out: Path, overwrite: bool) -> Path:
    """The folder beside `out` in which the export is written; refuses an `out` that is taken."""
    folder = RunFolder(out, "export")
    folder.refuse_others()
    if folder.is_marked and not overwrite:
        raise ConfigError(f"{out}: holds an export. Give another folder with --out, or --overwrite.")
    fresh = out.with_name(out.name + ".part")
    shutil.rmtree(fresh, ignore_errors=True)
    return fresh


def _publish(fresh: Path, out: Path, card: str) -> float:
    """Write the model card, and put the finished folder in its place; returns its size in MB."""
    write_whole(fresh / "README.md", card)
    RunFolder(fresh, "export").mark()
    if out.exists():
        shutil.rmtree(out)
    fresh.rename(out)
    return sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e6


def model_card(spec: AgentSpec, agent: Path, *, made: str) -> str:
    """Base, data, algorithm, metrics, protocol and limits, in the form that model hubs show; `made`: the weights."""
    measured = [f"- {name}: {spec.metrics[name]:.4f}" for name in WATCHED if name in spec.metrics]
    tools = f"\nIt calls tools whose code is not here: {', '.join(spec.tools)}. Give them with `--tools`.\n"
    text = files("medagent").joinpath("model_card.txt").read_text(encoding="utf-8")
    return text.format(
        base="" if spec.base_model == "." else f"base_model: {json.dumps(public_name(spec.base_model))}\n",
        name=agent.resolve().parent.name,
        notice=NOT_ADVICE,
        made=made,
        spec=spec,
        training="".join(f"\n- {name.replace('_', ' ')}: {value}" for name, value in spec.training.items()),
        measured="\n".join(measured or ["- nothing was recorded"]),
        protocol=spec.protocol.described(),
        tools=tools if spec.tools else "",
    )

"""An agent on disk. The folder holds everything needed to run it, except the base model, which it names.

agent.json   base model ("." where the folder holds its weights), protocol, limits, retriever settings, metrics
adapter/     LoRA weights (safetensors); absent in a base policy           tokenizer files
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from medagent.agent import Agent
from medagent.agent_spec import AgentSpec, RetrieverSpec, read_spec, write_spec
from medagent.errors import ConfigError
from medagent.models.base_models import check_base, model_path
from medagent.models.causal_lm import fastest_device, load_causal_lm
from medagent.models.merging import form_for, merge_into
from medagent.models.plain_lora import check_adapter, with_adapter
from medagent.models.text_length import check_text_length
from medagent.policies.huggingface import HFPolicy
from medagent.policy import Policy
from medagent.retrieval.embedders import embedder_from_identity
from medagent.retrieval.opening import URL, folders_named, open_retriever
from medagent.retrieval.remote import RemoteRetriever
from medagent.retrieval.retriever import Retriever
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.settings import SearchSettings
from medagent.retrieval.sharded import ShardedRetriever
from medagent.retrieval.tools import Tool, Toolbox, class_path, corpus_of

MOVED_TOGETHER = 3  # folders above the agent, and last parts of the index's path, that a move may have kept

OpenPolicy = Callable[[Path, AgentSpec], Policy]


def retriever_spec(retriever: Retriever) -> RetrieverSpec | None:
    """The specification of a retriever that lives in a folder or is served, None for any other."""
    retriever = corpus_of(retriever)
    if isinstance(retriever, RemoteRetriever):
        return RetrieverSpec(retriever.url, "", SearchSettings(), str(retriever.where))
    if not isinstance(retriever, HybridRetriever | ShardedRetriever):
        return None
    folders = retriever.folders if isinstance(retriever, ShardedRetriever) else (retriever.folder,)
    index = ",".join(str(folder.resolve()) for folder in folders)
    return RetrieverSpec(index, retriever.embedder.identity, retriever.settings, str(retriever.where))


def open_spec(spec: RetrieverSpec, index: str | None = None, *, beside: Path | None = None) -> Retriever:
    """The retriever; `index` overrides the folder or address (another corpus, or the same one elsewhere).

    An index that is not in its place is looked for around the agent's folder `beside`: both may have been moved.

    Raises:
        ConfigError: it is not there either.
    """
    where = index or spec.index
    if where.startswith(URL):
        return open_retriever(where, where=spec.where)
    if index is None and beside is not None:
        where = ",".join(_found(Path(folder), beside) for folder in folders_named(where))
    if not spec.embedder:
        return open_retriever(where, where=spec.where)
    embedder, folders = embedder_from_identity(spec.embedder), folders_named(where)
    if len(folders) == 1:
        return HybridRetriever(where, embedder, settings=spec.search, where=spec.where)
    return ShardedRetriever(folders, embedder, settings=spec.search, where=spec.where)


def save_agent(folder: Path, spec: AgentSpec, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write agent.json and the tokenizer. The caller saves the adapter beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    write_spec(folder, spec)


def load_agent(
    folder: Path,
    *,
    retriever: Retriever | None = None,
    index: str | None = None,
    tools: Sequence[Tool] = (),
    lockstep: bool = True,
    open_policy: OpenPolicy | None = None,
) -> Agent:
    """An agent that is ready to run, with its own retriever or with another.

    Its policy is its base model in this process with the adapter merged in. `open_policy` replaces that: it makes a
    policy from the folder.
    """
    spec = read_spec(folder)
    if retriever is None:
        _check_tools(folder, {class_path(tool) for tool in tools}, set(spec.tools))
        if spec.retriever is not None:
            retriever = open_spec(spec.retriever, index, beside=folder)
        elif index is not None:
            retriever = open_retriever(index)
        else:
            raise ConfigError(f"agent {folder}: names no index to search. Give one with --index.")
        retriever = Toolbox(retriever, list(tools)) if tools else retriever
    policy = open_policy(folder, spec) if open_policy else in_process(folder, spec, lockstep=lockstep)
    return Agent(policy, retriever, spec.protocol, spec.limits, spec.top_k)


def _found(index: Path, agent: Path) -> str:
    """The index's folder, or the one of the same place relative to the agent's folder or a folder above it."""
    if index.exists():
        return str(index)
    for above in (agent.resolve(), *agent.resolve().parents[:MOVED_TOGETHER]):
        for kept in range(min(MOVED_TOGETHER, len(index.parts) - 1), 0, -1):
            moved = above.joinpath(*index.parts[-kept:])
            if (moved / "manifest.json").exists():
                print(f"agent {agent}: its index {index} is not there, and {moved} is taken.", file=sys.stderr)
                return str(moved)
    raise ConfigError(
        f"agent {agent}: its index {index} is not there, nor around the agent's folder. Give its folder with --index."
    )


def _check_tools(folder: Path, given: set[str], wanted: set[str]) -> None:
    if given == wanted:
        return
    remedy = (
        f"Give --tools '[{', '.join(sorted(wanted))}]', and run the command where their files lie."
        if wanted
        else "Leave --tools out: it was trained without tools."
    )
    raise ConfigError(f"agent {folder}: found the tools {sorted(given)}, wanted {sorted(wanted)}. {remedy}")


def in_process(folder: Path, spec: AgentSpec, *, lockstep: bool) -> HFPolicy:
    """The agent's policy in this process. Raises `ConfigError` where its limits exceed the texts its model reads."""
    model, tokenizer = load_weights(folder, spec)
    check_text_length(model.config, spec.limits.max_total_tokens, f"agent {folder}")
    return HFPolicy(model, tokenizer, lockstep=lockstep)


def base_path(folder: Path, spec: AgentSpec) -> str:
    """What transformers and vLLM load as an agent's base: a folder, or a hub name.

    Raises:
        ConfigError: it is a GGUF file that is absent, or another one than that of training.
    """
    if spec.base_model == ".":
        return str(folder.resolve())
    check_base(spec.base_model, spec.base_sha256, f"agent {folder}")
    return model_path(spec.base_model, spec.base_sha256)


def load_base(folder: Path, spec: AgentSpec) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The base as the adapter was trained on it, in the same dtype and quantisation, and the tokenizer."""
    name = base_path(folder, spec)
    return load_causal_lm(name, dtype=spec.dtype, device=fastest_device(), four_bit=spec.quantise == "nf4")


def load_weights(folder: Path, spec: AgentSpec) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The agent's model as it was trained, and the tokenizer.

    The adapter is merged into a base in float32, and lies beside any other: see `medagent.models.merging.form_for`.
    """
    if has_adapter(folder):
        check_adapter(adapter_folder(folder))  # before the base is loaded, which may take long
    model, tokenizer = load_base(folder, spec)
    if has_adapter(folder):
        adapted = with_adapter(model, adapter_folder(folder))
        if form_for(spec.dtype, quantised=spec.quantise != "none") == "merged":
            merge_into(adapted)
        model = cast(PreTrainedModel, adapted.get_base_model())
    return model, tokenizer


def has_adapter(folder: Path) -> bool:
    """Whether an agent's folder holds an adapter; a base policy and a merged export have none."""
    return (folder / "adapter").exists()


def adapter_folder(folder: Path) -> Path:
    """Peft writes a named adapter into a folder of that name."""
    named = folder / "adapter" / "policy"
    return named if named.exists() else folder / "adapter"

"""An agent on disk. The folder holds everything needed to run it, except the base model, which it names.

agent.json   base model ("." where the folder holds its weights), protocol, limits, retriever settings, metrics
adapter/     LoRA weights (safetensors); absent in a base policy           tokenizer files
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from medagent.agent import Agent, Limits
from medagent.errors import ConfigError
from medagent.models.base_models import check_base, model_path
from medagent.models.causal_lm import fastest_device, load_causal_lm
from medagent.models.merging import form_for, merge_into
from medagent.models.plain_lora import check_adapter, with_adapter
from medagent.models.text_length import check_text_length
from medagent.policies.huggingface import HFPolicy
from medagent.policy import Policy
from medagent.protocol import NOT_ADVICE, TurnProtocol
from medagent.retrieval.embedders import embedder_from_identity
from medagent.retrieval.opening import URL, folders_named, open_retriever
from medagent.retrieval.remote import RemoteRetriever
from medagent.retrieval.retriever import Retriever
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.settings import SearchSettings
from medagent.retrieval.sharded import ShardedRetriever
from medagent.retrieval.tools import Tool, Toolbox, class_path, corpus_of

SPEC_FILE = "agent.json"
FORMAT = 3
MOVED_TOGETHER = 3  # folders above the agent, and last parts of the index's path, that a move may have kept


@dataclass(frozen=True)
class RetrieverSpec:
    """Which index an agent searches, and how. A served index has its own settings; `index` is then its address.

    Several folders have commas between them.
    """

    index: str
    embedder: str
    search: SearchSettings
    where: str = ""  # the filter of every search, see retrieval.filters

    @staticmethod
    def from_json(row: dict[str, Any]) -> RetrieverSpec:
        """The inverse of `asdict`."""
        return RetrieverSpec(row["index"], row["embedder"], SearchSettings(**row["search"]), row.get("where", ""))

    @staticmethod
    def of(retriever: Retriever) -> RetrieverSpec | None:
        """The specification of a retriever that lives in a folder or is served, None for any other."""
        retriever = corpus_of(retriever)
        if isinstance(retriever, RemoteRetriever):
            return RetrieverSpec(retriever.url, "", SearchSettings(), str(retriever.where))
        if not isinstance(retriever, HybridRetriever | ShardedRetriever):
            return None
        folders = retriever.folders if isinstance(retriever, ShardedRetriever) else (retriever.folder,)
        index = ",".join(str(folder.resolve()) for folder in folders)
        return RetrieverSpec(index, retriever.embedder.identity, retriever.settings, str(retriever.where))

    def open(self, index: str | None = None, *, beside: Path | None = None) -> Retriever:
        """The retriever; `index` overrides the folder or address (another corpus, or the same one elsewhere).

        An index that is not in its place is looked for around the agent's folder `beside`: both may have been moved.

        Raises:
            ConfigError: it is not there either.
        """
        where = index or self.index
        if where.startswith(URL):
            return open_retriever(where, where=self.where)
        if index is None and beside is not None:
            where = ",".join(_found(Path(folder), beside) for folder in folders_named(where))
        if not self.embedder:
            return open_retriever(where, where=self.where)
        embedder, folders = embedder_from_identity(self.embedder), folders_named(where)
        if len(folders) == 1:
            return HybridRetriever(where, embedder, settings=self.search, where=self.where)
        return ShardedRetriever(folders, embedder, settings=self.search, where=self.where)


@dataclass(frozen=True)
class AgentSpec:
    """The contents of agent.json."""

    base_model: str
    dtype: str
    protocol: TurnProtocol
    limits: Limits
    top_k: int
    retriever: RetrieverSpec | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    training: Mapping[str, str] = field(default_factory=dict)  # how it was made, in words for its model card
    tools: tuple[str, ...] = ()  # classes beside the corpus, see retrieval.tools
    quantise: str = "none"  # of the base that the adapter was trained on: "none" or "nf4"
    base_sha256: str = ""  # of the GGUF file that the base was read from; empty for any other base

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            "format": FORMAT,
            "notice": NOT_ADVICE,
            **plain,
            "protocol": protocol_to_json(self.protocol),
            "limits": asdict(self.limits),
            "retriever": asdict(self.retriever) if self.retriever else None,
            "metrics": dict(self.metrics),
            "training": dict(self.training),
        }

    @staticmethod
    def from_json(row: dict[str, Any]) -> AgentSpec:
        """The inverse of `to_json`."""
        retriever = row["retriever"]
        return AgentSpec(
            base_model=row["base_model"],
            dtype=row["dtype"],
            protocol=protocol_from_json(row["protocol"]),
            limits=Limits(**row["limits"]),
            top_k=row["top_k"],
            retriever=RetrieverSpec.from_json(retriever) if retriever else None,
            metrics=row["metrics"],
            training=row.get("training", {}),
            tools=tuple(row.get("tools", ())),
            quantise=row.get("quantise", "none"),
            base_sha256=row.get("base_sha256", ""),
        )


def protocol_to_json(protocol: TurnProtocol) -> dict[str, Any]:
    """The protocol by name: its class and its arguments."""
    made = type(protocol)
    return {"class_path": f"{made.__module__}.{made.__qualname__}", "init_args": protocol.init_args()}


def protocol_from_json(row: Any) -> TurnProtocol:
    """The inverse of `protocol_to_json`. Raises `ConfigError` for a class that cannot be imported or constructed."""
    if not isinstance(row, dict) or set(row) != {"class_path", "init_args"}:
        raise ConfigError(
            f"protocol: found {str(row)[:80]!r}, wanted class_path and init_args. Export the agent again."
        )
    path, arguments = str(row["class_path"]), row["init_args"]
    module, _, name = path.rpartition(".")
    try:
        found = vars(import_module(module))[name]
    except Exception as error:  # a user's module may raise anything when it is imported
        raise ConfigError(
            f"protocol {path!r}: cannot be imported ({error!r}), wanted a subclass of "
            "medagent.protocol.TurnProtocol. Run the command where its module lies, or install it."
        ) from error
    if not (isinstance(found, type) and issubclass(found, TurnProtocol)):
        raise ConfigError(
            f"protocol {path!r}: found {found!r}, wanted a subclass of medagent.protocol.TurnProtocol. Name its class."
        )
    try:
        return found(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"protocol {path!r}: found the arguments {arguments!r} ({error}), wanted those of its constructor. "
            "Correct init_args in agent.json."
        ) from error


OpenPolicy = Callable[[Path, AgentSpec], Policy]


def save_agent(folder: Path, spec: AgentSpec, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write agent.json and the tokenizer. The caller saves the adapter beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    write_spec(folder, spec)


def write_spec(folder: Path, spec: AgentSpec) -> None:
    """Write agent.json alone."""
    (folder / SPEC_FILE).write_text(json.dumps(spec.to_json(), indent=2) + "\n", encoding="utf-8")


def read_spec(folder: Path) -> AgentSpec:
    """The specification of an agent's folder."""
    path = folder / SPEC_FILE
    if not path.exists():
        raise ConfigError(
            f"agent {folder}: no agent.json found there. Give a folder exported by `medagent train` or "
            "`medagent demo` (such as runs/demo/agent)."
        )
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        if row["format"] != FORMAT:
            raise ConfigError(f"agent {folder}: format {row['format']} found, {FORMAT} wanted. Export it again.")
        return AgentSpec.from_json(row)
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: damaged ({error!r}). Export the agent again.") from error


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
            retriever = spec.retriever.open(index, beside=folder)
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

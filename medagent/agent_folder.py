"""An agent by name, ready to run: an exported folder, the starter, a model or an endpoint.

An agent's folder holds agent.json, its tokenizer, and a LoRA in adapter/ or the weights of a whole model.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedTokenizerBase

from medagent.agent import Agent
from medagent.agent_spec import AgentSpec, RetrieverSpec, read_spec, write_spec
from medagent.any_model import AnyModelLinesProtocol, QuotingAgent
from medagent.engines.base import Engine
from medagent.engines.in_process import InProcessEngine
from medagent.errors import ConfigError, InputError
from medagent.models.base_models import STARTER, is_gguf, model_path
from medagent.models.causal_lm import fastest_device, load_causal_lm, refuse_unmerged
from medagent.models.precision import AUTO, resolve_precision
from medagent.models.text_length import longest_text
from medagent.policies.chat_endpoint import REMOTE_LIMITS, RemotePolicy
from medagent.policies.huggingface import HFPolicy
from medagent.protocol import TagProtocol
from medagent.retrieval.controls import NoRetriever, corpus_of
from medagent.retrieval.embedders import embedder_from_identity
from medagent.retrieval.remote import URL, RemoteRetriever, index_folder, open_index
from medagent.retrieval.retriever import Retriever
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.settings import SearchSettings
from medagent.tools.named import GivenTool, settings_of, tools_of
from medagent.types import Limits

UNTRAINED_LIMITS = Limits(max_turns=6, max_turn_tokens=512, max_observation_tokens=1024, max_total_tokens=8192)
NO_MODEL = "none"
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
NO_FOLDER = "there is no such folder, and as a model of the hub: "
MOVED_TOGETHER = 3  # folders above the agent, and last parts of the index's path, that a move may have kept


def retriever_spec(retriever: Retriever) -> RetrieverSpec | None:
    """The specification of a retriever that lives in a folder or is served, None for any other."""
    retriever = corpus_of(retriever)
    if isinstance(retriever, RemoteRetriever):
        return RetrieverSpec(retriever.url, "", SearchSettings(), str(retriever.where))
    if not isinstance(retriever, HybridRetriever):
        return None
    index = str(retriever.folder.resolve())
    return RetrieverSpec(index, retriever.embedder.identity, retriever.settings, str(retriever.where))


def open_spec(spec: RetrieverSpec, index: str | None = None, *, beside: Path | None = None) -> Retriever:
    """The retriever; `index` overrides the folder or address.

    An index that is not in its place is looked for around the agent's folder `beside`: both may have been moved.
    """
    where = index or spec.index
    if where.startswith(URL):
        return open_index(where, where=spec.where)
    if index is None and beside is not None:
        where = _found(Path(index_folder(where)), beside)
    if not spec.embedder:
        return open_index(where, where=spec.where)
    embedder = embedder_from_identity(spec.embedder)
    return HybridRetriever(index_folder(where), embedder, settings=spec.search, where=spec.where)


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
    tools: Sequence[GivenTool] | None = (),
    lockstep: bool = True,
    engine: Engine | None = None,
) -> Agent:
    """An agent that is ready to run. `engine` is by default an `InProcessEngine`. `lockstep`: see `HFPolicy`.

    `tools` must be those that it was trained with; None opens it without any.
    """
    spec, made = read_spec(folder), tools_of(tools or ())
    if tools is not None and {tool.name for tool in made} != set(spec.tools):
        given = shlex.quote(json.dumps(settings_of(list(spec.tools.values()))))
        remedy = f"Give --tools {given}, and run the command where their files lie."
        raise ConfigError(
            f"agent {folder}: found the tools {sorted(tool.name for tool in made)}, wanted {sorted(spec.tools)}. "
            f"{remedy if spec.tools else 'Leave --tools out: it was trained without tools.'}"
        )
    if retriever is None:
        if spec.retriever is not None:
            retriever = open_spec(spec.retriever, index, beside=folder)
        elif index is not None:
            retriever = open_index(index)
        else:
            raise ConfigError(f"agent {folder}: names no index to search. Give one with --index.")
    policy = (engine or InProcessEngine()).open(folder, spec, lockstep=lockstep)
    return Agent(policy, retriever, spec.protocol, spec.limits, spec.top_k, tools=made)


def _found(index: Path, agent: Path) -> str:
    """The index's folder, or the one of the same place relative to the agent's or a folder above it."""
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


def full_name(name: str) -> str:
    """The name of an agent, with "hf:" before a GGUF file or a hub name. A folder of that path is an agent's."""
    bare = not name.startswith("hf:") and (is_gguf(name) or HUB_NAME.fullmatch(name))
    return f"hf:{name}" if bare and not Path(name).is_dir() else name


def open_agent(
    name: str,
    *,
    index: str | None,
    lockstep: bool = False,
    model: str = "",
    parameters: Mapping[str, Any] = MappingProxyType({}),
    tools: Sequence[GivenTool] | None = (),
    retriever: Retriever | None = None,
    must_search: bool = True,
    engine: Engine | None = None,
    lines: bool = False,
) -> Agent:
    """An agent by name. All but an exported one need an index to search.

    `name` is one of these:

        an exported agent's folder
        "starter"       the untrained base policy
        "none"          no model: it answers with sentences of the corpus
        "org/name"      a causal language model of the hub, where no folder of that path exists
        "FILE.gguf"     a GGUF file
        "hf:MODEL"      any causal language model, also in a folder (see `medagent.models.base_models.model_path`)
        "http://..."    an OpenAI-compatible endpoint; `model` is then its model's name, and `parameters` are sent
                        with every request

    The endpoint's key is read from the environment variable MEDAGENT_API_KEY. Without `must_search` an agent may lack
    an index, and a search is then an error. `tools` are functions, or name some as settings do. None opens an exported
    agent without those it was trained with. A ready `retriever` replaces `index`. `engine` samples an exported agent's
    turns. With `lines` a model or an endpoint answers by the numbers of sentences.

    Raises:
        MedagentError: there is no such agent or model, or it lacks an index. The message names the remedy.
    """
    given, name = name, full_name(name)
    looked = f"agent {given}: " + ("" if name == given or is_gguf(given) else NO_FOLDER)
    untrained = name.startswith(("http://", "https://", "hf:"))
    exported = not untrained and name not in (STARTER, NO_MODEL)
    if lines and not untrained:
        raise InputError(
            f"agent {given}: found --prompting lines, wanted an untrained model (hf:MODEL) or an endpoint. Leave "
            '--prompting out: a trained agent keeps its protocol, and "none" quotes sentences anyway.'
        )
    if must_search and retriever is None and index is None and not exported:
        raise InputError(
            f"{looked}it has no index to search. Give one with --index. The packaged one is made by: medagent index "
            "build starter --out indexes/starter"
        )
    if not (exported or engine is None or isinstance(engine, InProcessEngine)):
        raise InputError(f"agent {name}: another engine serves an exported agent. Give its folder.")
    if exported:
        return load_agent(Path(name), retriever=retriever, index=index, tools=tools, lockstep=lockstep, engine=engine)
    made = tools_of(tools or ())
    if retriever is None:
        retriever = NoRetriever() if index is None else open_index(index)
    if name == NO_MODEL:
        return QuotingAgent.over(retriever)
    protocol: type[AnyModelLinesProtocol | TagProtocol] = AnyModelLinesProtocol if lines else TagProtocol
    if name.startswith(("http://", "https://")):
        if not model:
            raise InputError(f"endpoint {name}: needs the name of its model. Give it with --model.")
        key = os.environ.get("MEDAGENT_API_KEY", "")
        policy = RemotePolicy(name, model, api_key=key, parameters=dict(parameters))
        return Agent(policy, retriever, protocol(), REMOTE_LIMITS, trained=False, tools=made)
    if name.startswith("hf:"):
        device, base_model = fastest_device(), name.removeprefix("hf:")
        refuse_unmerged(base_model)
        try:
            precision = resolve_precision(AUTO, base_model, device=device)
            print(f"{base_model}: in {precision.dtype}, as {precision.reason}.", file=sys.stderr)
            weights, tokenizer = load_causal_lm(base_model, dtype=precision.dtype, device=device)
        except ConfigError as error:
            raise ConfigError(f"{looked}{error}") from error
        longest, limits = longest_text(weights.config), UNTRAINED_LIMITS
        if longest is not None:
            limits = replace(limits, max_total_tokens=min(limits.max_total_tokens, longest.tokens))
        local = HFPolicy(weights, tokenizer, lockstep=lockstep, refill=True)
        protocol_ = protocol(chat=bool(tokenizer.chat_template))
        return Agent(local, retriever, protocol_, limits, trained=False, tools=made)
    return replace(load_agent(Path(model_path(STARTER)), retriever=retriever, lockstep=lockstep), tools=made)

"""An agent by name, ready to run: an exported folder, the starter, a model or an endpoint."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from medagent.agent import Agent
from medagent.agent_folder import load_agent
from medagent.engines.base import Engine
from medagent.engines.in_process import InProcessEngine
from medagent.errors import InputError
from medagent.models.base_models import STARTER, model_path
from medagent.models.causal_lm import fastest_device, load_causal_lm, refuse_unmerged
from medagent.models.precision import AUTO, resolve_precision
from medagent.models.text_length import longest_text
from medagent.policies.chat_endpoint import REMOTE_LIMITS, RemotePolicy
from medagent.policies.huggingface import HFPolicy
from medagent.protocol import TagProtocol
from medagent.retrieval.controls import NoRetriever
from medagent.retrieval.opening import open_index
from medagent.retrieval.retriever import Retriever
from medagent.retrieval.tools import Tool, Toolbox, tool_named
from medagent.types import Limits

UNTRAINED_LIMITS = Limits(max_turns=6, max_turn_tokens=512, max_observation_tokens=1024, max_total_tokens=8192)


def open_agent(
    name: str,
    *,
    index: str | None,
    lockstep: bool = False,
    model: str = "",
    parameters: Mapping[str, Any] = MappingProxyType({}),
    tools: Sequence[str] = (),
    retriever: Retriever | None = None,
    must_search: bool = True,
    engine: Engine | None = None,
) -> Agent:
    """An agent by name. All but an exported one need an index to search.

    `name` is one of these:

        an exported agent's folder
        "starter"       the untrained base policy
        "hf:MODEL"      a causal language model (see `medagent.models.base_models.model_path`), with the protocol's own
                        instructions
        "http://..."    an OpenAI-compatible endpoint; `model` is then its model's name, and `parameters` are sent
                        with every request

    The endpoint's key is read from the environment variable MEDAGENT_API_KEY. Without `must_search` an agent may lack
    an index, and a search is then an error. `tools` are classes, such as "my_task.Doses". A ready `retriever` replaces
    `index` and `tools`. `engine` samples an exported agent's turns.
    """
    exported = not (name == STARTER or name.startswith(("http://", "https://", "hf:")))
    if must_search and retriever is None and index is None and not exported:
        raise InputError(
            f"agent {name}: has no index to search. Give one with --index. The packaged one is made by: "
            "medagent index build starter --out indexes/starter"
        )
    if not (exported or engine is None or isinstance(engine, InProcessEngine)):
        raise InputError(f"agent {name}: another engine serves an exported agent. Give its folder.")
    made = [tool_named(tool) for tool in tools]
    if exported:
        return load_agent(Path(name), retriever=retriever, index=index, tools=made, lockstep=lockstep, engine=engine)
    searched = retriever if retriever is not None else _searches(index, made)
    if name.startswith(("http://", "https://")):
        if not model:
            raise InputError(f"endpoint {name}: needs the name of its model. Give it with --model.")
        key = os.environ.get("MEDAGENT_API_KEY", "")
        policy = RemotePolicy(name, model, api_key=key, parameters=dict(parameters))
        return Agent(policy, searched, TagProtocol(), REMOTE_LIMITS)
    if name.startswith("hf:"):
        device = fastest_device()
        base_model = name.removeprefix("hf:")
        refuse_unmerged(base_model)
        precision = resolve_precision(AUTO, base_model, device=device)
        print(f"{base_model}: in {precision.dtype}, as {precision.reason}.", file=sys.stderr)
        weights, tokenizer = load_causal_lm(base_model, dtype=precision.dtype, device=device)
        protocol = TagProtocol(chat=bool(tokenizer.chat_template))
        longest, limits = longest_text(weights.config), UNTRAINED_LIMITS
        if longest is not None:
            limits = replace(limits, max_total_tokens=min(limits.max_total_tokens, longest.tokens))
        return Agent(HFPolicy(weights, tokenizer, lockstep=lockstep), searched, protocol, limits)
    return load_agent(Path(model_path(STARTER)), retriever=searched, lockstep=lockstep)


def _searches(index: str | None, tools: list[Tool]) -> Retriever:
    retriever = NoRetriever() if index is None else open_index(index)
    return Toolbox(retriever, tools) if tools else retriever

"""The contents of agent.json, which describes an agent on disk. Data only: nothing here loads a model or an index."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from medagent.config_files import known_class
from medagent.errors import ConfigError
from medagent.protocol import NOT_ADVICE, TurnProtocol
from medagent.retrieval.settings import SearchSettings
from medagent.types import Limits

SPEC_FILE = "agent.json"
FORMAT = 3


@dataclass(frozen=True)
class RetrieverSpec:
    """Which index an agent searches: its folder or address; and how."""

    index: str
    embedder: str
    search: SearchSettings
    where: str = ""  # the filter of every search, see retrieval.filters


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
    tools: Mapping[str, Any] = field(default_factory=dict)  # of each by name, the setting that gave it
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
            "tools": dict(self.tools),
        }

    @staticmethod
    def from_json(row: dict[str, Any]) -> "AgentSpec":
        """The inverse of `to_json`."""
        plain = {each.name: row[each.name] for each in fields(AgentSpec) if each.name in row}
        retriever = row["retriever"] and {**row["retriever"], "search": SearchSettings(**row["retriever"]["search"])}
        read = {
            "protocol": protocol_from_json(row["protocol"]),
            "limits": Limits(**row["limits"]),
            "retriever": RetrieverSpec(**retriever) if retriever else None,
            "tools": dict(row.get("tools") or {}),
        }
        return AgentSpec(**plain | read)


def protocol_to_json(protocol: TurnProtocol) -> dict[str, Any]:
    """The protocol by name: its class and its arguments."""
    made = type(protocol)
    return {"class_path": f"{made.__module__}.{made.__qualname__}", "init_args": protocol.init_args()}


def protocol_from_json(row: Any) -> TurnProtocol:
    """The inverse of `protocol_to_json`. Raises `ConfigError` for a class that is unknown or cannot be constructed."""
    if not isinstance(row, dict) or set(row) != {"class_path", "init_args"}:
        raise ConfigError(
            f"protocol: found {str(row)[:80]!r}, wanted class_path and init_args. Export the agent again."
        )
    path, arguments = str(row["class_path"]), row["init_args"]
    found = known_class(path, "protocol")
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

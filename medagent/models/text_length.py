"""The length at which a model begins to read a text differently, or not at all.

Positions that are rotated by frequencies of the text's length (rope types dynamic and longrope) change with one more
token. The keys of a cache were rotated by the former ones. A table of positions simply ends.
"""

from dataclasses import dataclass

from transformers import PretrainedConfig

from medagent.errors import ConfigError, PolicyError
from medagent.types import Limits


@dataclass(frozen=True)
class LongestText:
    """The most tokens that one text may have, and why."""

    tokens: int
    reason: str

    def exceeded(self, found: int) -> PolicyError:
        """The error for a text of `found` tokens."""
        return PolicyError(
            f"a text of {found} tokens: the model reads at most {self.tokens} ({self.reason}). Lower "
            "limits.max_total_tokens, or choose another model."
        )


def longest_text(config: PretrainedConfig) -> LongestText | None:
    """The longest text of a model, None where its positions set no limit.

    `config` may be a wrapper's: the decoder's counts.
    """
    settings, longest = config.get_text_config(decoder=True).to_dict(), stated_positions(config)
    found: list[LongestText] = []
    rope = settings.get("rope_parameters") or {}  # one, or one per type of layer
    ropes = [rope] if "rope_type" in rope else [each for each in rope.values() if isinstance(each, dict)]
    for rope in ropes:
        kind = str(rope.get("rope_type"))
        if "dynamic" in kind and longest is not None:
            found.append(LongestText(longest, f"rope type {kind}: its frequencies change beyond"))
        elif kind == "longrope":
            original = rope.get("original_max_position_embeddings") or longest
            if original is not None:
                found.append(LongestText(int(original), f"rope type {kind}: its frequencies change beyond"))
    if not ropes and longest is not None and not settings.get("alibi"):
        found.append(LongestText(longest, "its table of positions ends there"))
    return min(found, key=lambda limit: limit.tokens, default=None)


def check_text_length(config: PretrainedConfig, max_total_tokens: int, name: str) -> None:
    """Refuse limits that let a text of this model grow beyond `longest_text`, before anything is sampled.

    Raises:
        ConfigError: `max_total_tokens` is larger.
    """
    limit = longest_text(config)
    if limit is not None and max_total_tokens > limit.tokens:
        raise ConfigError(
            f"limits.max_total_tokens: found {max_total_tokens}, wanted at most {limit.tokens} for {name} "
            f"({limit.reason}). Lower limits.max_total_tokens, or choose another model."
        )


def check_trained_text(config: PretrainedConfig, limits: Limits, name: str) -> None:
    """The same for a trainer, which also reads the passages after which a dialogue ends, and one token more.

    The total is checked before a turn, so the passages of the last search may exceed it. The critic's value after the
    last token needs one more position.

    Raises:
        ConfigError: a rollout within `limits` can be longer than the model reads.
    """
    check_text_length(config, limits.max_total_tokens, name)
    limit = longest_text(config)
    more = limits.max_observation_tokens + 1
    if limit is not None and limits.max_total_tokens + more > limit.tokens:
        raise ConfigError(
            f"limits: found max_total_tokens {limits.max_total_tokens} and max_observation_tokens "
            f"{limits.max_observation_tokens}, wanted together at most {limit.tokens - 1} for {name} ({limit.reason} "
            f"{limit.tokens}). Training reads also the passages after which a dialogue ends. Lower one of them, or "
            "choose another model."
        )


def room_on_server(config: PretrainedConfig, max_total_tokens: int, name: str) -> int:
    """How long a text a server must hold for texts of `max_total_tokens`: one token more, where the model allows it.

    If the model's positions end at `max_total_tokens`, vLLM would rotate every text differently with one more
    (longrope), or refuse to start.

    Raises:
        ConfigError: see `check_text_length`.
    """
    check_text_length(config, max_total_tokens, name)
    limit, stated = longest_text(config), stated_positions(config)
    ends = max_total_tokens in (stated, limit.tokens if limit else None)
    return max_total_tokens if ends else max_total_tokens + 1


def stated_positions(config: PretrainedConfig) -> int | None:
    """The number of positions that the decoder's configuration states."""
    decoder = config.get_text_config(decoder=True)
    name = decoder.attribute_map.get("max_position_embeddings", "max_position_embeddings")
    stated = decoder.to_dict().get(name)
    return None if stated is None else int(stated)

"""The one rule of every policy for the end of a sampled turn.

A turn ends at the first token at which one of these holds; the first in this order names the stop.

TAG           the turn's text holds one of the protocol's end strings, even if the token continues after it
END_OF_TEXT   the token is one of the model's end-of-turn ids
LENGTH        the turn has as many tokens as it may

The token that ends a turn is one of its actions: its id and log-prob stay. The text is truncated right after the end
string, and leaves out an end-of-turn id.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from peft import PeftModel
from transformers import AutoConfig, GenerationConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from medagent.pieces import Block
from medagent.policy import SampledTurn, TurnStop

# An end string is searched in as many last tokens as it has bytes, and these more: some tokens have no text.
SPARE_TOKENS = 16


@dataclass(frozen=True)
class TurnEnds:
    """The ends of one dialogue's turns: the protocol's end strings and the model's end-of-turn ids."""

    tokenizer: PreTrainedTokenizerBase
    strings: tuple[str, ...]
    token_ids: frozenset[int]

    @staticmethod
    def of(tokenizer: PreTrainedTokenizerBase, blocks: Sequence[Block], token_ids: Iterable[int]) -> "TurnEnds":
        """The ends of a protocol's blocks and of a model."""
        return TurnEnds(tokenizer, tuple(block.end for block in blocks), frozenset(token_ids))

    def stop(self, sampled: Sequence[int], max_tokens: int) -> TurnStop | None:
        """Why the turn ends at its last token, None if it does not. No earlier token may have ended it."""
        if self._completes(sampled):
            return TurnStop.TAG
        if sampled[-1] in self.token_ids:
            return TurnStop.END_OF_TEXT
        return TurnStop.LENGTH if len(sampled) >= max_tokens else None

    def turn(self, sampled: Sequence[int], logprobs: Sequence[float], stop: TurnStop) -> SampledTurn:
        """The turn of these tokens and as many log-probs, which ends for this reason."""
        ended_by_id = stop is TurnStop.END_OF_TEXT and sampled and sampled[-1] in self.token_ids
        text = self._text(sampled[:-1] if ended_by_id else sampled)
        if stop is TurnStop.TAG:
            text = text[: first_end(text, self.strings)]
        return SampledTurn(tuple(sampled), tuple(logprobs), text, stop)

    def cut(
        self, sampled: Sequence[int], logprobs: Sequence[float], *, max_tokens: int, otherwise: TurnStop
    ) -> SampledTurn:
        """The turn that these tokens begin with. If nothing ends it, it is all of them and stops with `otherwise`."""
        for count in range(1, len(sampled) + 1):
            stop = self.stop(sampled[:count], max_tokens)
            if stop is not None:
                return self.turn(sampled[:count], logprobs[:count], stop)
        return self.turn(sampled, logprobs, otherwise)

    @cached_property  # the size of a vocabulary takes microseconds, and this is asked at each token of each row
    def _closing(self) -> frozenset[int] | None:
        return _closing(self.tokenizer, len(self.tokenizer), self.strings)

    def _completes(self, sampled: Sequence[int]) -> bool:
        """Whether the last token completes an end string. Only tokens that may do so are decoded."""
        if not self.strings:
            return False
        if self._closing is not None and sampled[-1] not in self._closing:
            return False
        window = max(len(end.encode()) for end in self.strings) + SPARE_TOKENS
        return first_end(self._text(sampled[-window:]), self.strings) is not None

    def _text(self, sampled: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(sampled), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def first_end(text: str, ends: tuple[str, ...]) -> int | None:
    """The index after the first end string in `text`, None if there is none.

    >>> first_end("<search>q</search>. x", ("</search>", "</answer>"))
    18
    """
    found = [at + len(end) for end in ends if (at := text.find(end)) >= 0]
    return min(found, default=None)


# Policies are made anew at each sync, and decoding a large vocabulary takes a second.
@lru_cache(maxsize=8)
def _vocabulary(tokenizer: PreTrainedTokenizerBase, size: int) -> list[str]:
    return [
        str(text)
        for text in tokenizer.batch_decode([[token] for token in range(size)], clean_up_tokenization_spaces=False)
    ]


@lru_cache(maxsize=32)
def _closing(tokenizer: PreTrainedTokenizerBase, size: int, ends: tuple[str, ...]) -> frozenset[int] | None:
    """The tokens whose text holds the last character of one of `ends`, None where any token may complete one.

    A character of several bytes can be split over tokens. White space may show only beside other tokens.
    """
    last = {end[-1] for end in ends}
    if any(not character.isascii() or character.isspace() for character in last):
        return None
    return frozenset(token for token, text in enumerate(_vocabulary(tokenizer, size)) if last & set(text))


def end_token_ids(tokenizer: PreTrainedTokenizerBase, *models: PreTrainedModel | PeftModel) -> tuple[int, ...]:
    """The ids that end a turn of a model, sorted: its tokenizer's, its config's and its generation config's."""
    configs: list[PretrainedConfig | GenerationConfig] = []
    for model in models:
        configs += [model.config, model.config.get_text_config(decoder=True)]
        configs += [model.generation_config] if model.generation_config is not None else []
    return _known(tokenizer, configs)


def stored_end_token_ids(tokenizer: PreTrainedTokenizerBase, name: str) -> tuple[int, ...]:
    """As `end_token_ids`, read from the files of a model that is not loaded: a folder or a hub name."""
    config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    configs: list[PretrainedConfig | GenerationConfig] = [config, config.get_text_config(decoder=True)]
    try:
        configs.append(GenerationConfig.from_pretrained(name))
    except OSError:  # it has none
        if Path(name).is_dir() and (Path(name) / "generation_config.json").exists():
            raise
    return _known(tokenizer, configs)


def _known(
    tokenizer: PreTrainedTokenizerBase, configs: Sequence[PretrainedConfig | GenerationConfig]
) -> tuple[int, ...]:
    found: set[int] = set()
    # A wrapper's config may have none of its own.
    for named in (tokenizer.eos_token_id, *(config.to_dict().get("eos_token_id") for config in configs)):
        found.update([] if named is None else [named] if isinstance(named, int) else named)
    return tuple(sorted(token for token in found if 0 <= token < len(tokenizer)))

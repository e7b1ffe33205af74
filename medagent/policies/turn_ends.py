"""Where a sampled turn ends: at a token whose text completes one of the protocol's end strings."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

TAIL_TOKENS = 16  # an end string is looked for in the text of so many last tokens


class TurnEnds:
    """Tells after each token whether a turn is over. Only tokens that may complete an end are decoded."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        self._closing: dict[tuple[str, ...], frozenset[int]] = {}

    def closing(self, ends: tuple[str, ...]) -> frozenset[int]:
        """The tokens whose text holds the last character of one of `ends`."""
        if ends not in self._closing:
            last = {end[-1] for end in ends}
            self._closing[ends] = frozenset(token for token, text in enumerate(self._texts) if last & set(text))
        return self._closing[ends]

    def ended(self, token_ids: Sequence[int], ends: tuple[str, ...]) -> bool:
        """Whether the text of `token_ids` ends with one of `ends`, white space aside."""
        if token_ids[-1] not in self.closing(ends):
            return False
        tail = str(self._tokenizer.decode(list(token_ids[-TAIL_TOKENS:]), skip_special_tokens=False))
        return tail.rstrip().endswith(ends)

"""Pieces of text with their origin, the blocks of a turn, and how both become token ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from medagent.tool_calls import ToolCall
from medagent.untrusted_text import LONGEST_KEPT, encode_untrusted


@dataclass(frozen=True)
class Block:
    """The texts that open and end a part of a turn."""

    start: str
    end: str

    def around(self, said: str) -> str:
        """The part as demonstrations and given turns write it: after a space, words have their usual tokens."""
        return f"{self.start.rstrip()} {said}{self.end}"


TOOL_CALL = Block("<tool_call>", "</tool_call>")  # as Qwen writes a call; a protocol with it offers the search


@dataclass(frozen=True)
class Piece:
    """A piece of text with its origin. Untrusted pieces yield no id of an added token, special or not."""

    text: str
    trusted: bool = True


@dataclass(frozen=True)
class ParsedTurn:
    """A turn, read: a query, an answer, or neither (malformed).

    `calls` of tools go with the query of the searches among them. A query without calls is one search.
    """

    think: str
    query: str | None
    answer: str | None
    calls: tuple[ToolCall, ...] = ()

    @property
    def asked(self) -> tuple[ToolCall, ...]:
        """What the turn asks for before the next one; nothing where it answers."""
        return self.calls or (() if self.query is None else (ToolCall("search", {"query": self.query}),))


def encode(tokenizer: PreTrainedTokenizerBase, pieces: Sequence[Piece]) -> list[int]:
    """Token ids, piece by piece. Pieces are never merged across their borders, so a format has one encoding."""
    ids, added = list[int](), len(tokenizer.added_tokens_decoder)
    for piece in pieces:
        kept = len(piece.text) <= LONGEST_KEPT
        ids += (_encode_piece if kept else _encode_piece.__wrapped__)(tokenizer, added, piece.text, piece.trusted)
    return ids


def encode_as_one(tokenizer: PreTrainedTokenizerBase, pieces: Sequence[Piece]) -> list[int]:
    """Token ids of harmless pieces as one text, as a policy learns its own turns.

    Where an untrusted piece would yield an added token, they are encoded piece by piece.
    """
    added = {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids}
    whole = encode(tokenizer, [Piece("".join(piece.text for piece in pieces))])
    trusted = encode(tokenizer, [piece for piece in pieces if piece.trusted])
    same = [each for each in whole if each in added] == [each for each in trusted if each in added]
    return whole if same else encode(tokenizer, pieces)


# Marks repeat in every prompt, passages in every iteration. The cache is bounded, as users' questions enter it too.
@lru_cache(maxsize=20_000)
def _encode_piece(tokenizer: PreTrainedTokenizerBase, added: int, text: str, trusted: bool) -> tuple[int, ...]:
    if not trusted:
        return tuple(encode_untrusted(tokenizer, text))
    return tuple(tokenizer(text, add_special_tokens=False, split_special_tokens=False)["input_ids"])

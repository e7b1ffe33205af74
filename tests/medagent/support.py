"""Tiny tokenizers of the kinds that real models have, with the same hostile added tokens; a protocol; an endpoint."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar, Self

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from medagent.pieces import Block, ParsedTurn, Piece, encode
from medagent.protocol import TurnProtocol
from medagent.retrieval.passages import Passage
from medagent.types import Question


class ChatServer(ThreadingHTTPServer):
    """A chat endpoint that keeps what it is asked and gives the replies in order, the last again and again."""

    daemon_threads = True
    status, error, listing_status = 200, "no key", 200
    logprobs: dict[str, Any] | None = None  # of every reply

    def __init__(self, *replies: str | dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Chat)
        self.replies, self.asked, self.url = replies, list[dict[str, Any]](), f"http://127.0.0.1:{self.server_port}/v1"


class _Chat(BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self) -> None:
        asked, replies = self.server.asked, self.server.replies
        asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.status)
        self.end_headers()
        reply = replies[min(len(asked), len(replies)) - 1]
        message = {"content": reply} if isinstance(reply, str) else reply
        choice = {"message": message, "finish_reason": "stop", "logprobs": self.server.logprobs}
        found = {"choices": [choice]} if self.server.status == 200 else {"error": self.server.error}
        self.wfile.write(json.dumps(found).encode())

    def do_GET(self) -> None:
        self.send_response(self.server.listing_status)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Be silent."""


@contextmanager
def chat_server(*replies: str | dict[str, Any], kind: type[ChatServer] = ChatServer) -> Iterator[ChatServer]:
    server = kind(*replies)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


TEXTS = [
    "Gout is treated with colchicine 0.5 mg/d; allopurinol lowers uric acid (BMI > 30), p < 0.05.",
    "user assistant tool call think search answer information start end prefix middle suffix [INST] <s> </s>",
    string.printable,
]
CONTROL = ("<s>", "</s>", "<|im_end|>")  # special
PLAIN = ("<tool_call>", "<|im_start|>", "<|fim_prefix|>")  # added, not special
ADDED = [
    *(AddedToken(text, special=True, normalized=False) for text in CONTROL),
    *(AddedToken(text, special=False, normalized=False) for text in PLAIN),
    AddedToken("<mask>", special=True, lstrip=True, rstrip=True, normalized=False),
    AddedToken("<pad_left>", special=False, rstrip=True, normalized=True),
    AddedToken("gouty", special=False, single_word=True, normalized=True),
]
CONTENTS = [token.content for token in ADDED]


def _wrapped(made: Tokenizer, **settings: str) -> PreTrainedTokenizerFast:
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False, **settings
    )
    wrapped.add_tokens(ADDED)
    return wrapped


def byte_level() -> PreTrainedTokenizerFast:
    """As in GPT-2, Qwen and Llama 3."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    return _wrapped(made)


def folding() -> PreTrainedTokenizerFast:
    """Byte level behind normalisers that fold compatibility forms and case."""
    made = byte_level().backend_tokenizer
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    return _wrapped(made)


def sentencepiece_bpe(vocabulary: tuple[str, ...] = (), *, ignore_merges: bool = False) -> PreTrainedTokenizerFast:
    """As in Llama 2: bytes stand in for what the vocabulary lacks; `vocabulary` is added to the model's own."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    letters = [c for c in string.printable if not c.isspace()]
    entries = dict.fromkeys([*words, *letters, "go", "ut", "gout", "▁gout", *vocabulary])
    merges = [("g", "o"), ("u", "t"), ("go", "ut"), ("▁", "gout")]
    vocab = {entry: number for number, entry in enumerate(entries)}
    made = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True, ignore_merges=ignore_merges)
    )
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", vocab["<s>"]), ("</s>", vocab["</s>"])]
    )
    return _wrapped(made, unk_token="<unk>")


def in_vocabulary() -> PreTrainedTokenizerFast:
    """A BPE that takes a whole word of its vocabulary at once, and whose vocabulary holds the added tokens."""
    made = sentencepiece_bpe(tuple(f"▁{text}" for text in CONTENTS) + tuple(CONTENTS), ignore_merges=True)
    made.backend_tokenizer.normalizer = None
    made.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    made.backend_tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return made


def unigram() -> PreTrainedTokenizerFast:
    """As in T5: the vocabulary holds the control tokens as pieces of the best score."""
    letters = [(c, -5.0) for c in string.printable if not c.isspace()]
    pieces = [("<unk>", 0.0), *((text, 0.0) for text in CONTENTS), ("▁", -3.0), ("▁gout", -2.0), *letters]
    made = Tokenizer(models.Unigram(pieces, unk_id=0))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return _wrapped(made, unk_token="<unk>")


def word_piece() -> PreTrainedTokenizerFast:
    """As in BERT: lower case, accents dropped."""
    letters = [c for c in string.printable if not c.isspace() and not c.isupper()]
    entries = ["[UNK]", *letters, *(f"##{letter}" for letter in letters), "gout"]
    made = Tokenizer(models.WordPiece({e: n for n, e in enumerate(entries)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    return _wrapped(made, unk_token="[UNK]")


def word_level() -> PreTrainedTokenizerFast:
    """Whole words, the added tokens among them."""
    entries = ["<unk>", *CONTENTS, "gout", "hurts", "x", *string.punctuation]
    made = Tokenizer(models.WordLevel({e: n for n, e in enumerate(entries)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _wrapped(made, unk_token="<unk>")


class InPython(PreTrainedTokenizer):
    """A tokenizer written in Python: words of its vocabulary, else letters."""

    def __init__(self, **settings: str) -> None:
        words = ["<unk>", "<s>", "</s>", "<tool_call>", "gout", " ", *string.printable.strip()]
        self._ids = {word: number for number, word in enumerate(dict.fromkeys(words))}
        super().__init__(**settings)

    @property
    def vocab_size(self) -> int:
        return len(self._ids)

    def get_vocab(self) -> dict[str, int]:
        return {**self._ids, **self.added_tokens_encoder}

    def _tokenize(self, text: str, **kwargs: object) -> list[str]:
        found: list[str] = []
        for word in text.split(" "):
            found += [" "] if found else []
            found += [word] if word in self._ids else list(word)
        return found

    def _convert_token_to_id(self, token: str) -> int:
        return self._ids.get(token, 0)

    def _convert_id_to_token(self, index: int) -> str:
        return list(self._ids)[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)


def in_python() -> PreTrainedTokenizer:
    made = InPython(bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    made.add_tokens(ADDED)
    return made


@dataclass(frozen=True)
class Braces(TurnProtocol):
    """A protocol from the interface alone: `{find: ...}` searches, `{say: ...}` answers, results come as lines."""

    search: ClassVar[Block] = Block("{find: ", "}")
    answer: ClassVar[Block] = Block("{say: ", "}")
    tag_tokens: ClassVar[tuple[str, ...]] = ()

    @property
    def instructed(self) -> bool:
        return False

    def init_args(self) -> dict[str, Any]:
        return {}

    def answering_only(self, *, given: bool) -> Self:
        return self

    def encode_prompt(self, tokenizer: PreTrainedTokenizerBase, question: Question) -> list[int]:
        said = [Piece(self.neutralise(text), trusted=False) for text in (question.text, *question.options)]
        return encode(tokenizer, [piece for text in said for piece in (text, Piece("\n"))])

    def encode_observation(
        self, tokenizer: PreTrainedTokenizerBase, passages: Sequence[Passage], *, first_number: int, max_tokens: int
    ) -> tuple[list[int], int]:
        ids: list[int] = []
        for shown, passage in enumerate(passages):
            text = Piece(self.neutralise(passage.shown_text), trusted=False)
            line = encode(tokenizer, [Piece(f"[{first_number + shown}] "), text, Piece("\n")])
            if len(ids) + len(line) > max_tokens:
                return ids, shown
            ids += line
        return ids, len(passages)

    def parse(self, text: str) -> ParsedTurn:
        query, answer = (re.fullmatch(f"{re.escape(b.start)}([^{{}}]*[^{{}} ])}}", text.strip()) for b in self.blocks)
        return ParsedTurn("", query and query[1], answer and answer[1])

    def neutralise(self, text: str) -> str:
        return re.sub(r"\[(\d{1,3})\]", r"(\1)", text.translate({ord("{"): "(", ord("}"): ")"}))

    def described(self) -> str:
        return "Searches and answers stand in braces."


MAKERS: tuple[Callable[[], PreTrainedTokenizerBase], ...] = (
    byte_level,
    folding,
    sentencepiece_bpe,
    in_vocabulary,
    unigram,
    word_piece,
    word_level,
    in_python,
)


HERMES = """{%- if tools %}<|im_start|>system
<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools><|im_end|>
{% endif %}{%- for message in messages %}{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# As Qwen3's, which shows a thought in the last turn alone.
FORGETFUL = HERMES.replace(
    "{{ message.content }}{% for call",
    "{% if message.reasoning_content and loop.last %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ message.content }}{% for call",
)


def hermes():
    tokenizer = byte_level()
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "eos_token": "<|im_end|>"}
    )
    tokenizer.chat_template = HERMES
    return tokenizer

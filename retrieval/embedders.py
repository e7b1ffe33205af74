"""Embedders turn passages and queries into vectors; an index may be searched with the embedder of its identity only."""

import math
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, Protocol

import mmh3
import numpy as np
from numpy.typing import NDArray

from medagent.retrieval.errors import RetrievalError, needs_model, needs_package
from medagent.retrieval.http_service import BATCH, HttpService, ServiceRefusalError
from medagent.retrieval.passages import Passage

Space = Literal["cosine", "ip"]
# From the families' model cards: (pattern of the name, query prefix, passage prefix); the first match counts.
PREFIXES = (
    (r"e5-.*instruct", "Instruct: Given a medical question, retrieve passages that answer it\nQuery: ", ""),
    (r"(^|[/-])e5-", "query: ", "passage: "),
    (r"bge-(small|base|large)-en", "Represent this sentence for searching relevant passages: ", ""),
)
DEFAULT_EMBEDDER = "hashed-ngrams:1024:3-5"
NEURAL_WEIGHT = 1.25  # measured with MiniLM on three collections (docs/retrieval.md)
CACHED_WORDS = 100_000
_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")


class Embedder(Protocol):
    """Anything with an identity that turns passages and queries into rows of one vector space."""

    identity: str  # names the mapping from text to vector: equal identities give equal vectors
    dimension: int  # length of a vector
    space: Space  # the distance that Chroma takes: "cosine" for unit vectors, "ip" (inner product) where lengths count
    max_tokens: int | None  # the longest passage, in tokens, that is not truncated; None where there is no limit
    dense_weight: float  # of its ranking in a fusion where BM25 counts 1, unless told otherwise

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text has, as the embedder sees it, without special tokens."""

    def embed_passages(self, passages: Sequence[Passage]) -> NDArray[np.float32]:
        """[N, D] float32 vectors of passages."""

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[N, D] float32 vectors of queries."""


class HashedNgramEmbedder(Embedder):
    """Character n-grams of words, hashed into a fixed number of places (Weinberger et al., arXiv 0902.2206).

    It needs no model and no download, and is robust to spelling variants. The vectors are those of scikit-learn's
    `HashingVectorizer(analyzer="char_wb")`, which takes seconds to import.
    """

    space = "cosine"
    max_tokens = None
    dense_weight = 0.25  # it helps with misspelt words, and is worse than BM25 otherwise (docs/retrieval.md)

    def __init__(self, dimension: int = 1024, min_n: int = 3, max_n: int = 5) -> None:
        """`dimension` is the number of hash buckets; n-grams of `min_n` to `max_n` characters inside word borders."""
        self.dimension, self._min_n, self._max_n = dimension, min_n, max_n
        self.identity = f"hashed-ngrams:{dimension}:{min_n}-{max_n}"
        self._places = lru_cache(maxsize=CACHED_WORDS)(self._hashed)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(_WORD_OR_MARK.findall(text)) for text in texts]

    def embed_passages(self, passages: Sequence[Passage]) -> NDArray[np.float32]:
        return self.embed_queries([passage.indexed_text for passage in passages])

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[N, D] unit vectors; zero for a text without words."""
        found = np.zeros((len(texts), self.dimension), dtype=np.float64)
        for row, text in enumerate(texts):
            words = [self._places(word) for word in text.lower().split()]
            if words:
                places, signs = (np.concatenate(parts) for parts in zip(*words, strict=True))
                found[row] = np.bincount(places, weights=signs, minlength=self.dimension)
        norms = np.sqrt((found**2).sum(axis=1, keepdims=True))
        return np.asarray(found / np.where(norms == 0, 1, norms), dtype=np.float32)

    def _hashed(self, word: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The places and signs of a word's n-grams; the sign keeps collisions from adding up."""
        padded = f" {word} "
        grams: list[str] = []
        for n in range(self._min_n, self._max_n + 1):
            grams += [padded[at : at + n] for at in range(max(1, len(padded) - n + 1))]
            if len(padded) <= n:  # a short word counts once
                break
        hashes = np.array([mmh3.hash(gram.encode("utf-8", "surrogatepass")) for gram in grams], dtype=np.int64)
        return np.abs(hashes) % self.dimension, np.where(hashes >= 0, 1.0, -1.0)


class _PrefixedEmbedder(Embedder):
    """A neural model with a text before each query and each passage; both are part of its identity."""

    space = "cosine"
    dense_weight = NEURAL_WEIGHT
    _query_prefix: str
    _passage_prefix: str

    @abstractmethod
    def _embed(self, named: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """[N, D] unit vectors of texts, each with the name that an error gives it."""

    def embed_passages(self, passages: Sequence[Passage]) -> NDArray[np.float32]:
        return self._embed([(passage.id, self._passage_prefix + passage.indexed_text) for passage in passages])

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._embed([(text[:80], self._query_prefix + text) for text in texts])


class SentenceTransformerEmbedder(_PrefixedEmbedder):
    """A sentence-transformers model by hub name or local path; needs `pip install medagent[sentence-transformers]`."""

    def __init__(
        self,
        model: str,
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
        *,
        device: str | None = None,
        batch_size: int = 64,
    ) -> None:
        """Without prefixes those of the model's own configuration count, then those of its family (E5, BGE).

        `device` is torch's; none takes the GPU if there is one.
        """
        with needs_package(f"the embedder {model!r}", "sentence-transformers", "sentence-transformers"):
            from sentence_transformers import SentenceTransformer
        wanted = "the folder of a sentence-transformers model, or the name of one on the hub that can be reached"
        with needs_model("embedder", model, wanted):
            self._model = SentenceTransformer(model, device=device)
        known = family_prefixes(model, self._model.prompts)
        self._query_prefix = known[0] if query_prefix is None else query_prefix
        self._passage_prefix = known[1] if passage_prefix is None else passage_prefix
        self._batch_size = batch_size
        self.identity = "|".join(("sentence-transformers", model, self._query_prefix, self._passage_prefix))
        self.dimension = int(self._model.get_embedding_dimension() or 0)
        longest = self._model.max_seq_length  # with two special tokens and the prefix
        self.max_tokens = longest - 2 - self.count_tokens([self._passage_prefix])[0] if longest else None

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return _token_counts(self._model.tokenizer, texts)

    def _embed(self, named: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        vectors = self._model.encode(
            [text for _, text in named],
            prompt="",  # the prefix is ours: the model's default prompt would come before it
            batch_size=self._batch_size,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        return np.asarray(vectors, dtype=np.float32)


def _token_counts(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    encoded = tokenizer(list(texts), add_special_tokens=False, truncation=False, verbose=False)
    return [len(ids) for ids in encoded["input_ids"]]


def family_prefixes(model: str, prompts: Mapping[str, str | None]) -> tuple[str, str]:
    """(query, passage) prefixes: the model's own prompts where it has any, else those of its family, else none."""
    query = prompts.get("query") or prompts.get("web_search_query")
    passage = prompts.get("passage") or prompts.get("document")
    if query or passage:
        return query or "", passage or ""
    name = model.rstrip("/").lower()
    for pattern, query_prefix, passage_prefix in PREFIXES:
        if re.search(pattern, name):
            return query_prefix, passage_prefix
    return "", ""


class MedCPTEmbedder(Embedder):
    """MedCPT as its authors use it (Jin et al., Bioinformatics 2023): two BERT encoders, inner products of [CLS].

    Articles are encoded as pairs of title and text.
    """

    space = "ip"
    dense_weight = NEURAL_WEIGHT
    QUERY_TOKENS, ARTICLE_TOKENS = 64, 512
    max_tokens = ARTICLE_TOKENS - 3  # of title and text together, without [CLS] and two [SEP]

    def __init__(
        self,
        query_model: str = "ncbi/MedCPT-Query-Encoder",
        article_model: str = "ncbi/MedCPT-Article-Encoder",
        *,
        device: str | None = None,
        batch_size: int = 32,
    ) -> None:
        """Names on the hub or local folders. `device` is torch's; none takes the GPU if there is one."""
        import torch
        from transformers import AutoModel, AutoTokenizer

        self._torch = torch
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._batch_size = batch_size
        self.identity = f"medcpt|{query_model}|{article_model}"
        wanted = "the folders of both encoders as 'medcpt|QUERY_FOLDER|ARTICLE_FOLDER', or make the hub reachable"
        with needs_model("embedder", self.identity, wanted):
            self._query, self._article = (
                (
                    AutoTokenizer.from_pretrained(name, trust_remote_code=False),
                    AutoModel.from_pretrained(name, trust_remote_code=False).to(self._device).eval(),
                )
                for name in (query_model, article_model)
            )
        self.dimension = int(self._article[1].config.hidden_size)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return _token_counts(self._article[0], texts)

    def embed_passages(self, passages: Sequence[Passage]) -> NDArray[np.float32]:
        """[N, D] vectors of (title, text) pairs; the section, where there is one, opens the text."""
        pairs = [
            (passage.title, "\n".join(part for part in (passage.section, passage.text) if part)) for passage in passages
        ]
        return self._encode(*self._article, pairs, self.ARTICLE_TOKENS)

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._encode(*self._query, list(texts), self.QUERY_TOKENS)

    def _encode(self, tokenizer: Any, model: Any, inputs: list[Any], max_length: int) -> NDArray[np.float32]:
        rows = [np.zeros((0, self.dimension), dtype=np.float32)]
        for start in range(0, len(inputs), self._batch_size):
            batch = tokenizer(
                inputs[start : start + self._batch_size],
                truncation=True,
                padding=True,
                return_tensors="pt",
                max_length=max_length,
            ).to(self._device)
            with self._torch.no_grad():
                hidden = model(**batch).last_hidden_state
            rows.append(hidden[:, 0, :].float().cpu().numpy())
        return np.concatenate(rows)


class EndpointEmbedder(_PrefixedEmbedder):
    """A model behind OpenAI's API of embeddings (/v1/embeddings): vLLM, TEI, Ollama, OpenAI."""

    max_tokens = None

    def __init__(
        self, url: str, model: str, query_prefix: str | None = None, passage_prefix: str | None = None
    ) -> None:
        """`url` ends in /v1. Without prefixes those of the model's family count.

        It is asked at once, for the length of its vectors.
        """
        known = family_prefixes(model, {})
        self._query_prefix = known[0] if query_prefix is None else query_prefix
        self._passage_prefix = known[1] if passage_prefix is None else passage_prefix
        self._service, self._model = HttpService(url, f"the embedder {model!r}"), model
        self.identity = "|".join(("openai", self._service.url, model, self._query_prefix, self._passage_prefix))
        self.dimension = 0
        self.dimension = self._embed([("a first request", "pain")]).shape[1]

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """More than a model's tokenizer makes of most words: one for each four letters begun, and for each mark."""
        return [sum(math.ceil(len(word) / 4) for word in _WORD_OR_MARK.findall(text)) for text in texts]

    def _embed(self, named: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        found = [self._vectors(named[start : start + BATCH]) for start in range(0, len(named), BATCH)]
        return np.concatenate([np.zeros((0, self.dimension or found[0].shape[1]), np.float32), *found])

    def _vectors(self, named: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        body = {"model": self._model, "input": [text for _, text in named], "encoding_format": "float"}
        try:
            answer = self._service.post("embeddings", body)
        except ServiceRefusalError as error:
            if error.status not in (400, 413, 422):
                raise
            if len(named) > 1:  # which of them is too long?
                return np.concatenate([self._vectors([each]) for each in named])
            raise RetrievalError(
                f"{error} It refused {named[0][0]!r}; a smaller --max_tokens makes passages shorter."
            ) from error
        try:
            rows = {row["index"]: row["embedding"] for row in answer["data"]}
            found = np.array([rows[number] for number in range(len(named))], dtype=np.float32)
            fits = found.shape == (len(answer["data"]), self.dimension or found.shape[1]) and np.isfinite(found).all()
        except (KeyError, TypeError, ValueError, IndexError):
            fits = False
        if not fits:
            raise self._service.unexpected(f"{len(named)} vectors of {self.dimension or 'some'} numbers")
        return np.asarray(found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12), dtype=np.float32)


def embedder_from_identity(identity: str, *, device: str | None = None) -> Embedder:
    """The embedder that an index or an agent names, or that a person asks for; the error lists the forms of names."""
    match = re.fullmatch(r"hashed-ngrams:(\d+):(\d+)-(\d+)", identity)
    if match:
        return HashedNgramEmbedder(*map(int, match.groups()))
    kind, *rest = identity.split("|")
    if kind == "sentence-transformers" and len(rest) in (1, 3):
        return SentenceTransformerEmbedder(*rest, device=device)
    if kind == "openai" and len(rest) in (2, 4):
        return EndpointEmbedder(*rest)
    if kind == "medcpt" and len(rest) in (0, 2):
        return MedCPTEmbedder(*rest, device=device)
    if "/" in kind and not rest:
        return SentenceTransformerEmbedder(kind, device=device)
    raise RetrievalError(
        f"embedder {identity!r}: unknown. Wanted 'hashed-ngrams:DIM:MIN-MAX', 'medcpt', "
        "'medcpt|QUERY_MODEL|ARTICLE_MODEL', the name or folder of a sentence-transformers model (with a '/'), "
        "'sentence-transformers|MODEL|QUERY_PREFIX|PASSAGE_PREFIX', or 'openai|URL|MODEL', which may have prefixes too."
    )

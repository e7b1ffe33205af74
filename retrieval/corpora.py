"""Corpus readers: files on disk -> passages. Long documents are cut at paragraph borders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from retrieval.errors import CorpusError
from retrieval.passages import Passage, read_passages

TEXT_SUFFIXES = (".txt", ".md", ".markdown")


def read_corpus(path: Path, *, max_words: int = 200) -> Iterator[Passage]:
    """Passages of a `.jsonl` file, of a text or Markdown file, or of a folder of these (searched recursively).

    JSONL rows are passages as they are; text and Markdown documents are cut into passages of at most `max_words` words.
    """
    if not path.exists():
        raise CorpusError(f"corpus {path}: not found. Give a .jsonl file, or a file or folder of {TEXT_SUFFIXES}.")
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    files = [file for file in files if not (file.parent / "manifest.json").exists()]  # an index inside the corpus
    known = [file for file in files if file.suffix.lower() in (".jsonl", *TEXT_SUFFIXES)]
    if not known:
        raise CorpusError(
            f"corpus {path}: found no file that can be read; wanted .jsonl or {', '.join(TEXT_SUFFIXES)}."
        )
    for file in known:
        if file.suffix.lower() == ".jsonl":
            yield from read_passages(file)
        else:
            source = str(file.relative_to(path)) if path.is_dir() else file.name
            try:
                text = file.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise CorpusError(f"{file}: not UTF-8 ({error}). Convert it, for example with iconv.") from error
            yield from split_document(text, source=source, max_words=max_words)


def split_document(text: str, *, source: str, max_words: int) -> Iterator[Passage]:
    """Passages of a text or Markdown document; the title is the last heading above, or the file's name."""
    title = Path(source).stem.replace("_", " ")
    held: list[str] = []

    def cut() -> Iterator[Passage]:
        if held:
            yield Passage.make(title, " ".join(held), source)
            held.clear()

    for block in text.split("\n\n"):
        lines = block.strip().splitlines()
        while lines and lines[0].startswith("#"):
            yield from cut()
            title = lines.pop(0).lstrip("# ").strip() or title
        words = " ".join(lines).split()
        if len(held) + len(words) > max_words:
            yield from cut()
        while len(words) > max_words:
            yield Passage.make(title, " ".join(words[:max_words]), source)
            words = words[max_words:]
        held += words
    yield from cut()

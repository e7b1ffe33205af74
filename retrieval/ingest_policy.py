"""Decides what happens to the documents of a batch, given those that the index holds and those that must stay out.

- The same words: unchanged.
- An older version than the one held: left out. A newer one takes its place.
- Without versions: another reading of a part, or another corpus, brings the newer words. Two documents of one id that
  stand in the source at once are two, and the second gets a suffix. So are those of mere numbers, which many files use.
- A preprint stays out while the index holds its article, whichever of them names the other.
- Removed and retracted documents stay out. Deleted ones stay out until the source brings a newer version.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from medagent.retrieval.documents import ARTICLE_OF, PREPRINT, PREPRINT_OF, DocumentChanges, IndexedDocument, Withdrawal
from medagent.retrieval.passages import Passage, document_digest
from medagent.retrieval.readers import LeftOut, Skipped, Withdrawn
from medagent.retrieval.store import PassageStore

CHANGES_FILE = "changes.jsonl"
Change = Literal[
    "added",  # it is new
    "replaced",  # it has other words than before, or is a newer version
    "unchanged",
    "gone",  # the source has it no more
    "removed",  # by its name
    "deleted",  # the source says so
    "retracted",
    "superseded",  # it is a preprint, and its article is indexed
    "notices",  # a list of notices names it, and the index does not hold it
    "kept out",  # it was removed, retracted or deleted before
    "older",  # the index holds a newer version
    "repeated",  # the same document again
    "told apart",  # its id was another document's, and got a suffix
    "skipped",  # it could not be used
    "left out",  # a part of it could not be used, or does not count; the rest is used
]
CHANGES: tuple[Change, ...] = get_args(Change)


@dataclass
class Changes:
    """The changes of a call, in their order."""

    rows: list[tuple[Change, str, str]] = field(default_factory=list)  # what, where or which, why

    @property
    def counts(self) -> Counter[str]:
        """How many there are of each."""
        return Counter(what for what, _, _ in self.rows)

    def add(self, what: Change, which: str, why: str = "") -> None:
        """Note one."""
        self.rows.append((what, which, why))

    def write(self, folder: Path) -> Path:
        """Write all but the unchanged as JSON lines into the index's folder; returns the file."""
        path = folder / CHANGES_FILE
        with path.open("w", encoding="utf-8") as file:
            for what, which, why in self.rows:
                if what != "unchanged":
                    row = {"change": what, "document": which} | ({"reason": why} if why else {})
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
        return path

    def summary(self) -> str:
        """The counts in a line: "3 added, 1 replaced"; "nothing changed" where nothing did."""
        counts = self.counts
        return ", ".join(f"{counts[what]:,} {what}" for what in CHANGES if counts[what]) or "nothing changed"


@dataclass(frozen=True)
class ChunkedDocument:
    """A document's passages, where it stands, its version and other names; `by_path`: its name is its file's path."""

    name: str
    where: str
    passages: tuple[Passage, ...]
    version: str = ""
    aliases: tuple[str, ...] = ()
    by_path: bool = False


Unit = ChunkedDocument | Skipped | LeftOut | Withdrawn


class IngestPolicy:
    """The decisions on a batch: passages to write (`fresh`, each with its document's name), and what else changes."""

    def __init__(self, store: PassageStore, units: Sequence[tuple[Unit, str, str]], parts: Collection[str]) -> None:
        """Decide on units, each with its part and the part's reading. `parts` are those of the corpus."""
        self.skipped: list[tuple[str, str]] = []
        self.left_out: list[tuple[str, str]] = []
        self.tables, self.changes, self._parts = DocumentChanges(), Changes(), parts
        documents = [unit for unit, _, _ in units if isinstance(unit, ChunkedDocument)]
        said = [name for unit, _, _ in units if isinstance(unit, Withdrawn) for name in unit.names]
        self._digests = {id(each): document_digest(each.passages) for each in documents}
        names = [
            name
            for each, part, _ in units
            if isinstance(each, ChunkedDocument)
            for name in (each.name, _suffixed(each.name, part), _suffixed(each.name, self._digests[id(each)]))
        ]
        said += [key for each in documents for key in (*_articles_of(each), *_preprints_of(each))]
        self._named = store.documents.aliases("alias", said)
        self._held = store.documents.held([*names, *said, *(name for _, name in self._named)])
        passages = [passage for each in documents for passage in each.passages]
        keys = [key for each in documents for key in (each.name, *each.aliases)]
        keys += [key for each in passages for key in (each.id, f"digest:{each.digest}")]
        self._withdrawn = store.documents.withdrawn([*keys, *said])
        self._owners = store.owners([passage.id for passage in passages])
        self._held |= store.documents.held(set(self._owners.values()) - set(self._held))
        self._by_alias: dict[str, set[str]] = {}
        for alias, name in self._named:
            self._by_alias.setdefault(alias, set()).add(name)
        self._fresh: dict[str, tuple[Passage, ...]] = {}
        for unit, part, reading in units:  # in the order of reading
            if isinstance(unit, Skipped):
                self.skipped.append((unit.where, unit.reason))
                self.changes.add("skipped", unit.where, unit.reason)
            elif isinstance(unit, LeftOut):
                self.left_out.append((unit.where, unit.what))
                self.changes.add("left out", unit.where, unit.what)
            elif isinstance(unit, Withdrawn):
                self._withdraw(unit, part)
            else:
                self._document(unit, part, reading)
        self.fresh = [(passage, name) for name, passages in self._fresh.items() for passage in passages]
        self.tables.held = {name: held for name, held in self.tables.held.items() if name not in self.tables.gone}

    def _withdraw(self, said: Withdrawn, part: str) -> None:
        if not said.listed:
            self.skipped.append((said.where, said.reason))
        named = self._named | self.tables.aliases
        names = {*said.names, *(name for alias, name in named if alias in said.names)}
        held = [_file_number(self._held[name].version) for name in names if name in self._held]
        if said.kind == "deleted" and any(number > _file_number(said.version) for number in held):
            self.changes.add("older", said.where, "the deletion is older than what the index holds")
            return
        for name in names:
            known = self.tables.withdrawn.get(name) or self._withdrawn.get(name)
            if known is not None and known.kind == "allowed":
                continue
            later = known is None or _file_number(said.version) >= _file_number(known.version)
            if known is None or (known.kind == "deleted" and (said.kind != "deleted" or later)):
                made = Withdrawal(name, said.kind, said.reason, said.version, said.names[0], part)
                self.tables.withdrawn[name] = self._withdrawn[name] = made
        allowed = {name for name in names if (out := self._withdrawn.get(name)) and out.kind == "allowed"}
        known_here = sorted(name for name in names - allowed if name in self._held)
        for name in known_here:
            self._drop(name)
            self.changes.add("retracted" if said.kind == "retracted" else "deleted", name, said.reason)
        if not known_here:
            self.changes.add("notices" if said.listed else "skipped", said.where, said.reason)

    def _drop(self, name: str) -> None:
        self.tables.gone.add(name)
        self._held.pop(name, None)
        self._fresh.pop(name, None)

    def _document(self, found: ChunkedDocument, part: str, reading: str) -> None:
        digest = self._digests[id(found)]
        if out := self._kept_out_by(found, part):
            self._keep_out(found, "kept out", f"stays out: {out.reason}")
            return
        if article := next(self._known(_articles_of(found), found.name), ""):
            self._keep_out(found, "superseded", f"is a preprint of {article}, which is indexed")
            return
        as_it_is = found.name in self._held and self._held[found.name].digest == digest  # whoever else said it
        distinct = {passage.digest: passage for passage in reversed(found.passages)}  # the first of equals
        passages = tuple(
            passage
            for passage in found.passages
            if distinct[passage.digest] is passage and (as_it_is or self._removed(passage) is None)
        )
        if not passages:
            removed = next(filter(None, map(self._removed, found.passages)))
            self._keep_out(found, "kept out", f"stays out: {removed.reason}")
            return
        held = self._held.get(found.name)
        if held is None and _suffixed(found.name, part) in self._held:
            held = self._held[_suffixed(found.name, part)]
            passages = tuple(replace(each, id=held.name + each.id.removeprefix(found.name)) for each in passages)
            found = replace(found, name=held.name)
        if held is not None and held.digest != digest and self._is_another(found, held, part, reading):
            apart = _suffixed(found.name, digest if held.part == part else part)
            self.changes.add("told apart", found.where, f"is {apart}")
            passages = tuple(replace(each, id=apart + each.id.removeprefix(found.name)) for each in passages)
            found = replace(found, name=apart)
            held = self._held.get(apart)
        for preprint in list(self._known(_preprints_of(found), found.name)):
            self._drop(preprint)
            self.changes.add("superseded", preprint, f"its article {found.name} is indexed")
        self._write(found, passages, held, IndexedDocument(found.name, found.version, part, reading, digest))

    def _known(self, keys: Iterable[str], but: str) -> Iterator[str]:
        """The documents that are held under these names and aliases, but for one."""
        for key in keys:
            yield from (name for name in sorted({key, *self._by_alias.get(key, ())} - {but}) if name in self._held)

    def _write(
        self, found: ChunkedDocument, passages: tuple[Passage, ...], held: IndexedDocument | None, now: IndexedDocument
    ) -> None:
        tables, changes = self.tables, self.changes
        elsewhere = held is not None and held.part not in ("", now.part)
        if held is not None and held.digest == now.digest:
            again = (held.part, held.reading) == (now.part, now.reading)
            changes.add("repeated" if again else "unchanged", now.name)
            version = max(held.version, now.version)
            if elsewhere and (held.part in self._parts or _part_exists(held.part)):
                tables.seen.add((now.name, now.part))
                now = held
            now = replace(now, version=version)
        elif held is not None and now.version < held.version:
            changes.add("older", found.where, "the index holds a newer version")
            self.skipped.append((found.where, "is older than the version in the index"))
            if elsewhere:
                tables.seen.add((now.name, now.part))
            now = held if elsewhere else replace(held, reading=now.reading)
        else:
            if elsewhere and held is not None:
                tables.seen.add((now.name, held.part))
            changes.add("added" if held is None else "replaced", now.name)
            if held is not None and now.name not in self._fresh:
                tables.replaced.add(now.name)
            self._fresh[now.name] = tuple(self._with_own_id(each, now.name) for each in passages)
        if now.name in tables.gone:  # withdrawn before in this batch, and back in a newer version
            tables.gone.discard(now.name)
            tables.replaced.add(now.name)
        tables.held[now.name] = self._held[now.name] = now
        tables.aliases |= {(alias, now.name) for alias in found.aliases}
        for alias in found.aliases:
            self._by_alias.setdefault(alias, set()).add(now.name)

    def _is_another(self, found: ChunkedDocument, held: IndexedDocument, part: str, reading: str) -> bool:
        """Whether two documents of one name are two, rather than two versions of one."""
        if found.version or held.version:
            return False
        if held.part == part:
            return held.reading == reading
        if held.part in self._parts or not any(char.isalpha() for char in found.name):
            return True
        return found.by_path and _part_exists(held.part)

    def _with_own_id(self, passage: Passage, name: str) -> Passage:
        """The passage, with a suffix of its document where its id is another document's."""
        owner = self._owners.setdefault(passage.id, name)
        if owner == name or owner in self.tables.gone:
            self._owners[passage.id] = name
            return passage
        return replace(passage, id=_suffixed(passage.id, name))

    def _kept_out_by(self, found: ChunkedDocument, part: str) -> Withdrawal | None:
        """The withdrawal that keeps a document out, if any; a name without a letter counts within its part alone."""
        said = [self._withdrawn[key] for key in (found.name, *found.aliases) if key in self._withdrawn]
        if any(each.kind == "allowed" for each in said):
            return None
        for each in said:
            if each.kind == "retracted":
                return each
            if each.kind == "removed" and (any(map(str.isalpha, each.name)) or each.part in ("", part)):
                return each
            if each.kind == "deleted" and _file_number(found.version) <= _file_number(each.version):
                return each
        return None

    def _removed(self, passage: Passage) -> Withdrawal | None:
        """The withdrawal of this passage or of its words, if a user removed it."""
        ids = [passage.id] if any(map(str.isalpha, passage.id)) else []  # mere numbers are of many files
        said = (self._withdrawn.get(key) for key in (*ids, f"digest:{passage.digest}"))
        return next((each for each in said if each is not None and each.kind == "removed"), None)

    def _keep_out(self, found: ChunkedDocument, what: Change, reason: str) -> None:
        self.changes.add(what, found.where, reason)
        self.skipped.append((found.where, reason))
        if found.name in self._held:
            self._drop(found.name)


def _articles_of(found: ChunkedDocument) -> list[str]:
    """The names and aliases that a preprint's article may have."""
    return [
        alias.removeprefix(PREPRINT_OF) if alias.startswith(PREPRINT_OF) else ARTICLE_OF + alias.removeprefix(PREPRINT)
        for alias in found.aliases
        if alias.startswith(PREPRINT)
    ]


def _preprints_of(found: ChunkedDocument) -> list[str]:
    """The aliases that an article's preprint may have."""
    names = [each for each in (found.name, *found.aliases) if not each.startswith((PREPRINT, ARTICLE_OF))]
    linked = [alias.replace(ARTICLE_OF, PREPRINT, 1) for alias in found.aliases if alias.startswith(ARTICLE_OF)]
    return [*linked, *(PREPRINT_OF + name for name in names)]


def _part_exists(part: str) -> bool:
    """Whether a part of a corpus of files is where it was; a folder that was moved is not."""
    corpus, _, name = part.rpartition("::")
    return bool(corpus) and ((Path(corpus) / name).exists() or Path(corpus).is_file())


def _suffixed(name: str, by: str) -> str:
    """The name of a second document under one name: by its part, or by its words where the part has several."""
    return f"{name}~{hashlib.sha256(by.encode()).hexdigest()[:8]}"


def _file_number(version: str) -> str:
    """The place of a version among a source's files: its last part, which a deletion has too."""
    return version.rpartition(".")[2]

"""A team's own questions with the sources that answer them, asked again after every update of corpus or model."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from medagent.api import LoadedAgent, question_of
from medagent.errors import InputError
from medagent.evaluation.answer_folder import JsonLog
from medagent.evaluation.benchmarks.rows import read_rows
from medagent.evaluation.statistics import Accuracy, mcnemar_exact
from medagent.evidence.answers import Answer, asking_back
from medagent.evidence.kinds import EvidenceKind
from medagent.retrieval.passages import Passage
from medagent.serving.rewriting import asks_back, standing_alone

SURE = 0.05  # p of McNemar's test below which a change for the worse is no chance


@dataclass(frozen=True)
class AcceptanceQuestion:
    """A question with what answers it.

    `sources` are ids, documents, file names or titles of the passages that do; without any, the corpus has no answer.
    `sentences`, where given, are verbatim, and one of them must be shown. `earlier` are the asker's questions before.
    """

    id: str
    question: str
    sources: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def answered_by(self, passage: Passage, sentence: str) -> bool:
        """Whether a sentence that is shown, of this passage, is one of those expected."""
        names = {passage.id, passage.document, passage.source, passage.title}
        said = _plain(sentence)
        stands = any(_plain(each) in said or said in _plain(each) for each in self.sentences)
        return bool(names & set(self.sources)) and (stands or not self.sentences)


@dataclass(frozen=True)
class AcceptanceResult:
    """What a question got: the verdict's kind, the answer's text, and each sentence shown with its passage's id.

    `first` says whether the first sentence shown is an expected one, `found` whether any is. `asked_of` is a digest of
    the agent and its index.
    """

    id: str
    question: str
    answerable: bool
    kind: str
    text: str
    shown: tuple[tuple[str, str], ...]
    first: bool
    found: bool
    asked_of: str = ""

    @property
    def wrong_stated(self) -> bool:
        """Whether the answer is shown as stated, and rests on no expected source."""
        return self.kind == EvidenceKind.STATED.value and not self.found

    @property
    def right(self) -> bool:
        """An expected sentence is shown; where the corpus has no answer, none is shown as stated."""
        return self.found if self.answerable else not self.wrong_stated

    @staticmethod
    def of(asked: AcceptanceQuestion, answer: Answer, asked_of: str) -> "AcceptanceResult":
        """Compare an answer with what is expected. Of a withheld one the quoted sentences count."""
        cited = [(each.passage, each.quote) for each in answer.citations]
        shown = [*cited, *((quote.passage, quote.text) for quote in answer.quoted)]
        marks = [asked.answered_by(passage, sentence) for passage, sentence in shown]
        told = answer.verdict.kind.value, answer.text, tuple((passage.id, sentence) for passage, sentence in shown)
        first, found = any(marks[:1]), any(marks)
        return AcceptanceResult(asked.id, asked.question, bool(asked.sources), *told, first, found, asked_of)


def _plain(text: str) -> str:
    return " ".join(text.split()).lower()


def read_acceptance(path: Path) -> list[AcceptanceQuestion]:
    """The questions of a JSONL file. Other fields are ignored, unless they look like a misspelt one ("source").

    Raises:
        InputError: the file cannot be read, or a line is no question. The message names the line.
    """
    known = {each.name for each in fields(AcceptanceQuestion)}
    found: dict[str, AcceptanceQuestion] = {}
    for row in read_rows(path, kind="jsonl", notes=Counter()):
        data = row.data
        lists = {name: data.get(name) or [] for name in ("sources", "sentences", "earlier", "options")}
        wrong = [name for name, given in lists.items() if not _are_texts(given)]
        wrong += [] if _are_texts([data.get("question")]) else ["question"]
        wrong += [key for key in data if key not in known and get_close_matches(key, known, cutoff=0.8)]
        name = str(data.get("id") or row.number)
        if wrong or name in found:
            told = f"the id {name!r} a second time" if name in found else f"{wrong[0]}: {data.get(wrong[0])!r}"
            others = f"{', '.join(sorted(known - {'question'}))}; id is a text, the others are lists of texts"
            raise InputError(f"{row.where}: found {told}. Each line wants a question (text), and may have {others}.")
        found[name] = AcceptanceQuestion(name, data["question"], **{key: tuple(given) for key, given in lists.items()})
    if not found:
        raise InputError(f"{path}: found no question, wanted one per line, as JSON.")
    return list(found.values())


def _are_texts(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(each, str) and each.strip() for each in given)


def ask_all(
    agent: LoadedAgent, questions: Sequence[AcceptanceQuestion], out: Path, asked_of: str, on_new: Callable[[int], None]
) -> list[AcceptanceResult]:
    """Ask each question that `out` has no result for, as the service would, and append its result there at once.

    `on_new` is told how many there are.

    Raises:
        InputError: `out` has results of another agent or index, or all of them already.
    """
    log = JsonLog(out)
    log.repair()
    done = {result.id: result for result in read_results(out)} if out.exists() else {}
    wanted = {asked.id for asked in questions}
    if wanted <= done.keys() or any(result.asked_of != asked_of for result in done.values()):
        what = "a result for each question" if wanted <= done.keys() else "results of another agent or index"
        raise InputError(f"{out}: has {what} already. Give another --out, or remove it.")
    out.parent.mkdir(parents=True, exist_ok=True)
    for asked in questions:
        if asked.id in done:
            continue
        conversation = [*asked.earlier, asked.question]
        text = standing_alone(conversation)
        back = "" if asked.options else asks_back(conversation, text)
        answer = asking_back(back, None) if back else agent.answer(question_of(text, asked.options))
        result = AcceptanceResult.of(asked, answer, asked_of)
        log.write(asdict(result))
        done[asked.id] = result
        on_new(len(done))
    return [done[asked.id] for asked in questions]


def read_results(path: Path) -> list[AcceptanceResult]:
    """The results that `ask_all` wrote."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        return [AcceptanceResult(**row | {"shown": tuple(map(tuple, row["shown"]))}) for row in rows]
    except (OSError, TypeError, KeyError, ValueError) as error:
        raise InputError(f"{path}: no results of medagent acceptance ({error}).") from error


@dataclass(frozen=True)
class Acceptance:
    """Shares over the questions that have an answer (first, found) and over all (wrong_stated), with 95% intervals.

    `changed` are the questions whose answer is another than before, the newly wrong first; `worse` and `better` count
    the newly wrong and the newly right. `stops` are the reasons not to take the update; none means that it may be.
    """

    first: Accuracy
    found: Accuracy
    wrong_stated: Accuracy
    changed: tuple[tuple[AcceptanceResult, AcceptanceResult], ...]
    worse: int
    better: int
    stops: tuple[str, ...]

    @staticmethod
    def of(
        results: Sequence[AcceptanceResult],
        before: Mapping[str, AcceptanceResult],
        *,
        min_found: float,
        max_wrong_stated: float,
    ) -> "Acceptance":
        """Count, compare with the results `before`, and apply the stop rule."""
        answerable = [result for result in results if result.answerable]
        pairs = [(before[now.id], now) for now in results if now.id in before]
        changed = [(old, now) for old, now in pairs if (old.kind, old.text) != (now.kind, now.text)]
        worse, better = (sum(a.right is flag and b.right is not flag for a, b in pairs) for flag in (True, False))
        first, found = (
            Accuracy.of(sum(getattr(each, name) for each in answerable), len(answerable)) for name in ("first", "found")
        )
        wrong = Accuracy.of(sum(result.wrong_stated for result in results), len(results))
        stops = []
        if answerable and found.accuracy < min_found:
            stops.append(f"an expected source is shown for {found.accuracy:.1%}, wanted {min_found:.1%}")
        if wrong.accuracy > max_wrong_stated:
            most = f"wanted at most {max_wrong_stated:.1%}"
            stops.append(f"{wrong.accuracy:.1%} are stated on no expected source, {most}")
        if worse > better and mcnemar_exact(worse, better) < SURE:
            stops.append(f"{worse} questions are newly wrong and {better} newly right")
        changed.sort(key=lambda pair: (not (pair[0].right and not pair[1].right), pair[1].id))
        return Acceptance(first, found, wrong, tuple(changed), worse, better, tuple(stops))

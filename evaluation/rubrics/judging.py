"""Collects replies and verdicts, logs each as it comes, and resumes an interrupted run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from medagent.agent import rollout_seed
from medagent.errors import ConfigError, InputError
from medagent.evaluation.answer_folder import JsonLog, begin
from medagent.evaluation.grading.reasoning_text import without_reasoning
from medagent.evaluation.rubrics.judge import PROMPTS_SHA256, criterion_prompt, pair_prompt, read_choice, read_met
from medagent.evaluation.rubrics.responder import Asked, NamedAgent, Responder, ask_all
from medagent.evaluation.rubrics.rows import Case, Choice, Labelled, Pair, Rows, read_rubric_rows
from medagent.evaluation.rubrics.scores import Agreement, Preference, agreement, preference, rubric_scores
from medagent.evaluation.statistics import Estimate
from medagent.files import write_whole
from medagent.run_folder import RunFolder

Said = Mapping[str, str]
AGAIN_TEMPERATURE = 0.7  # of a verdict that is asked for again: greedy, it would be the same


@dataclass(frozen=True)
class JudgeSettings:
    """How replies and verdicts are asked for. A verdict that cannot be read is asked for `tries` times in all."""

    seed: int = 0
    temperature: float = 0.0
    reply_tokens: int = 2_048
    verdict_tokens: int = 1_024
    tries: int = 3
    concurrency: int = 16

    def __post_init__(self) -> None:
        """Raise `ConfigError` for what cannot be done."""
        if self.tries < 1 or self.concurrency < 1 or self.reply_tokens < 1 or self.verdict_tokens < 1:
            raise ConfigError(f"{self}: wanted 1 or more of each.")


@dataclass(frozen=True)
class RubricReport:
    """The figures of a rubric.

    `unread` counts the verdicts that could not be read, and `left_out` the rows they cost. `empty` counts the replies
    that say nothing, such as those of a model that was still thinking at its limit: they meet no criterion.
    """

    scores: dict[str, Estimate]
    agreement: Agreement | None
    preference: Preference | None
    verdicts: int
    unread: int
    left_out: int
    empty: int = 0


class ReplyLog(JsonLog):
    """Replies by name in a file of JSON lines, to which each is appended as it comes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.repair()
        self.replies: dict[str, str] = {row["name"]: row["reply"] for row in map(json.loads, self.lines())}

    def append(self, name: str, reply: str) -> None:
        """Append a reply."""
        self.replies[name] = reply
        self.write({"name": name, "reply": reply})


def judge_file(
    path: Path,
    judge: NamedAgent,
    agent: NamedAgent | None,
    folder: Path,
    settings: JudgeSettings,
    *,
    limit: int | None = None,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> RubricReport:
    """Judge the first `limit` rows of a file; see `judge_rows`. Only cases need an `agent`, which replies to them.

    Raises:
        InputError: the rows, the judge or the agent cannot be used.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit: found {limit}, wanted 1 or more.")
    rows = read_rubric_rows(path)[:limit]
    replying = agent if isinstance(rows[0], Case) else None
    if replying is None and isinstance(rows[0], Case):
        raise InputError(f"{path}: its cases have no replies. Name an agent that gives them, with --agent.")
    return judge_rows(
        rows,
        judge.open(),
        folder,
        settings,
        responder=replying.open() if replying else None,
        identity={"agent": replying.described() if replying else None, "judge": judge.described()},
        on_progress=on_progress,
    )


def judge_rows(
    rows: Rows,
    judge: Responder,
    folder: Path,
    settings: JudgeSettings,
    *,
    responder: Responder | None,
    identity: Mapping[str, Any],
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> RubricReport:
    """Replies where the rows have none (`responder`), then verdicts, then figures; report.json is written to `folder`.

    `identity` says who speaks and who judges. A folder begun with another one is refused.
    """
    written = RunFolder(folder, "rubric")
    with written.sole_writer():
        written.claim("config.json", "replies.jsonl", "verdicts.jsonl", "report.json")
        wanted = {**identity, **asdict(settings), "prompts_sha256": PROMPTS_SHA256, "rows_sha256": _digest(rows)}
        del wanted["concurrency"]  # which changes no reply
        begin(folder, wanted, kind="judgements")
        ask = _Asking(folder, settings, on_progress)
        if isinstance(rows[0], Case):
            report = _judge_cases(rows, ask, judge, responder)
        elif isinstance(rows[0], Labelled):
            report = _judge_labelled(rows, ask, judge)
        else:
            report = _judge_pairs(rows, ask, judge)
        write_whole(folder / "report.json", json.dumps({**wanted, **asdict(report)}, indent=2) + "\n")
        return report


@dataclass(frozen=True)
class _Asking:
    folder: Path
    settings: JudgeSettings
    on_progress: Callable[[str, int, int], None]

    def replies(self, responder: Responder, asked: Sequence[Asked]) -> Said:
        """A reply for each."""
        log = ReplyLog(self.folder / "replies.jsonl")
        self._ask(log, responder, asked, "replies", self.settings.reply_tokens, self.settings.temperature)
        said = {name: without_reasoning(log.replies[name]) for name, _ in asked}
        return {name: "" if cut_off else text.strip() for name, (text, cut_off) in said.items()}

    def verdicts(self, judge: Responder, asked: Sequence[Asked], read: Callable[[str, str], object]) -> Said:
        """The judge's reply for each; what cannot be read is asked for again under the name of the next try."""
        log = ReplyLog(self.folder / "verdicts.jsonl")
        for number in range(self.settings.tries):
            again = [
                (_named(name, number), messages)
                for name, messages in asked
                if all(read(name, log.replies.get(_named(name, tried), "")) is None for tried in range(number))
            ]
            what = "verdicts" if not number else f"verdicts, try {number + 1}"
            warmer = self.settings.temperature if not number else max(self.settings.temperature, AGAIN_TEMPERATURE)
            self._ask(log, judge, again, what, self.settings.verdict_tokens, warmer)
        kept = {}
        for name, _ in asked:
            said = [log.replies.get(_named(name, number)) for number in range(self.settings.tries)]
            kept[name] = next((s for s in said if s is not None and read(name, s) is not None), "")
        return kept

    def _ask(
        self, log: ReplyLog, responder: Responder, asked: Sequence[Asked], what: str, tokens: int, temperature: float
    ) -> None:
        left = [each for each in asked if each[0] not in log.replies]
        done = len(asked) - len(left)

        def keep(name: str, reply: str) -> None:
            nonlocal done
            log.append(name, reply)
            done += 1
            self.on_progress(what, done, len(asked))

        settings = self.settings
        if left:
            ask_all(
                responder,
                left,
                seed=lambda name: rollout_seed(settings.seed, iteration=-1, question_id=name, sample=0) % 2**31,
                temperature=temperature,
                max_tokens=tokens,
                concurrency=settings.concurrency,
                on_reply=keep,
            )


def _named(name: str, number: int) -> str:
    return f"{name}#{number}" if number else name


def _judge_cases(cases: list[Case], ask: _Asking, judge: Responder, responder: Responder | None) -> RubricReport:
    if responder is None:
        raise ConfigError("cases of a rubric have no replies: name an agent that gives them, with --agent.")
    said = ask.replies(responder, [(case.id, case.messages) for case in cases])
    asked = [
        (f"{case.id}/{number}", criterion_prompt(case.messages, said[case.id], criterion.text))
        for case in cases
        for number, criterion in enumerate(case.criteria)
    ]
    verdicts = ask.verdicts(judge, asked, lambda _, reply: read_met(reply))
    met = {
        case.id: [read_met(verdicts[f"{case.id}/{number}"]) for number in range(len(case.criteria))] for case in cases
    }
    whole = {name: [bool(each) for each in marks] for name, marks in met.items() if None not in marks}
    judged = [case for case in cases if case.id in whole]
    unread = sum(mark is None for marks in met.values() for mark in marks)
    scores = rubric_scores(judged, whole) if judged else {}
    empty = sum(not said[case.id] for case in cases)
    return RubricReport(scores, None, None, len(asked), unread, len(cases) - len(judged), empty)


def _judge_labelled(rows: list[Labelled], ask: _Asking, judge: Responder) -> RubricReport:
    asked = [(row.id, criterion_prompt(row.messages, row.reply, row.criterion)) for row in rows]
    verdicts = ask.verdicts(judge, asked, lambda _, reply: read_met(reply))
    met = {name: mark for name, reply in verdicts.items() if (mark := read_met(reply)) is not None}
    read = [row for row in rows if row.id in met]
    left_out = len(rows) - len(read)
    return RubricReport({}, agreement(read, met) if read else None, None, len(asked), left_out, left_out)


def _judge_pairs(pairs: list[Pair], ask: _Asking, judge: Responder) -> RubricReport:
    def read(name: str, reply: str) -> Choice | None:
        return read_choice(reply, swapped=name.endswith("/swapped"))

    asked = [
        (f"{pair.id}/{'swapped' if swapped else 'straight'}", pair_prompt(pair, swapped=swapped))
        for pair in pairs
        for swapped in (False, True)
    ]
    verdicts = ask.verdicts(judge, asked, read)
    choices = {name: read(name, reply) for name, reply in verdicts.items()}
    both: dict[str, tuple[Choice, Choice]] = {}
    for pair in pairs:
        straight, swapped = choices[f"{pair.id}/straight"], choices[f"{pair.id}/swapped"]
        if straight is not None and swapped is not None:
            both[pair.id] = straight, swapped
    judged = [pair for pair in pairs if pair.id in both]
    unread = sum(choice is None for choice in choices.values())
    return RubricReport(
        {}, None, preference(judged, both) if judged else None, len(asked), unread, len(pairs) - len(judged)
    )


def _digest(rows: Rows) -> str:
    return sha256(json.dumps([asdict(row) for row in rows]).encode()).hexdigest()

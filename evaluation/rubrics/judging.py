"""An LLM judge: its prompts, the verdicts read in its replies, and runs that go on where they were interrupted."""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

from medagent.errors import ConfigError, InputError
from medagent.evaluation.answer_folder import JsonLog, begin
from medagent.evaluation.grading.replies import without_reasoning
from medagent.evaluation.rubrics.responder import Responder, as_text
from medagent.evaluation.rubrics.rows import Case, Labelled, Message, read_rubric_rows
from medagent.evaluation.rubrics.scores import Agreement, agreement, rubric_scores
from medagent.evaluation.statistics import Estimate
from medagent.files import write_json
from medagent.lazy import packaged
from medagent.run_folder import RunFolder
from medagent.types import rollout_seed
from medagent.untrusted_text import visible, with_look_alikes

Asked = tuple[str, Sequence[Message]]  # a name, and the conversation
AGAIN_TEMPERATURE = 0.7  # of a verdict that is asked for again: greedy, it would be the same
CRITERION: str = packaged("medagent.evaluation.rubrics", "prompts.yaml")["criterion"]
PROMPTS_SHA256 = sha256(CRITERION.encode()).hexdigest()
_BLOCK = re.compile(r"<\s*/?\s*(?:conversation|reply|requirement)\b[^>]*>?", re.IGNORECASE)
_MET = re.compile(r"[\"']?criteria_met[\"']?\s*[:=]\s*[\"']?(true|false)\b", re.IGNORECASE)


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
        if self.tries < 1 or self.concurrency < 1 or self.reply_tokens < 1 or self.verdict_tokens < 1:
            raise ConfigError(f"{self}: wanted 1 or more of each.")


@dataclass(frozen=True, kw_only=True)
class RubricReport:
    """The figures of a rubric.

    `unread` counts the verdicts that could not be read, and `left_out` the rows they cost. `empty` counts the replies
    that say nothing, such as those of a model that was still thinking at its limit: they meet no criterion.
    """

    scores: dict[str, Estimate] = field(default_factory=dict)
    agreement: Agreement | None = None
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
    judge: Callable[[], Responder],
    agent: Callable[[], Responder] | None,
    folder: Path,
    settings: JudgeSettings,
    *,
    limit: int | None = None,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> RubricReport:
    """Judge the first `limit` rows of a file, and write report.json to `folder`.

    `judge` opens who judges. `agent` opens who replies to cases; labels need none. A folder that was begun
    with other rows, responders or settings is refused.

    Raises:
        InputError: the rows, the judge or the agent cannot be used.
        ConfigError: the folder holds other judgements.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit: found {limit}, wanted 1 or more.")
    rows = read_rubric_rows(path)[:limit]
    cases = isinstance(rows[0], Case)
    if cases and agent is None:
        raise InputError(f"{path}: its cases have no replies. Name an agent that gives them, with --agent.")
    replying, judging = agent() if agent and cases else None, judge()
    identity = {
        "agent": replying.described if replying else None,
        "judge": judging.described,
        **asdict(settings),
        "prompts_sha256": PROMPTS_SHA256,
        "rows_sha256": sha256(json.dumps([asdict(row) for row in rows]).encode()).hexdigest(),
    }
    del identity["concurrency"]  # which changes no reply
    written = RunFolder(folder, "rubric")
    with written.sole_writer():
        written.claim("config.json", "replies.jsonl", "verdicts.jsonl", "report.json")
        begin(folder, identity, kind="judgements")
        ask = Asking(folder, settings, on_progress)
        report = _judge_cases(rows, ask, judging, replying) if replying else _judge_labelled(rows, ask, judging)
        write_json(folder / "report.json", {**identity, **asdict(report)})
        return report


@dataclass(frozen=True)
class Asking:
    """Asks for what the logs in a folder lack."""

    folder: Path
    settings: JudgeSettings
    on_progress: Callable[[str, int, int], None]

    def replies(self, responder: Responder, asked: Sequence[Asked]) -> dict[str, str]:
        """A reply for each, without its reasoning; empty where it was cut off in there."""
        log = ReplyLog(self.folder / "replies.jsonl")
        self._ask(log, responder, asked, "replies", self.settings.reply_tokens, self.settings.temperature)
        said = {name: without_reasoning(log.replies[name]) for name, _ in asked}
        return {name: "" if cut_off else text.strip() for name, (text, cut_off) in said.items()}

    def verdicts(self, judge: Responder, asked: Sequence[Asked]) -> dict[str, bool]:
        """The verdicts that can be read, by name. Each other one is asked for again, under the name of its try."""
        log, found = ReplyLog(self.folder / "verdicts.jsonl"), dict[str, bool]()
        for number in range(self.settings.tries):
            names = {name: f"{name}#{number}" if number else name for name, _ in asked if name not in found}
            what = f"verdicts, try {number + 1}" if number else "verdicts"
            warmer = max(self.settings.temperature, AGAIN_TEMPERATURE) if number else self.settings.temperature
            again = [(names[name], messages) for name, messages in asked if name in names]
            self._ask(log, judge, again, what, self.settings.verdict_tokens, warmer)
            verdicts = {name: read_met(log.replies[tried]) for name, tried in names.items()}
            found |= {name: verdict for name, verdict in verdicts.items() if verdict is not None}
        return found

    def _ask(
        self, log: ReplyLog, responder: Responder, asked: Sequence[Asked], what: str, tokens: int, temperature: float
    ) -> None:
        settings, left = self.settings, [each for each in asked if each[0] not in log.replies]
        done, waiting = len(asked) - len(left), iter(left)

        async def work() -> None:
            nonlocal done
            for name, messages in waiting:
                seed = rollout_seed(settings.seed, iteration=-1, question_id=name, sample=0) % 2**31
                reply = await responder.reply(messages, seed=seed, temperature=temperature, max_tokens=tokens)
                log.append(name, reply)
                done += 1
                self.on_progress(what, done, len(asked))

        async def run() -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(settings.concurrency, len(left))):
                        group.create_task(work())
            except* Exception as failures:
                raise failures.exceptions[0] from None
            finally:
                await responder.agent.policy.disconnect()

        if left:
            asyncio.run(run())


def _judge_cases(cases: Sequence[Case], ask: Asking, judge: Responder, responder: Responder) -> RubricReport:
    said = ask.replies(responder, [(case.id, case.messages) for case in cases])
    asked = [
        (f"{case.id}/{number}", criterion_prompt(case.messages, said[case.id], criterion.text))
        for case in cases
        for number, criterion in enumerate(case.criteria)
    ]
    read = ask.verdicts(judge, asked)
    met: dict[str, Sequence[bool]] = {
        case.id: [read[name] for number in range(len(case.criteria)) if (name := f"{case.id}/{number}") in read]
        for case in cases
    }
    judged = [case for case in cases if len(met[case.id]) == len(case.criteria)]
    return RubricReport(
        scores=rubric_scores(judged, met, said),
        verdicts=len(asked),
        unread=len(asked) - len(read),
        left_out=len(cases) - len(judged),
        empty=sum(not said[case.id] for case in cases),
    )


def _judge_labelled(rows: Sequence[Labelled], ask: Asking, judge: Responder) -> RubricReport:
    asked = [(row.id, criterion_prompt(row.messages, row.reply, row.criterion)) for row in rows]
    met = ask.verdicts(judge, asked)
    read = [row for row in rows if row.id in met]
    left_out = len(rows) - len(read)
    agreed = agreement(read, met) if read else None
    return RubricReport(agreement=agreed, verdicts=len(asked), unread=left_out, left_out=left_out)


def criterion_prompt(messages: Sequence[Message], reply: str, criterion: str) -> list[Message]:
    """The messages that ask whether a reply meets a criterion."""
    # Marks by which a text could end its block become look-alikes.
    parts = [with_look_alikes(visible(each), _BLOCK) for each in (as_text(messages), reply, criterion)]
    asked = CRITERION.format(**dict(zip(("conversation", "reply", "criterion"), parts, strict=True)))
    return [{"role": "user", "content": asked}]


def read_met(reply: str) -> bool | None:
    """The last verdict on a criterion in a reply, None where there is none."""
    whole = json_objects(reply.strip()) if reply.lstrip().startswith("{") else []
    said, cut_off = without_reasoning(reply)
    said = "" if cut_off else said
    values = [each["criteria_met"] for each in whole or json_objects(said) if "criteria_met" in each]
    found = (values or _MET.findall(said) or [None])[-1]  # of a JSON object, else of something like one
    return found if isinstance(found, bool) else {"true": True, "false": False}.get(str(found).lower())


def json_objects(text: str) -> list[dict[str, object]]:
    """The JSON objects in a text, in order; none within another."""
    decoder, found, at = json.JSONDecoder(strict=False), list[dict[str, object]](), text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError:
            end = at + 1
        else:
            found += [value] if isinstance(value, dict) else []
        at = text.find("{", end)
    return found

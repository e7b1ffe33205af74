"""The work of `medagent replay`: makes an answer again from its record, and compares the two."""

import asyncio
import difflib
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from medagent.agent import Job
from medagent.cli.ask import agent_of, check_of
from medagent.cli.commands.ask import ServeCommand
from medagent.cli.safe_text import escape
from medagent.cli.serve import MATTERING, engine_of, made_with
from medagent.errors import ConfigError, MedagentError
from medagent.evidence.answers import Steps, answer_job
from medagent.policies.chat_endpoint import RemotePolicy
from medagent.retrieval.chunking import split_sentences
from medagent.retrieval.filters import Filter
from medagent.serving.openai_form import source_line
from medagent.serving.records import read_record
from medagent.types import Question, Turn

Row = Mapping[str, Any]
NOT_COMPARED = {"logprob", "usage", "nearest"}  # rounding, counts, and passages that `quoted` names


def print_replay(id: str, records: Path, given: Mapping[str, Any]) -> None:
    """Print what differs between a recorded answer and the one given now, by the agent and index `given` if any.

    Raises:
        InputError: there is no record of this id.
        ConfigError: it cannot be read.
        MedagentError: something differs that people or the agent read.
    """
    then = read_record(records, id)
    try:
        served = ServeCommand(**{name: then["made_with"][name] for name in MATTERING if name in then["made_with"]})
        served = replace(served, **{name: value for name, value in given.items() if value is not None})
        job = Job(Question(id, then["question"], tuple(then["options"])), then["seed"], then["temperature"])
        where, history, before, passages = Filter.parse(then["where"]), then["history"], _told(then), _passages(then)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{records / id}.json: {error!r} found, wanted a record of this version.") from error
    with closing(engine_of(served)) as engine:
        agent = agent_of(served, engine=engine)
        tell = Steps(agent.protocol, agent.retriever)

        def on_turn(turn: Turn) -> None:
            tell(turn)

        answering = answer_job(
            agent,
            job,
            check=check_of(served, agent.retriever, number=served.emergency_number),
            search=agent.search_batcher().within(where),
            history=history,
            on_turn=on_turn,
        )
        answer = replace(asyncio.run(answering), rewritten_question=then["answer"]["asked_as"])
        now = json.loads(json.dumps({"turns": tell.turns, "answer": answer.to_json()}))
    causes = list(_changes(then["made_with"], made_with(served, agent)))
    found = [*_moved(passages, _passages(now)), *_changes(before, _told(now))]
    console = Console(highlight=False, soft_wrap=True)
    for line in [f"{then['time']}: {then['question']}", *causes, *found]:
        console.print(escape(line))
    if not found:
        console.print(escape(f"The same answer: {then['answer']['text']}"))
        return
    if isinstance(agent.policy, RemotePolicy) or served.engine != "in_process":
        console.print("A server writes what this agent says. Its sampling cannot be repeated exactly.")
    elif not causes:
        console.print("Nothing that is recorded has changed. Another machine or library may round otherwise.")
    raise MedagentError(f"answer {id}: it differs now. The lines above say in what.")


def _changes(then: Row, now: Row) -> Iterator[str]:
    """Two lines for each name whose value differs. A name that is new with this version is left out."""
    return (f"{name} then: {then[name]}\n{name} now:  {now.get(name)}" for name in then if then[name] != now.get(name))


def _told(row: Row) -> dict[str, Any]:
    """What the agent wrote in each turn, and the fields of the answer that people read; passages as their sentences."""
    turns = {f"turn {number}": turn["text"] or turn["query"] for number, turn in enumerate(row["turns"], start=1)}
    answer = {name: value for name, value in row["answer"].items() if name not in NOT_COMPARED}
    for name in ("sources", "quoted"):
        answer[name] = [each["passage"]["text"][slice(*each["sentence"])].strip() for each in answer[name]]
    return turns | answer


def _passages(row: Row) -> dict[str, list[str]]:
    """The sentences of the passages that the agent or people were shown, by where they are from."""
    shown = [each["passage"] for turn in row["turns"] for each in turn["passages"]]
    shown += [each["passage"] for each in row["answer"]["quoted"]]
    found: dict[str, list[str]] = {}
    for passage in sorted({each["id"]: each for each in shown}.values(), key=lambda each: each["text"]):
        place = ", ".join([source_line(passage), *passage.get("notices", ())])
        found.setdefault(place, []).extend(split_sentences(passage["text"]))
    return found


def _moved(then: Mapping[str, list[str]], now: Mapping[str, list[str]]) -> Iterator[str]:
    """Lines on what is read of each place where that differs."""
    for place in sorted(then.keys() | now.keys()):
        if then.get(place) != now.get(place):
            what = (
                "new, found only now" if place not in then else "changed" if place in now else "gone, found only then"
            )
            lines = [line for line in difflib.ndiff(then.get(place, []), now.get(place, [])) if line[0] in "-+"]
            yield "\n  ".join([f"{place}: {what}", *lines])

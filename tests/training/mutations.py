"""Seeded mistakes: each is put into a copy of the code, and some test must fail.

Run by hand: `python -m tests.training.mutations`, or with the numbers of some, or with kinds such as `seeds`.

Takes seconds per mistake, up to half a minute. Exit status 1 if one is not caught. The list is `mutations.yaml`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.support import ROOT

LIST = Path(__file__).with_name("mutations.yaml")
# The tests that are tried for a mistake: those of its suite, fast ones first.
SUITES = {
    "algorithms": (
        *(f"tests/training/test_{name}.py" for name in ("advantages", "objectives", "reference", "exact_groups")),
        "tests/training/callbacks/test_correction.py",
        *(f"tests/training/test_{name}.py" for name in ("module", "data", "golden", "exact_steps")),
    ),
    "steps": tuple(
        f"tests/training/{name}.py"
        for name in (
            *("test_distinct", "test_exact_groups", "test_temperature", "test_validation"),
            *("prepare/test_bootstrap", "test_exact_steps"),
        )
    ),
    "records": ("tests/training/callbacks/test_records.py",),
    "collection": ("tests/training/rollouts/test_collection.py",),
    "draws": ("tests/training/test_distinct.py", "tests/training/test_exact_groups.py"),
    "ranks": ("tests/training/test_distinct.py", "tests/training/test_pretend_ranks.py"),
    "groups": ("tests/training/test_exact_groups.py",),
    "trees": ("tests/training/test_prefixes.py", "tests/medagent/models/test_grouped_attention.py"),
    "slots": tuple(
        f"tests/medagent/policies/test_{name}.py" for name in ("inversion", "batch", "shared_texts", "huggingface")
    ),
    "fused": (
        "tests/medagent/models/test_fused_lora.py",
        *(f"tests/training/test_{name}.py" for name in ("heads", "forward")),
    ),
    "loop": (
        "tests/medagent/test_limits.py",
        "tests/medagent/test_hostile_doors.py",
        "tests/training/test_shown_passages.py",
        "tests/medagent/test_protocol.py",
    ),
    "policies": (
        *(f"tests/medagent/policies/test_{name}.py" for name in ("requests", "turn_ends")),
        "tests/training/test_temperature.py",
    ),
    "sampling": ("tests/medagent/test_sampling_settings.py",),
    "bases": (
        *(f"tests/medagent/models/test_{name}.py" for name in ("base_models", "precision")),
        *(
            f"tests/training/{name}.py"
            for name in ("memory/test_batch_size_tuning", "test_auto_dtype", "test_gguf_base")
        ),
    ),
    "evaluation": ("tests/evaluation/test_plan_asks.py",),
    "controls": ("tests/evaluation/test_modes.py", "tests/medagent/test_given_turns.py"),
    "sft": tuple(
        f"tests/training/sft/test_{name}.py"
        for name in ("dialogues", "dealing", "tokenized_dialogues", "jsonl_dialogues")
    ),
    "scripts": tuple(
        f"tests/training/sft/test_{name}.py" for name in ("scripted_search", "scripted", "mixed", "held_out")
    ),
    "text": (
        *(f"tests/medagent/test_{name}.py" for name in ("untrusted_text", "hostile_doors")),
        *(f"tests/medagent/models/test_{name}.py" for name in ("role_marks", "chat_template")),
    ),
    "models": (
        "tests/medagent/models/test_text_length.py",
        *(f"tests/medagent/policies/test_{name}.py" for name in ("turn_ends", "completions", "self_check")),
        *(f"tests/medagent/policies/test_{name}.py" for name in ("not_finite", "model_zoo", "huggingface")),
    ),
    "weight sync": (
        *(f"tests/training/engines/test_{name}.py" for name in ("weight_sync_check", "vllm_stand_in")),
        *(f"tests/training/engines/test_{name}.py" for name in ("in_process", "engines")),
        "tests/medagent/policies/test_vllm_worker.py",
        "tests/medagent/test_export.py",
    ),
    "replicas": ("tests/medagent/policies/test_vllm_server.py",),
    "callbacks": (
        "tests/training/callbacks/test_export_callback.py",
        *(f"tests/training/test_{name}.py" for name in ("validation", "agent_data")),
    ),
    "compute": (
        *(f"tests/training/{name}.py" for name in ("test_token_counts", "callbacks/test_budget")),
        "tests/studies/test_budget.py",
    ),
    "resumption": (
        *(f"tests/training/test_{name}.py" for name in ("agent_data", "whole_iterations")),
        "tests/training/callbacks/test_monitor_elsewhere.py",
    ),
    "guards": tuple(
        f"tests/training/test_{name}.py"
        for name in ("settings", "metrics_of_ranks", "packing", "finite_steps", "execution", "dropout")
    ),
}
PARTS = ("configs", "evaluation", "medagent", "retrieval", "studies", "tests", "training", "pyproject.toml")


@dataclass(frozen=True)
class Mutation:
    """One mistake: in a file, a text that occurs once, and what a slip would make of it.

    `kind` groups mistakes. `suite` names the tests that must catch it.
    """

    kind: str
    what: str
    file: str
    right: str
    wrong: str
    suite: str


MUTATIONS = [Mutation(**entry) for entry in yaml.safe_load(LIST.read_text(encoding="utf-8"))]


def copied(folder: Path) -> None:
    """Copy what the tests need."""
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, folder / part)


def failing(copy: Path, suite: str) -> list[str]:
    """The first test of a suite that fails in a copy of the code."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "--no-header", "-p", "no:cacheprovider", *SUITES[suite]],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, flags=re.MULTILINE)
    return failed or ([f"(status {done.returncode})"] if done.returncode not in (0, 1) else [])


def caught_by(mutation: Mutation, copy: Path) -> list[str]:
    """The tests that fail with the mistake in place; the copy is then as it was."""
    path = copy / mutation.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutation.right) != 1:
        raise SystemExit(
            f"{mutation.what}: {mutation.file} has the text {text.count(mutation.right)} times, wanted once."
        )
    try:
        path.write_text(text.replace(mutation.right, mutation.wrong), encoding="utf-8")
        return failing(copy, mutation.suite)
    finally:
        path.write_text(text, encoding="utf-8")


def main() -> int:
    """Try every mistake and print the test that catches it; before that, that the tests pass without one."""
    numbers = {int(word) for word in sys.argv[1:] if word.isdigit()}
    kinds = {word for word in sys.argv[1:] if not word.isdigit()}
    chosen = [
        (number, mutation)
        for number, mutation in enumerate(MUTATIONS, start=1)
        if not (numbers or kinds) or number in numbers or mutation.kind in kinds
    ]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copied(Path(folder))
        for suite in sorted({mutation.suite for _, mutation in chosen}):
            if healthy := failing(Path(folder), suite):
                raise SystemExit(f"the tests of {suite} fail without any mistake: {healthy}")
        for number, mutation in chosen:
            caught = caught_by(mutation, Path(folder))
            missed += not caught
            print(f"{number:3d}. {mutation.kind}: {mutation.what}: {caught[0] if caught else 'NOT CAUGHT'}", flush=True)
    print(f"{len(chosen)} tried, {missed} not caught")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())

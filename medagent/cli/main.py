"""The command line: `medagent demo | train | plan | sft | export | evaluate | compare | grade | contamination | ask | chat | serve | index | search | study | starter`.

This module alone may import every package, and does so inside its commands, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
from inspect import get_annotations
from pathlib import Path
from typing import Any

from jsonargparse import auto_cli

from medagent.cli.commands.ask import ASKING_COMMANDS
from medagent.cli.commands.index import INDEX_COMMANDS, search
from medagent.cli.commands.train import CONFIGURED, TRAINING_COMMANDS
from medagent.errors import MedagentError
from medagent.serving.names import BenchmarkName, ModeName
from retrieval.errors import RetrievalError


def demo(out: str = "runs/demo", seed: int = 0, iterations: int | None = None, threads: int = 0) -> None:
    """Watch a small agent learn to search: measure, train with ST-PPO, measure again, ask it a question.

    Args:
        out: Folder for indexes, logs, report and agent; an earlier demo there is replaced.
        seed: Seed of questions, sampling and initialisation.
        iterations: Training iterations; none takes the number in configs/schedules/demo.yaml; many more need a longer decay than it has.
        threads: Torch threads; 0 keeps torch's own choice.
    """
    from medagent.cli.demo import run_demo

    run_demo(Path(out), seed=seed, iterations=iterations, threads=threads)


def evaluate(
    agent: str = "runs/demo/agent",
    benchmark: BenchmarkName = "starter",
    path: str | None = None,
    hub: str | None = None,
    subset: str | None = None,
    split: str | None = None,
    start: int = 0,
    stop: int | None = None,
    limit: int | None = None,
    limit_seed: int = 0,
    modes: ModeName | list[ModeName] = "search",
    samples: int = 1,
    rotations: bool = False,
    temperature: float = 0.0,
    seed: int = 0,
    index: str | None = None,
    model: str = "",
    tools: list[str] | None = None,
    limits: dict[str, int] | None = None,
    concurrency: int = 64,
    out: str = "runs/evaluation/default",
    overwrite: bool = False,
) -> None:
    """Measure an agent on a benchmark; run the same command again after an interruption and it goes on.

    Writes report.html, report.json, report.md and predictions.jsonl. configs/eval holds a file for each benchmark:
    medagent evaluate --config configs/eval/medqa.yaml --agent runs/mine/agent

    Args:
        agent: Folder of an exported agent; "starter" (the untrained base policy); "hf:MODEL" (a causal language model by hub name or folder); or the address of an OpenAI-compatible endpoint, such as http://localhost:8000/v1.
        benchmark: Which benchmark; "starter" is packaged, "jsonl" are your own questions, "open" has several right answers.
        path: The benchmark's file or folder.
        hub: The benchmark's name on the hub, instead of a file (needs the package datasets).
        subset: The hub's subset (configuration).
        split: Split of the starter world or of the hub's dataset; none takes the benchmark's usual one.
        start: First question of the file's order to use.
        stop: Question to stop before; none takes all.
        limit: A seeded sample of so many questions.
        limit_seed: Seed of that sample.
        modes: Ways to ask: search, forced_search, closed_book, gold, single_shot, unrelated; several as --modes '[search,closed_book]'.
        samples: Samples a question (give a temperature); adds mean, majority vote and pass@k.
        rotations: Ask again with the options rotated, and report how accuracy and answers change.
        temperature: Sampling temperature; 0 is greedy.
        seed: Seed of sampling.
        index: Index to search instead of the agent's own.
        model: Name of the model, for an endpoint.
        tools: Classes of the agent's tools, as --tools '[my_task.Doses]'; an agent trained with tools needs them.
        limits: Limits instead of the agent's own, e.g. --limits '{"max_total_tokens": 4096}' (max_turns, max_turn_tokens, max_observation_tokens).
        concurrency: Questions asked at once.
        out: Folder of the report.
        overwrite: Begin anew where the folder holds another evaluation.
    """
    from evaluation.benchmarks.source import Source
    from evaluation.modes import modes_named
    from evaluation.run import Plan
    from medagent.cli.evaluate import evaluate_agent

    source = Source(benchmark, path, hub, subset, split, start, stop, limit, limit_seed)
    plan = Plan(modes_named(modes), samples, rotations, temperature, seed)
    evaluate_agent(
        agent,
        source,
        plan,
        index=index,
        model=model,
        tools=tools or [],
        limits=limits or {},
        concurrency=concurrency,
        overwrite=overwrite,
        out=Path(out),
    )


def compare(
    a: str, b: str, mode: ModeName | None = None, mode_b: ModeName | None = None, seed: int = 0, json: bool = False
) -> None:
    """Compare two evaluations question by question: McNemar's exact test, and a paired bootstrap of the difference.

    Args:
        a: Folder of an evaluation.
        b: Folder of another one on the same questions.
        mode: Which mode's answers; none takes the first that both have.
        mode_b: Another mode for B, such as closed_book beside search in one folder.
        seed: Seed of the bootstrap.
        json: Print JSON instead of sentences.
    """
    from evaluation.compare import compare_aloud

    compare_aloud(Path(a), Path(b), mode=mode, mode_b=mode_b, seed=seed, as_json=json)


def grade(file: str, letters: str = "ABCD", out: str | None = None) -> None:
    """Grade raw replies of any model, strictly and leniently, and print the counts as JSON.

    Args:
        file: JSON lines with "id", "gold" (a letter) and "raw" (the reply); "options" where you have them.
        letters: The letters that name an option, where a line has no options.
        out: File for what was read in each reply.
    """
    from evaluation.compare import grade_aloud

    grade_aloud(Path(file), letters=letters, out=out)


def contamination(
    benchmark: BenchmarkName = "medqa",
    test: str | None = None,
    train: str | None = None,
    corpus: str | None = None,
    train_benchmark: BenchmarkName | None = None,
    threshold: float = 0.5,
    show: int = 20,
) -> None:
    """Look for test questions in training questions or in a corpus: near-duplicates by common word 13-grams.

    Args:
        benchmark: Which benchmark the test file is of.
        test: The test questions' file.
        train: The training questions' file.
        corpus: A corpus instead: a path, starter, pubmedqa:FILE or bioasq:PATH.
        train_benchmark: Format of the training file; none takes the test's.
        threshold: Share of a question's 13-grams from which it counts as near-duplicate.
        show: How many of them to list.
    """
    from evaluation.benchmarks.source import Source
    from evaluation.compare import contamination_aloud

    other = Source(train_benchmark or benchmark, path=train) if train else None
    contamination_aloud(Source(benchmark, path=test), other, corpus, threshold=threshold, show=show)


NO_TELEMETRY = {
    "ANONYMIZED_TELEMETRY": "False",  # Chroma
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
COMMANDS: dict[str, Any] = {
    "demo": demo,
    **TRAINING_COMMANDS,
    "evaluate": evaluate,
    "compare": compare,
    "grade": grade,
    "contamination": contamination,
    **ASKING_COMMANDS,
    "index": INDEX_COMMANDS,
    "search": search,
}


def _flags(commands: dict[str, Any]) -> set[str]:
    """The options of all commands that are true or false."""
    functions = [found for found in commands.values() if callable(found)]
    nested = [_flags(found) for found in commands.values() if isinstance(found, dict)]
    own = {f"--{name}" for function in functions for name, kind in get_annotations(function).items() if kind == "bool"}
    return own.union(*nested)


def with_flags_said(arguments: list[str]) -> list[str]:
    """`--overwrite` alone says what `--overwrite true` does."""
    flags = _flags(COMMANDS)
    said: list[str] = []
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=True):
        said.append(argument)
        if argument in flags and after.lower() not in ("true", "false"):
            said.append("true")
    return said


def main(argv: list[str] | None = None) -> int:
    """Run a command; a user's error is one line on standard error and exit status 1."""
    for name, value in NO_TELEMETRY.items():
        os.environ.setdefault(name, value)
    arguments = sys.argv[1:] if argv is None else argv
    own_classes = (arguments[:1] and arguments[0] in CONFIGURED) or any(
        each.startswith("--tools") for each in arguments
    )
    if own_classes and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # where the modules lie that a YAML or --tools names
    try:
        if arguments[:1] and arguments[0] in CONFIGURED:
            CONFIGURED[arguments[0]](arguments[1:])
        else:
            auto_cli(COMMANDS, args=with_flags_said(arguments), prog="medagent", as_positional=True)
    except (MedagentError, RetrievalError) as error:
        print(f"medagent: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nmedagent: interrupted; run the same command again to go on.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

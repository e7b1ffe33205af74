"""The commands that measure: `evaluate`, `compare`, `table`, `grade`, `rubric`, `contamination` and `acceptance`."""

from dataclasses import dataclass, field, fields
from json import dumps
from pathlib import Path
from typing import Any

from medagent.cli.commands.ask import AgentOptions
from medagent.evaluation.names import CopFrom, ModeName, Prompting
from medagent.tools import McpServer


def evaluate(
    agent: str = "runs/demo/agent",
    benchmark: str = "starter",
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
    parameters: dict[str, Any] | None = None,
    prompting: Prompting = "tags",
    shots: int = 0,
    shots_path: str = "",
    support: str = "rules",
    price: dict[str, float] | None = None,
    tools: list[str | McpServer] | None = None,
    limits: dict[str, int] | None = None,
    concurrency: int = 64,
    max_errors: int = 5,
    requests_per_minute: float = 0.0,
    out: str = "runs/evaluation/default",
    overwrite: bool = False,
    benchmark_args: dict[str, Any] | None = None,
    cop_from: CopFrom | None = None,
) -> None:
    """Measure an agent on a benchmark. After an interruption the same command goes on.

    Writes report.html, report.json, report.md and predictions.jsonl. configs/eval holds one file per benchmark:
    medagent evaluate --config configs/eval/medqa.yaml --agent runs/mine/agent

    Args:
        agent: Folder of an exported agent, "starter" (the untrained base policy), "none" (no model), "org/name" of the
            hub, "hf:MODEL" (also a model's folder, .gguf file or "hf:smollm2"), or the address of an OpenAI-compatible
            endpoint, such as http://localhost:8000/v1.
        benchmark: Name of a benchmark, or a class of yours, as --benchmark my_task.MyBenchmark. "starter" is packaged,
            "jsonl" reads your own questions, and "open" reads questions with several right answers.
        path: The benchmark's file or folder. For BioASQ also a pattern of names, such as "data/bioasq/10B*.json".
        hub: The benchmark's name on the hub, instead of a file. It needs the package datasets.
        subset: The hub's subset (configuration).
        split: Split of the starter world or of the hub's dataset. By default it is the benchmark's usual one.
        start: First question to use, in the file's order.
        stop: Question to stop before. By default all are used.
        limit: Size of a seeded sample of the questions.
        limit_seed: Seed of that sample.
        modes: Ways to ask, as --modes '[search,closed_book]'. Known are search, forced_search, closed_book, gold,
            single_shot, unrelated, without_evidence (no search shows the evidence) and injected (the first search shows
            a passage that gives orders).
        samples: Samples per question. More than one needs a temperature, and adds mean, majority vote and pass@k.
        rotations: Ask again with the options rotated, and report how accuracy and answers change.
        temperature: Sampling temperature; 0 is greedy.
        seed: Seed of sampling.
        index: Index to search instead of the agent's own.
        model: Name of the model, for an endpoint.
        prompting: "tags": by the protocol of the agent. "tools": an hf:MODEL calls functions in the syntax of its own
            chat template. "plain": an untrained model or an endpoint is asked in one message for a last line "Answer:
            ...", with any passages before the question. "lines": for the numbers of the sentences that answer, which
            the program then prints. "likelihood": which letter an hf:MODEL finds likeliest; "likelihood_of_texts":
            which option's text. The last four have the modes single_shot, gold and, but for lines, closed_book.
        shots: Solved questions before each question, for the likelihoods.
        shots_path: Their file, of the same benchmark.
        support: Judges whether cited passages state what is said: rules (words alone), nli:MODEL (a cross-encoder such
            as nli:cross-encoder/nli-deberta-v3-small), judge:hf:MODEL (a language model by likelihood, also a .gguf
            file), or judge:http://HOST/v1#MODEL (an endpoint that gives log-probs).
        price: An endpoint's price per million tokens, as --price '{"input": 0.5, "output": 1.5}'.
        parameters: What an endpoint is sent with every request, as --parameters '{"reasoning_effort": "low"}'.
        tools: Tools beside the search, as --tools '[read, my_task.dose, {mcp: python -m server}]'. An agent needs those
            that it was trained with.
        limits: Limits instead of the agent's own, e.g. --limits '{"max_total_tokens": 4096}'. The others are
            max_turns, max_turn_tokens and max_observation_tokens.
        concurrency: Questions asked at once.
        max_errors: Errors in a row that stop the command. Fewer are reported and count as wrong; the same command
            asks them again.
        requests_per_minute: Requests that an endpoint is sent per minute at most; 0 sets no limit.
        out: Folder of report.html, report.json, report.md and predictions.jsonl.
        overwrite: Begin anew where the folder holds another evaluation.
        benchmark_args: Constructor arguments of a benchmark class of yours, as --benchmark_args '{"split": "test"}'.
        cop_from: Whether MedMCQA's "cop" counts from "zero" or "one". By default files count from 1, the hub from 0.
    """
    settings = {**locals(), "benchmark_args": benchmark_args or {}, "tools": tools or ()}
    from rich.console import Console

    from medagent.cli.evaluate import EvaluationBar, print_evaluation
    from medagent.evaluation.benchmarks.source import BenchmarkSource
    from medagent.evaluation.evaluator import evaluate as measure

    source = BenchmarkSource(**{each.name: settings.pop(each.name) for each in fields(BenchmarkSource)})
    console = Console(highlight=False)
    with EvaluationBar(console) as bar:
        found = measure(settings.pop("agent"), source, callback=bar, **settings)
    print_evaluation(found, Path(out), console)


def compare(
    runs: list[str | list[str]],
    mode: ModeName | None = None,
    mode_b: ModeName | None = None,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Compare evaluations question by question: McNemar's exact test, and a paired bootstrap of the difference.

    More than two are each compared with the first. Their p-values are adjusted by Holm's method.

    Args:
        runs: Folders of evaluations of the same questions. Over seeds give two lists, '[FOLDER, ...]', with one folder
            for each seed in the same order.
        mode: Mode whose answers are compared. By default it is the first that all have.
        mode_b: Another mode for all but the first, such as closed_book beside search in one folder.
        seed: Seed of the bootstrap.
        json: Print JSON instead of sentences.
    """
    from medagent.cli.evaluate import print_comparison

    print_comparison(runs, mode=mode, mode_b=mode_b, seed=seed, as_json=json)


def table(runs: list[str], mode: ModeName | None = None, json: bool = False) -> None:
    """Print results across benchmarks as a Markdown table: agents in rows, benchmarks in columns, macro averages.

    Evaluations of one row or column must share mode, limits, prompting, shots, temperature and samples. Those of one
    column must also share their questions.

    Args:
        runs: Folders of evaluations, each of one agent on one benchmark.
        mode: Mode whose answers count. By default it is the first that all have.
        json: Print a row for each agent and benchmark as JSON instead of Markdown.
    """
    from medagent.evaluation.results_table import markdown_table, plain_rows, results_table

    found = results_table(runs, mode=mode)
    print(dumps(plain_rows(found)) if json else markdown_table(found))


def grade(file: str, letters: str = "ABCD", last_line: bool = False, out: str | None = None) -> None:
    """Grade raw replies of any model, strictly and leniently, and print the counts as JSON.

    Args:
        file: JSON lines with "id", "gold" (a letter) and "raw" (the reply); "options" where you have them.
        letters: The letters that name an option, where a line has no options.
        last_line: Whether the prompt asked for a last line that is the answer. It then counts as strict.
        out: File for what was read in each reply.
    """
    from medagent.errors import InputError
    from medagent.evaluation.grading.raw_replies import read_replies, summarize_replies, write_readings

    if out is not None and (Path(out).is_dir() or Path(out).resolve() == Path(file).resolve()):
        wrong = "a folder" if Path(out).is_dir() else "the file of the replies"
        raise InputError(f"--out {out}: is {wrong}; give a file of its own.")
    replies = read_replies(Path(file), letters=letters, last_line_asked=last_line)
    if out is not None:
        write_readings(Path(out), replies)
    print(dumps(summarize_replies(replies)))


def rubric(
    path: str,
    judge: str,
    judge_model: str = "",
    judge_parameters: dict[str, Any] | None = None,
    agent: str | None = None,
    model: str = "",
    parameters: dict[str, Any] | None = None,
    index: str | None = None,
    limit: int | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    reply_tokens: int = 2048,
    verdict_tokens: int = 1024,
    concurrency: int = 16,
    out: str = "runs/rubric/default",
) -> None:
    """Have another model judge free text by written criteria. After an interruption the same command goes on.

    It scores replies as HealthBench does. On labelled replies it measures how far the judge agrees with people.

    Args:
        path: JSON lines: HealthBench's cases ("prompt", "rubrics"; in HealthBench Professional "conversation",
            "rubric_items"), or its labels ("completion", "rubric", "binary_labels").
        judge: The model that judges: "hf:MODEL" or the address of an OpenAI-compatible endpoint.
        judge_model: Name of its model, for an endpoint.
        judge_parameters: What the judge's endpoint is sent with every request.
        agent: Who replies to cases, as for `medagent evaluate`. It gets the whole conversation.
        model: Name of its model, for an endpoint.
        parameters: What its endpoint is sent with every request.
        index: Index that an agent searches instead of its own.
        limit: How many rows to use, from the first.
        temperature: Sampling temperature; 0 is greedy.
        seed: Seed of sampling.
        reply_tokens: Tokens of a reply at most. An agent has its own limits.
        verdict_tokens: Tokens of a verdict at most, thoughts included.
        concurrency: Requests at once.
        out: Folder of report.json, replies.jsonl and verdicts.jsonl.
    """
    from functools import partial

    from rich.console import Console

    from medagent.cli.judging import print_rubric, progress_of
    from medagent.evaluation.rubrics.judging import JudgeSettings, judge_file
    from medagent.evaluation.rubrics.responder import open_responder

    console = Console(highlight=False)
    console.print(f"{path}, judged by {judge} {judge_model}.", markup=False)
    with progress_of(console) as show:
        report = judge_file(
            Path(path),
            partial(open_responder, judge, model=judge_model, parameters=judge_parameters),
            partial(open_responder, agent, model=model, index=index, parameters=parameters) if agent else None,
            Path(out),
            JudgeSettings(seed, temperature, reply_tokens, verdict_tokens, concurrency=concurrency),
            limit=limit,
            on_progress=show,
        )
    print_rubric(report, Path(out), console)


def contamination(
    benchmark: str = "medqa",
    test: str | None = None,
    train: str | None = None,
    corpus: str | None = None,
    train_benchmark: str | None = None,
    threshold: float = 0.5,
    show: int = 20,
) -> None:
    """Look for test questions in training questions or in a corpus: near-duplicates by common word 13-grams.

    Args:
        benchmark: Benchmark of the test file.
        test: The test questions' file.
        train: The training questions' file.
        corpus: A corpus instead: a path, starter, pubmedqa:FILE or bioasq:FILES.
        train_benchmark: Benchmark of the training file. By default it is the test's.
        threshold: Share of a question's 13-grams from which it counts as near-duplicate.
        show: How many of them to list.
    """
    from medagent.errors import InputError
    from medagent.evaluation.benchmarks.source import BenchmarkSource
    from medagent.evaluation.contamination import contamination, question_texts
    from medagent.evaluation.corpora import corpus_passages

    if bool(train) == (corpus is not None):
        found = "both --train and --corpus" if train else "neither --train nor --corpus"
        raise InputError(
            f"contamination: found {found}, wanted one of them. Give training questions with --train, or a corpus with "
            "--corpus."
        )
    tests = BenchmarkSource(benchmark, path=test).open().questions()
    if train:
        texts = question_texts(BenchmarkSource(train_benchmark or benchmark, path=train).open().questions())
    else:
        texts = ((passage.id, passage.indexed_text) for passage in corpus_passages(corpus or ""))
    report = contamination(tests, texts, threshold=threshold)
    for pair in report.near_duplicates[:show]:
        print(f"{pair.overlap:6.1%}  {pair.test_id}  {pair.train_id}")
    print(
        f"{len(report.near_duplicates)} of {report.tested} test questions ({report.share:.2%}) are near-duplicates "
        f"among {report.texts} texts."
    )


@dataclass(frozen=True, kw_only=True)
class AcceptanceCommand(AgentOptions):
    """Ask a team's own questions after an update of corpus or model, and say whether to take it.

    Each line of the file is JSON: question, sources (ids, documents, files or titles that answer it; none where the
    corpus has no answer), and if wanted id, sentences (verbatim, one of which must be shown), earlier and options.
    Exit status 1 where the update is not accepted. After an interruption the same command goes on.

    Args:
        questions: The file of questions.
        out: File of the results, a line per question.
        before: Results of an earlier run. Answers that changed are listed, the newly wrong first.
        min_found: Accept only where an expected source is shown for this share of the questions that have one.
        max_wrong_stated: Accept only where at most this share is shown as stated on no expected source.
    """

    work = "medagent.cli.judging.acceptance"
    questions: str = field(kw_only=False)
    out: str = "runs/acceptance.jsonl"
    before: str | None = None
    min_found: float = 0.0
    max_wrong_stated: float = 0.0


EVALUATION_COMMANDS: dict[str, Any] = {
    "evaluate": evaluate,
    "compare": compare,
    "table": table,
    "grade": grade,
    "rubric": rubric,
    "contamination": contamination,
    "acceptance": AcceptanceCommand,
}

"""The command that makes questions from an index: `medagent questions make`."""

from pathlib import Path
from typing import Any


def questions_make(
    index: str,
    out: str = "questions.jsonl",
    top_k: int = 10,
    per_answer: int = 50,
    limit: int = 0,
    seed: int = 0,
    passages: int = 0,
    writer: str = "",
    writer_model: str = "",
    writer_parameters: dict[str, Any] | None = None,
    writer_tokens: int = 256,
    concurrency: int = 16,
    test_sets: list[str] | None = None,
) -> None:
    """Make questions of the passages of an index: a language model writes them.

    Writes the format of --benchmark jsonl, with the gold passages. Prints how many drafts were dropped and why. After
    an interruption the same command goes on.

    Args:
        index: Folder of the index.
        out: File of the questions.
        top_k: Search with the question as query must find its passage among this many.
        per_answer: Most questions with one answer.
        limit: Most questions, drawn by the seed; 0 takes all.
        seed: Seed of the order, and of the passages drawn.
        passages: Most passages to read, drawn by the seed; 0 reads all.
        writer: Model that writes the questions: "hf:MODEL" or the address of an OpenAI-compatible endpoint. It must be
            given.
        writer_model: Name of the model, for an endpoint.
        writer_parameters: What the endpoint is sent with every request.
        writer_tokens: Tokens of a reply at most, thoughts included.
        concurrency: Requests at once.
        test_sets: Benchmarks whose questions must not be repeated, as '["medqa:FILE", "mine.jsonl"]'.
    """
    from functools import partial

    from medagent.cli.judging import make_with_progress
    from medagent.errors import InputError
    from medagent.evaluation.question_making.making import Making
    from medagent.evaluation.rubrics.judging import JudgeSettings
    from medagent.evaluation.rubrics.responder import open_responder

    if not writer:
        raise InputError(
            "questions make: no --writer is given, wanted the model that writes the questions. Give --writer "
            "hf:Qwen/Qwen2.5-1.5B-Instruct, or --writer http://localhost:8000/v1 with --writer_model NAME."
        )
    responder = partial(open_responder, writer, model=writer_model, parameters=writer_parameters)
    asking = JudgeSettings(reply_tokens=writer_tokens, concurrency=concurrency)
    make_with_progress(index, Path(out), Making(top_k, per_answer, limit, seed, passages), responder, asking, test_sets)


QUESTION_COMMANDS: dict[str, Any] = {"_help": "Make questions from an index.", "make": questions_make}

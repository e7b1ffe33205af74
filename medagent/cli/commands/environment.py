"""The command by which other trainers use an index and a benchmark: `medagent environment serve`."""

from typing import Any


def environment_serve(
    index: str,
    benchmark: str = "starter",
    path: str | None = None,
    split: str | None = None,
    start: int = 0,
    stop: int | None = None,
    top_k: int = 3,
    max_turns: int = 4,
    max_sessions: int = 64,
    host: str = "127.0.0.1",
    port: int = 8002,
) -> None:
    """Serve an OpenEnv environment, in which TRL, AgileRL and others train: search an index, answer a benchmark.

    Args:
        index: Folder of the index, or the address of a served one.
        benchmark: Name of a benchmark, or a class of yours, as in evaluate.
        path: The benchmark's file or folder.
        split: Split of the starter world.
        start: First question to use, in the file's order.
        stop: Question to stop before. By default all are used.
        top_k: Passages per search.
        max_turns: Calls of an episode, its answer among them.
        max_sessions: Episodes at once.
        host: Address to listen on. Others can reach the environment there, without a token.
        port: Port to listen on.
    """
    import uvicorn

    from medagent.evaluation.benchmarks.source import BenchmarkSource
    from medagent.retrieval.remote import open_index
    from medagent.serving.middleware import refuse_busy
    from medagent.training.environments.openenv_server import make_openenv_app
    from medagent.training.rewards import OutcomeReward

    refuse_busy(host, port)
    questions, _, _ = BenchmarkSource(benchmark, path=path, split=split, start=start, stop=stop).questions()
    rules = {"max_sessions": max_sessions, "max_turns": max_turns, "top_k": top_k}
    app = make_openenv_app(questions, open_index(index), OutcomeReward(), **rules)
    print(
        f"Serving {len(questions):,} questions over {index} as an OpenEnv environment: http://{host}:{port}", flush=True
    )
    uvicorn.run(app, host=host, port=port, log_level="warning", access_log=False)


ENVIRONMENT_COMMANDS: dict[str, Any] = {
    "_help": "Serve an index and a benchmark to other trainers.",
    "serve": environment_serve,
}

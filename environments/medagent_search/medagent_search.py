"""Medical questions, a tool `search` over an index, and medagent's grader, as an environment of verifiers.

With verifiers 0.4 this module is a taskset, with 0.1.11 to 0.3 a `ToolEnv`. `load_environment` makes either.
"""

from atexit import register
from functools import cache
from pathlib import Path
from pydoc import locate
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import verifiers

from medagent.evaluation.benchmarks import JsonlBenchmark
from medagent.plain_protocol import PlainProtocol
from medagent.retrieval.remote import open_index
from medagent.retrieval.retriever import Retriever
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from medagent.training.rewards import OutcomeReward
from medagent.types import LETTERS, Question, Rollout, StopReason, Turn

STARTER = "medagent.evaluation.benchmarks.StarterBenchmark"
SYSTEM = "You answer medical questions. Search the medical corpus with the tool `search` as often as you need."


def questions_of(benchmark: str, benchmark_args: dict[str, Any]) -> list[Question]:
    """A benchmark's questions, by its class path, or by a file of JSON lines as `JsonlBenchmark` reads it."""
    made = JsonlBenchmark if Path(benchmark).is_file() else locate(benchmark)
    if not callable(made):
        raise ValueError(f"benchmark: found {benchmark!r}, wanted a class such as {STARTER}, or a file of questions.")
    return made(*[benchmark] * (made is JsonlBenchmark), **benchmark_args).questions()  # type: ignore[no-any-return]


def asked(question: Question) -> str:
    """The user's message: the question, its options, and how the reply ends."""
    options = [f"{letter}) {option}" for letter, option in zip(LETTERS, question.options, strict=False)]
    return "\n".join([question.text, *options, "", PlainProtocol().closing(question).strip()])


def reward_of(question: Question, reply: str) -> float:
    """1 for the right answer on the last line of a reply, 0.1 for a well-formed one, else 0."""
    answer = PlainProtocol().parse(reply).answer
    stop = StopReason.ANSWERED if answer else StopReason.MALFORMED
    return OutcomeReward()(Rollout(question, (), (Turn((), (), reply, answer=answer),), stop)).reward


@cache
def opened(index: str) -> Retriever:
    """The index in a folder or at an address; for none, that of the starter corpus, built now."""
    if not index:
        index = mkdtemp(prefix="medagent-search-")
        register(rmtree, index, ignore_errors=True)
        build_starter_index(Path(index), World.load().passages(), overwrite=True)
    return open_index(index)


def found(index: str, query: str, top_k: int) -> str:
    """The numbered passages for a query, best first."""
    hits = opened(index).search([query], top_k=top_k)[0] if query.strip() else []
    return "\n".join(f"[{n}] {hit.passage.shown_text}" for n, hit in enumerate(hits, 1)) or "No passages found."


if hasattr(verifiers, "ToolEnv"):  # 0.1 to 0.3
    from datasets import Dataset

    def load_environment(
        benchmark: str = STARTER, benchmark_args: dict[str, Any] | None = None, index: str = "", top_k: int = 3
    ) -> Any:
        """The environment; `index` is a folder or an address, by default the starter corpus."""
        questions = questions_of(benchmark, benchmark_args or {})
        opened(index)  # so that a wrong one is told now

        def search(query: str) -> str:
            """Search the medical corpus for passages, in words or by a question."""
            return found(index, query, top_k)

        def correct_answer(completion: Any, info: dict[str, int]) -> float:
            replies = [each["content"] for each in completion if each["role"] == "assistant"]
            return reward_of(questions[info["number"]], str(replies[-1] or "") if replies else "")

        rows = [{"question": asked(q), "answer": q.answer, "info": {"number": n}} for n, q in enumerate(questions)]
        rubric = verifiers.Rubric(funcs=[correct_answer])
        return verifiers.ToolEnv(
            dataset=Dataset.from_list(rows), system_prompt=SYSTEM, rubric=rubric, tools=[search], max_turns=4
        )

else:
    import verifiers.v1 as vf
    from verifiers.v1.harnesses.null import NullHarness

    class SearchConfig(vf.SharedToolsetConfig):
        """`index` is a folder or an address, by default the starter corpus; a search shows `top_k` passages."""

        index: str = ""
        top_k: int = 3

    class SearchToolset(vf.Toolset[SearchConfig]):
        """One process with the open index, which all rollouts share."""

        TOOL_PREFIX = None

        async def setup(self) -> None:
            """Open the index."""
            opened(self.config.index)

        @vf.tool
        def search(self, query: str) -> str:
            """Search the medical corpus for passages, in words or by a question."""
            return found(self.config.index, query, self.config.top_k)

    class MedagentSearchData(vf.TaskData):
        """A question with its gold answer."""

        question: Question

    class MedagentSearchTask(vf.Task[MedagentSearchData]):
        """Rewards the last reply."""

        @vf.reward
        async def correct_answer(self, trace: vf.Trace) -> float:
            """See `reward_of`."""
            return reward_of(self.data.question, trace.last_reply)

        async def validate(self, runtime: vf.Runtime) -> bool:
            """Whether the gold answer is right."""
            return reward_of(self.data.question, f"Answer: {self.data.question.answer}") == 1

    class MedagentSearchConfig(vf.TasksetConfig):
        """The benchmark and the search."""

        benchmark: str = STARTER
        benchmark_args: dict[str, Any] = {}  # noqa: RUF012  # pydantic copies it
        tools: SearchConfig = SearchConfig()

    class MedagentSearchTaskset(vf.Taskset[MedagentSearchTask, MedagentSearchConfig]):
        """The questions, and the tool `search`."""

        def load(self) -> list[MedagentSearchTask]:
            """One task per question."""
            data = [
                MedagentSearchData(id=each.id, prompt=asked(each), system_prompt=SYSTEM, question=each)
                for each in questions_of(self.config.benchmark, self.config.benchmark_args)
            ]
            return [MedagentSearchTask(each, self.config.task) for each in data]

        @classmethod
        def toolsets(cls, config: MedagentSearchConfig) -> list[vf.Toolset]:
            """The search."""
            return [SearchToolset(config.tools)]

    class MedagentSearchHarness(NullHarness):
        """A chat with tools, without a shell."""

    def load_environment(**taskset: Any) -> vf.Env:
        """The environment on this machine, by the settings of `MedagentSearchConfig`."""
        config = {"taskset": {"id": "medagent_search", **taskset}, "agent": {"runtime": {"type": "subprocess"}}}
        return vf.load_environment(vf.resolve_env_config(config))

    __all__ = ["MedagentSearchHarness", "MedagentSearchTaskset", "load_environment"]

    if __name__ == "__main__":
        SearchToolset.run()

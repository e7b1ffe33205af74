"""The commands by which people ask an agent: `ask`, `chat` and `serve`."""

from dataclasses import dataclass, field
from pathlib import Path
from pydoc import locate
from typing import Any, ClassVar, Literal

from medagent.errors import ConfigError
from medagent.evidence import Shown
from medagent.serving.settings import LOOPBACK, AdmissionLimits, AuthSettings, EngineName, PageSettings
from medagent.tools import McpServer


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The agent that answers, and how its answers are checked.

    Args:
        agent: Folder of an exported agent, "starter" (the untrained base policy), a model as in evaluate ("org/name"
            of the hub, or "hf:FOLDER"), an endpoint's address, or "none": sentences of the corpus, without a model.
        model: Name of the model at an endpoint.
        prompting: "tags": by the agent's protocol; an untrained model answers in its own words. "lines": an untrained
            model or an endpoint names numbered sentences of the corpus, and the program prints these.
        index: Index to search instead of the agent's own.
        tools: Tools beside the search, as --tools '[read, my_task.dose, {mcp: python -m server}]'. An agent needs those
            that it was trained with.
        evidence: The answers that are shown: those that a passage states, also partly stated ones, or all.
        support: Judges whether passages state an answer, as in evaluate: rules, nli:MODEL, judge:hf:MODEL, or
            judge:http://HOST/v1#MODEL.
        emergencies: File of patterns and lines for questions that may be emergencies, instead of the packaged one.
        synonyms: File of more names of one meaning, a group per line, as "heart attack|myocardial infarction".
    """

    agent: str = "runs/demo/agent"
    model: str = ""
    prompting: Literal["tags", "lines"] = "tags"
    index: str | None = None
    tools: list[str | McpServer] | None = None
    evidence: Shown = "partly"
    support: str = "rules"
    emergencies: str | None = None
    synonyms: str | None = None
    work: ClassVar[str] = ""  # the function that does it, by its path: `--help` need not import it

    def __call__(self) -> None:
        """Run the command."""
        work: Any = locate(self.work)
        work(self)


@dataclass(frozen=True, kw_only=True)
class QuestionOptions(AgentOptions):
    """How questions are answered in a terminal.

    Args:
        where: Search only passages that fit these conditions, as --where 'year>=2020 type=guideline'; see search.
        temperature: Sampling temperature; 0 is greedy.
    """

    where: str = ""
    temperature: float = 0.0
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class AskCommand(QuestionOptions):
    """Ask one question and watch the agent think, search and answer with its sources.

    Args:
        question: The question.
        options: Answer options for multiple choice, e.g. --options '["aspirin", "colchicine"]'.
        json: Print turns and answer as JSON, as POST /v1/answers has them.
    """

    work = "medagent.cli.ask.ask"
    question: str = field(kw_only=False)
    options: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class ChatCommand(QuestionOptions):
    """Ask questions one after the other. Empty line or Ctrl-D ends.

    A question that leaves something unsaid ("And how is it treated?") takes it from those before it.

    Args:
        rewriter: Completes a question that leaves something unsaid: rules, agent (its own model) or the address of
            an endpoint, whose key is read from MEDAGENT_API_KEY. Questions that a model writes are checked.
        rewriter_model: Name of the model at that endpoint.
        json: Read one question per line without a prompt, and print one line of JSON for each.
    """

    work = "medagent.cli.ask.chat"
    rewriter: str = "rules"
    rewriter_model: str = ""


@dataclass(frozen=True, kw_only=True)
class ServeCommand(AgentOptions):
    """Serve an agent over HTTP, with a page for people and an API for programs.

    POST /v1/answers gives every step. /v1/chat/completions and /v1/models follow OpenAI's API.

    Args:
        corpus: A file or folder of documents, as in index build. It is indexed first, into a folder below indexes/, or
            that index is brought up to date. The agent is then "none" by default.
        agent: As in ask. By default it is runs/demo/agent, or "none" with a corpus.
        model: Name of the model at an endpoint, or at the servers.
        name: The model's name in the API.
        host: Address to listen on. Any but this machine's own needs --auth.api_key_hashes.
        port: Port to listen on.
        root_path: Path below which a proxy shows the service, such as /medagent.
        auth: Who may ask.
        limits: How many questions are answered, wait, and for how long.
        page: Files of the page.
        engine: The engine that samples the turns. in_process loads the weights here, vllm starts a vLLM server,
            servers uses running ones.
        servers: Addresses of vLLM servers, as --servers '[http://gpu-1:8000/v1]'. --model names what they serve.
        vllm: How vLLM runs, e.g. --vllm '{"gpu_memory": 0.6, "tensor_parallel": 2}'.
        poll_interval_s: Seconds between checks of the agent's folder. A new export there is opened. 0 never checks.
        emergency_number: The number that the lines for emergencies tell people to call.
        rewriter: Completes a question that leaves something unsaid: rules, agent (its own model) or the address of
            an endpoint, whose key is read from MEDAGENT_API_KEY. Questions that a model writes are checked.
        rewriter_model: Name of the model at that endpoint.
        records: Folder that keeps each answer for `medagent replay`, with what was asked and read. By default none is
            kept.
        records_kept: Records that are kept at most. The oldest are deleted.
    """

    work = "medagent.cli.serve.serve"
    corpus: str | None = None
    agent: str = ""
    name: str = "medagent"
    host: str = "127.0.0.1"
    port: int = 8080
    root_path: str = ""
    auth: AuthSettings = AuthSettings()
    limits: AdmissionLimits = AdmissionLimits()
    page: PageSettings = PageSettings()
    engine: EngineName = "in_process"
    servers: list[str] | None = None
    vllm: dict[str, Any] | None = None
    poll_interval_s: float = 5.0
    emergency_number: str | None = None
    rewriter: str = "rules"
    rewriter_model: str = ""
    records: str | None = None
    records_kept: int = 10_000

    def __post_init__(self) -> None:
        """Refuse an address that others reach without a token, and two things to search."""
        if self.corpus and self.index:
            raise ConfigError(
                f"corpus {self.corpus}: found the index {self.index} beside it, wanted one of the two. Leave --index "
                "out to index the corpus, or --corpus to search the index as it is."
            )
        if self.host not in LOOPBACK and self.auth.api_key_hashes is None:
            raise ConfigError(
                f"host {self.host}: others could reach the agent there, and no bearer token is asked for. Give "
                "--auth.api_key_hashes FILE (a SHA-256 digest per line), or leave --host out."
            )


def replay(id: str, records: str = "runs/records", agent: str | None = None, index: str | None = None) -> None:
    """Make an answer of a service again from its record, and say what differs. Exit status 1 where anything does.

    Args:
        id: The answer's id, as the API gave it.
        records: Folder in which the service keeps its records.
        agent: Agent instead of the recorded one, as in serve.
        index: Index instead of the recorded one.
    """
    from medagent.cli.serve import print_replay

    print_replay(id, Path(records), {"agent": agent, "index": index})


ASK_COMMANDS: dict[str, Any] = {"ask": AskCommand, "chat": ChatCommand, "serve": ServeCommand, "replay": replay}

"""A foreign OpenEnv server: its tools or its action, its rewards, and what happens where it fails."""

from __future__ import annotations

import json
import threading
import time

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, WebSocket

from medagent.agent import Job
from medagent.errors import ConfigError
from medagent.training.environments import OpenEnv
from medagent.types import Question, StopReason
from tests.training.environments.scripted import agent_in, call

pytest.importorskip("websockets")
GUESS = {
    "name": "guess",
    "description": "Guess a number.",
    "inputSchema": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
}
SCHEMAS = {
    "mcp": {},
    "text": {"properties": {"metadata": {"type": "object"}, "message": {"type": "string"}}},
    "typed": {"type": "object", "properties": {"number": {"type": "integer"}, "metadata": {"type": "object"}}},
}


def foreign_app(kind: str) -> FastAPI:
    """A server that asks for its task's number, speaking OpenEnv's JSON. Some guesses break it."""
    app = FastAPI()

    @app.get("/list_environments")
    def names():
        return ["numbers"]

    @app.post("/numbers/tasks")
    def tasks(asked: dict):
        return {"tasks": [{"index": n, "prompt": f"Task {n}"} for n in range(3)] if asked["split"] == "train" else []}

    @app.get("/schema")
    def schema():
        return {"action": SCHEMAS[kind]}

    @app.post("/mcp")
    def mcp():
        return {"result": {"tools": [GUESS]}} if kind == "mcp" else {"error": {"message": "not supported"}}

    @app.websocket("/ws")
    async def session(socket: WebSocket):
        await socket.accept()
        wanted = 0
        while (asked := json.loads(await socket.receive_text()))["type"] != "close":
            given = asked["data"]
            if asked["type"] == "reset":
                wanted = given["index"] if "index" in given else given["seed"] + 10
                found = {"observation": {"prompt": "Which number?"}, "reward": None, "done": False}
                await socket.send_json({"type": "observation", "data": found})
                continue
            given = given.get("arguments", given)
            number = int(given.get("number", given.get("message", 0)))
            if number == 404:
                await socket.close()
                return
            if number == 500:
                await socket.send_json({"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "it broke"}})
            elif number == 422:
                await socket.send_json({"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "no int"}})
            elif number == 999:
                await socket.send_text("<html>gateway</html>")
            elif number != 408:
                text = {"content": [{"type": "text", "text": "right" if number == wanted else "wrong"}]}
                observation = {"tool_name": "guess", "result": text, "error": None}
                right = number == wanted
                found = {"observation": observation, "reward": 1 if right else -0.25, "done": right}
                await socket.send_json({"type": "observation", "data": found})

    return app


@pytest.fixture
def serve():
    """Serve an app on a free port of this machine; gives its address."""
    servers: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(app) -> str:
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        servers.append((server, thread))
        while not server.started:
            time.sleep(0.01)
        return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"

    yield start
    for server, thread in servers:
        server.should_exit = True
        thread.join(5)


def test_tasks_tools_and_rewards_of_a_server_with_mcp_tools(serve) -> None:
    environment = OpenEnv(serve(foreign_app("mcp")), instructions="Guess.")
    questions = environment.questions()
    assert questions == [Question(f"train {n}", f"Task {n}") for n in range(3)]
    (tool,) = environment.tools
    assert tool["function"]["parameters"] == GUESS["inputSchema"]
    agent = agent_in(environment, call("guess", number=7), "Two?", call("guess", number=2))
    rollouts = agent.run_all([Job(questions[2])] * 3)
    for rollout in rollouts:
        assert [turn.reward for turn in rollout.turns] == [-0.25, 0.0, 0.0]
        assert (rollout.reward, rollout.stop_reason) == (1.0, StopReason.ANSWERED)
        assert not rollout.success, "it earned 0.75 of the 1 that count as a success"
    assert len({tuple(each.token_ids) for each in rollouts}) == 1, "equal turns give equal rollouts"
    text = agent.policy.tokenizer.decode(rollouts[0].token_ids)
    assert "<tool_response>\nwrong\n</tool_response>" in text
    assert "Which number?" in text


def test_a_turn_without_a_call_may_go_to_a_tool(serve) -> None:
    environment = OpenEnv(serve(foreign_app("mcp")), answer_tool="guess")
    (rollout,) = agent_in(environment, "1").run_all([Job(environment.questions()[1])])
    assert (rollout.total_reward, rollout.success) == (1.0, True)


def test_an_answer_tool_that_the_server_lacks_is_refused_before_the_run(serve) -> None:
    with pytest.raises(ConfigError, match=r"found 'guesss', wanted one of \['guess'\]"):
        OpenEnv(serve(foreign_app("mcp")), answer_tool="guesss").questions()


@pytest.mark.parametrize(("kind", "turn"), [("text", "12"), ("typed", call("act", number=12))])
def test_an_action_is_one_text_or_one_call_where_there_are_no_tools(serve, kind: str, turn: str) -> None:
    environment = OpenEnv(serve(foreign_app(kind)), num_questions=3)
    questions = environment.questions()
    assert [each.id for each in questions] == ["seed 0", "seed 1", "seed 2"]
    assert [each["function"]["name"] for each in environment.tools] == ([] if kind == "text" else ["act"])
    (rollout,) = agent_in(environment, turn).run_all([Job(questions[2])])
    assert (rollout.total_reward, len(rollout.turns)) == (1.0, 1)


@pytest.mark.parametrize(
    ("number", "said"),
    [(404, "ConnectionClosed"), (500, "it broke"), (999, "JSONDecodeError"), (408, "took more than")],
)
def test_a_server_that_dies_breaks_or_hangs_ends_the_rollout_as_an_error(serve, number: int, said: str) -> None:
    environment = OpenEnv(serve(foreign_app("mcp")), timeout_s=1.0)
    agent = agent_in(environment, call("guess", number=7), call("guess", number=number))
    (rollout,) = agent.run_all([Job(environment.questions()[0])])
    assert rollout.stop_reason is StopReason.ERROR
    assert said in rollout.error
    assert [turn.reward for turn in rollout.turns] == [-0.25, 0.0]


def test_arguments_that_the_server_refuses_are_told_to_the_policy(serve) -> None:
    environment = OpenEnv(serve(foreign_app("typed")))
    agent = agent_in(environment, call("act", number=422), call("act", number=1))
    (rollout,) = agent.run_all([Job(environment.questions()[1])])
    assert "error: no int" in agent.policy.tokenizer.decode(rollout.turns[0].observation_ids)
    assert rollout.success


def test_a_server_that_is_not_there_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match="127.0.0.1:9/mcp"):
        OpenEnv("http://127.0.0.1:9").questions()


def test_a_split_without_tasks_asks_for_a_number_of_questions(serve) -> None:
    with pytest.raises(ConfigError, match="num_questions"):
        OpenEnv(serve(foreign_app("mcp")), split="other").questions()


@pytest.mark.filterwarnings("ignore")
def test_our_server_and_our_client_agree_and_sessions_run_side_by_side(serve, retriever) -> None:
    pytest.importorskip("openenv")
    from medagent.training.environments.openenv_server import make_openenv_app
    from medagent.training.rewards import OutcomeReward

    asked = [Question("q", "Gout?", ("a", "b"), answer="B"), Question("r", "Asthma?", ("c", "d"), answer="A")]
    url = serve(make_openenv_app(asked, retriever, OutcomeReward(), max_sessions=8, max_turns=3, top_k=2))
    environment = OpenEnv(url)
    questions = environment.questions()
    assert all(answer not in json.dumps(httpx.post(f"{url}/medagent/tasks", json={"split": "train"}).json())
               for answer in ('"B"', '"A"'))  # fmt: skip
    turns = call("search", query="gout"), call("search", query="asthma", where="year>>"), call("answer", text="(B)")
    agent = agent_in(environment, *turns)
    rollouts = agent.run_all([Job(question) for question in questions * 4])
    assert [each.total_reward for each in rollouts] == [1.0, 0.1] * 4
    first = agent.policy.tokenizer.decode(rollouts[0].turns[0].observation_ids)
    assert "[1] " in first
    assert "[2] " in first
    assert "error: filter" in agent.policy.tokenizer.decode(rollouts[0].turns[1].observation_ids)
    (late,) = agent_in(environment, turns[0], turns[0], turns[0]).run_all([Job(questions[0])])
    assert (late.total_reward, len(late.turns)) == (0.0, 3)

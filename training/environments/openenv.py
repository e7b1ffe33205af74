"""Training on a foreign environment that an OpenEnv server offers (RFC 001 to 003, huggingface.co/docs/openenv).

It speaks the server's JSON itself: the package openenv pulls in fastmcp, which asks for an older mcp than medagent, and
its client opens a new session in mid-rollout where the old one is lost.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

import httpx

from medagent.errors import ConfigError
from medagent.retrieval.errors import needs_package
from medagent.tool_calls import Message, ToolCall
from medagent.training.environments.messages import MessageEnvironment, Step
from medagent.types import Question

TEXTS = ("prompt", "text", "message", "question", "output", "content")  # where observations carry what is to be read
MOST_BYTES = 16 * 2**20


class OpenEnv(MessageEnvironment):
    """The environment at `url`. Its MCP tools are the policy's; else an action is one text, or one call of `act`.

    Questions are the tasks of the server's `split`. A server without tasks is reset with the seeds 0, 1, ... of
    `num_questions`. `instructions` are the system's message. A turn without a call goes to `answer_tool`, where that is
    named. `max_running` is what the server allows at once.
    """

    def __init__(
        self,
        url: str,
        split: str = "train",
        num_questions: int = 0,
        instructions: str = "",
        answer_tool: str = "",
        max_running: int = 8,
        timeout_s: float = 60.0,
        success_reward: float = 1.0,
    ) -> None:
        self.url, self.split, self.num_questions = url.rstrip("/"), split, num_questions
        self.instructions, self.answer_tool = instructions, answer_tool
        self.max_running, self.timeout_s, self.success_reward = max_running, timeout_s, success_reward
        self._field = ""  # of an action that is one text
        self._mcp = False
        self._socket: Any = None

    def questions(self) -> list[Question]:
        self._read_tools()
        names = [each["function"]["name"] for each in self.tools]
        if self.answer_tool and self.answer_tool not in names:
            raise ConfigError(f"OpenEnv.answer_tool: found {self.answer_tool!r}, wanted one of {names}. Correct it.")
        if self.num_questions:
            return [Question(f"seed {seed}", f"seed {seed}") for seed in range(self.num_questions)]
        name = str((self._http("GET", "/list_environments") or [""])[0])
        tasks = (self._http("POST", f"/{name}/tasks", {"split": self.split}) or {}).get("tasks")
        if not tasks:
            raise ConfigError(f"OpenEnv {self.url}: lists no tasks of split {self.split!r}. Give num_questions.")
        return [Question(f"{self.split} {index}", _text_of(task)) for index, task in enumerate(tasks)]

    def _read_tools(self) -> None:
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        found = (self._http("POST", "/mcp", asked) or {}).get("result") or {}
        self._mcp = bool(found.get("tools"))
        functions = [(each["name"], each.get("description"), _schema_of(each)) for each in found.get("tools", ())]
        if not self._mcp:
            action = (self._http("GET", "/schema") or {}).get("action") or {}
            own = {name: each for name, each in action.get("properties", {}).items() if name != "metadata"}
            texts = [name for name, each in own.items() if each.get("type") == "string"]
            self._field = texts[0] if len(own) == len(texts) == 1 else ""
            functions = [] if self._field else [("act", "Act in the environment.", {**action, "properties": own})]
        parts = ("name", "description", "parameters")
        self.tools = [{"type": "function", "function": dict(zip(parts, each, strict=True))} for each in functions]

    def _http(self, method: str, path: str, body: object = None) -> Any:
        """What the server answers; None where it does not offer that."""
        try:
            answer = httpx.request(method, self.url + path, json=body, timeout=self.timeout_s)
            return answer.json() if answer.is_success else None
        except (httpx.HTTPError, ValueError) as error:
            raise ConfigError(f"OpenEnv {self.url}{path}: {error!r}. Start the server, or correct url.") from error

    async def reset(self, question: Question) -> list[Message]:
        with needs_package("OpenEnv", "websockets", "openenv"):
            from websockets.asyncio.client import connect
        kind, _, number = question.id.rpartition(" ")
        task = {"seed": int(number)} if self.num_questions else {"split": kind, "index": int(number)}
        address = "ws" + self.url.removeprefix("http") + "/ws"  # `timeout_s` ends waiting, not a ping
        own: dict[str, Any] = {"max_size": MOST_BYTES, "close_timeout": 1, "ping_interval": None, "open_timeout": None}
        self._socket = await connect(address, **own)
        observation, _, _ = await self._ask("reset", task)
        told = [Message("system", self.instructions)] if self.instructions else []
        return [*told, Message("user", _text_of(observation))]

    async def step(self, message: Message) -> Step:
        calls = message.calls
        role: Literal["tool", "user"] = "tool" if calls and not self._field else "user"
        if self._field:
            calls = (ToolCall("", {self._field: message.content}),)
        elif not calls and self.answer_tool:
            (own,) = (each["function"] for each in self.tools if each["function"]["name"] == self.answer_tool)
            argument = next(iter(own["parameters"]["properties"]))
            calls = (ToolCall(self.answer_tool, {argument: message.content}),)
        results, earned, done = list[Message](), 0.0, False
        for call in calls:
            observation: Any = {"error": call.error}
            reward = 0.0
            if not call.error:
                observation, reward, done = await self._ask("step", self._action(call))
            results.append(Message(role, _text_of(observation), name=call.name))
            earned += reward
            if done:
                break
        return results or [Message("user", "Call one of the functions.")], earned, done

    def _action(self, call: ToolCall) -> dict[str, Any]:
        named = {"type": "call_tool", "tool_name": call.name, "arguments": dict(call.arguments)}
        return named if self._mcp else dict(call.arguments)

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> tuple[Any, float, bool]:
        """Observation, reward and end of a request. An action that does not fit its schema is the policy's mistake."""
        await self._socket.send(json.dumps({"type": kind, "data": data}))
        answer = json.loads(await self._socket.recv())
        found = answer["data"]
        if answer["type"] == "error":
            if kind == "step" and found.get("code") == "VALIDATION_ERROR":
                return {"error": f"{found.get('message')} {found.get('errors', '')}"}, 0.0, False
            raise RuntimeError(f"{found.get('code')}: {found.get('message')}")
        return found["observation"], float(found.get("reward") or 0.0), bool(found.get("done"))


def _schema_of(tool: Mapping[str, Any]) -> Any:
    return tool.get("inputSchema") or tool.get("input_schema") or {"type": "object", "properties": {}}


def _text_of(observation: Any) -> str:
    """What is to be read in an observation: an error, an MCP result's texts, a field of `TEXTS`, or all of it."""
    if not isinstance(observation, dict):
        return observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)
    if error := observation.get("error"):
        return f"error: {error.get('message', error) if isinstance(error, dict) else error}"
    result = observation.get("result")
    if isinstance(result, dict) and isinstance(blocks := result.get("content"), list):
        return "\n".join(str(each["text"]) for each in blocks if isinstance(each, dict) and "text" in each)
    if result is not None:
        return _text_of(result)
    named = next((each for name in TEXTS if isinstance(each := observation.get(name), str)), None)
    shown = {name: each for name, each in observation.items() if name != "metadata"}
    return json.dumps(shown, ensure_ascii=False) if named is None else named

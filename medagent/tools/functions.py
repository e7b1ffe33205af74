"""Typed Python functions as tools: the schema is that of the signature, the type hints and the docstring."""

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from hashlib import sha256
from threading import Thread, current_thread
from typing import Any

from pydantic import ConfigDict, ValidationError, validate_call
from pydantic_core import PydanticSerializationError, to_json
from transformers.utils.chat_template_utils import get_json_schema

from medagent.retrieval.errors import ToolError
from medagent.tool_calls import ToolResult
from medagent.tools.base import CallContext, Tool

MAX_HUNG = 64  # calls of one tool that did not end; no more are begun


class FunctionTool(Tool):
    """A function with type hints and a docstring in Google's style that describes each argument.

    Async or not, it runs in a thread of its own, so one that hangs holds up nothing else.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises `ToolError` where a model could not be told how to call it."""
        self.function, self._hung = function, set[Thread]()
        try:
            told = get_json_schema(function)["function"]
            self._checked = validate_call(config=ConfigDict(coerce_numbers_to_str=True))(function)
        except Exception as error:  # the libraries' own kinds, which are many
            raise ToolError(
                f"tool {function.__name__}: {str(error).splitlines()[0]}. Wanted type hints, and a docstring with a "
                "line for each argument below Args."
            ) from error
        self.name, self.description, self.parameters = told["name"], told["description"], told["parameters"]

    @property
    def fingerprint(self) -> str:
        return sha256(inspect.getsource(self.function).encode()).hexdigest()

    async def call(self, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        try:
            return self.result(arguments, await self._run(partial(self._checked, **arguments)))
        except ValidationError as error:
            wrong = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False))
            raise ValueError("; ".join(wrong)) from None

    async def _run(self, function: Callable[[], Any]) -> str:
        if len(self._hung) >= MAX_HUNG:
            raise ToolError(f"{len(self._hung)} earlier calls of it have not ended")
        outcome: Future[tuple[str, BaseException | None]] = Future()

        def work() -> None:
            if outcome.set_running_or_notify_cancel():
                try:
                    found = function()
                    outcome.set_result((_text(asyncio.run(found) if inspect.iscoroutine(found) else found), None))
                except BaseException as error:  # SystemExit too, as it would end the process
                    outcome.set_result(("", error))
            self._hung.discard(current_thread())

        thread = Thread(target=work, name=f"tool {self.name}", daemon=True)
        thread.start()
        try:
            found, error = await asyncio.wrap_future(outcome)
        except asyncio.CancelledError:
            self._hung = {each for each in {*self._hung, thread} if each.is_alive()}
            raise
        if error is not None:
            raise error if isinstance(error, ValueError | ToolError) else ToolError(type(error).__name__) from error
        return found


def _text(found: Any) -> str:
    """What a function gave, as text. What is none is the function's fault, not the arguments'."""
    if isinstance(found, bytes | bytearray | memoryview | Iterator):
        raise ToolError(f"it gave a {type(found).__name__}, wanted text or JSON")
    try:
        return found if isinstance(found, str) else to_json(found).decode()
    except PydanticSerializationError as error:
        raise ToolError(str(error)) from error

"""Python's OpenAI-compatible clients against a running service: list, ask, stream, follow up.

    python3 -m venv clients-env
    clients-env/bin/pip install openai langchain-openai litellm "pydantic-ai-slim[openai]" llm
    clients-env/bin/python benchmarks/clients/python_clients.py --url http://127.0.0.1:8080/v1

Start the service first, with `medagent serve --agent runs/demo/agent`. A client passes where its answer cites a
passage, its streamed answer says the same, and a follow-up in the same conversation gets another answer. Prints a line
for each, with what went wrong; a client that is not installed is named. Exit status 1 where one failed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

QUESTION = "What is the first-line drug for trachoma?"
FOLLOW_UP = "What is its classic sign?"
KEY = "none"  # a service on this machine asks for no token
CITED = re.compile(r"\[\d+\]")


def check(asked: str, streamed: str, followed: str) -> None:
    """Raise AssertionError where an answer is not as it should be."""
    assert CITED.search(asked), f"the answer cites nothing: {asked!r}"
    assert streamed.strip() == asked.strip(), f"streamed {streamed!r}, asked {asked!r}"
    assert followed.strip() not in ("", asked.strip()), f"follow-up: {followed!r}"


def with_openai(url: str, model: str) -> None:
    """The OpenAI package."""
    import openai

    client = openai.OpenAI(base_url=url, api_key=KEY)
    assert model in [each.id for each in client.models.list()]
    assert client.models.retrieve(model).id == model
    said = [{"role": "user", "content": QUESTION}]
    asked = client.chat.completions.create(model=model, messages=said, temperature=0).choices[0].message.content
    pieces, thoughts = [], []
    for chunk in client.chat.completions.create(model=model, messages=said, temperature=0, stream=True):
        delta = chunk.choices[0].delta
        pieces.append(delta.content or "")
        thoughts.append((delta.model_extra or {}).get("reasoning_content") or "")
    assert "".join(thoughts), "no search came as reasoning_content"
    said += [{"role": "assistant", "content": asked}, {"role": "user", "content": FOLLOW_UP}]
    followed = client.chat.completions.create(model=model, messages=said, temperature=0)
    check(asked, "".join(pieces), followed.choices[0].message.content)
    task = "### Task:\nGenerate a concise, 3-5 word title for the conversation.\n<chat_history>\nUSER: " + QUESTION
    title = client.chat.completions.create(model=model, messages=[{"role": "user", "content": task}])
    assert "first-line drug" in title.choices[0].message.content


def with_langchain(url: str, model: str) -> None:
    """LangChain's ChatOpenAI."""
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=url, api_key=KEY, model=model, temperature=0)
    said = [HumanMessage(QUESTION)]
    asked = str(chat.invoke(said).content)
    streamed = "".join(str(piece.content) for piece in chat.stream(said))
    followed = chat.invoke([*said, AIMessage(asked), HumanMessage(FOLLOW_UP)])
    check(asked, streamed, str(followed.content))


def with_litellm(url: str, model: str) -> None:
    """LiteLLM."""
    import litellm

    def ask(messages: list[dict[str, str]], **more: object) -> object:
        return litellm.completion(
            model=f"openai/{model}", api_base=url, api_key=KEY, messages=messages, temperature=0, **more
        )

    said = [{"role": "user", "content": QUESTION}]
    asked = ask(said).choices[0].message.content
    streamed = "".join(piece.choices[0].delta.content or "" for piece in ask(said, stream=True))
    said += [{"role": "assistant", "content": asked}, {"role": "user", "content": FOLLOW_UP}]
    check(asked, streamed, ask(said).choices[0].message.content)


def with_pydantic_ai(url: str, model: str) -> None:
    """Pydantic AI's agent, with its history of messages."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    agent = Agent(OpenAIChatModel(model, provider=OpenAIProvider(base_url=url, api_key=KEY)))

    async def run() -> tuple[str, str, str]:
        first = await agent.run(QUESTION, model_settings={"temperature": 0})
        async with agent.run_stream(QUESTION, model_settings={"temperature": 0}) as stream:
            streamed = await stream.get_output()
        second = await agent.run(FOLLOW_UP, message_history=first.all_messages(), model_settings={"temperature": 0})
        return first.output, streamed, second.output

    check(*asyncio.run(run()))


def with_llm(url: str, model: str) -> None:
    """The command `llm`."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "extra-openai-models.yaml").write_text(
            f"- model_id: here\n  model_name: {model}\n  api_base: {url}\n  api_key_name: here\n", encoding="utf-8"
        )
        environment = {**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": KEY}
        line = [str(Path(sys.executable).parent / "llm"), "-m", "here", "--key", KEY, "-o", "temperature", "0"]

        def ask(*arguments: str) -> str:
            found = subprocess.run([*line, *arguments], capture_output=True, text=True, env=environment, timeout=300)
            assert found.returncode == 0, found.stderr
            return found.stdout

        asked = ask("--no-stream", QUESTION)
        check(asked, ask(QUESTION), ask("-c", "--no-stream", FOLLOW_UP))


CLIENTS: dict[str, tuple[str, Callable[[str, str], None]]] = {
    "openai": ("openai", with_openai),
    "langchain-openai": ("langchain_openai", with_langchain),
    "litellm": ("litellm", with_litellm),
    "pydantic-ai": ("pydantic_ai", with_pydantic_ai),
    "llm": ("llm", with_llm),
}


def main() -> None:
    """Drive every client that is installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080/v1")
    parser.add_argument("--model", default="medagent")
    options = parser.parse_args()
    failed = False
    for name, (package, drive) in CLIENTS.items():
        if importlib.util.find_spec(package) is None:
            print(f"{name}: not installed")
            continue
        version = importlib.metadata.version(name if name != "pydantic-ai" else "pydantic-ai-slim")
        try:
            drive(options.url, options.model)
        except Exception as error:  # whatever a client raises is the finding
            failed = True
            print(f"{name} {version}: failed: {type(error).__name__}: {error}")
        else:
            print(f"{name} {version}: passed")
    sys.exit(failed)


if __name__ == "__main__":
    main()

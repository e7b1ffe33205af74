"""A chat template with tools for tokenizers that have none, and agents of one request."""

from __future__ import annotations

import asyncio
import time

import httpx

CHAT = (
    "{% if tools %}tools: {{ tools | tojson }}<end>\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def body(question) -> dict:
    return {"messages": [{"role": "user", "content": question.text}]}


def asks_once(question, base_url: str) -> float:
    """Earns 1 where the model says the gold answer."""
    made = httpx.post(f"{base_url}/chat/completions", json=body(question), timeout=60).json()
    return float(question.answer in made["choices"][0]["message"]["content"])


async def asks_without_waiting(question, base_url: str) -> None:
    async with httpx.AsyncClient(base_url=base_url) as client:
        await client.post("/chat/completions", json=body(question))
        await client.post(f"{base_url.removesuffix('/v1')}/reward", json={"reward": 0.25})


def crashes(question, base_url: str) -> float:
    asks_once(question, base_url)
    raise KeyError("option (B)\nis missing")


def exits(question, base_url: str) -> float:
    raise SystemExit(3)


def hangs(question, base_url: str) -> float:
    asks_once(question, base_url)
    time.sleep(5)
    return 1.0


async def hangs_without_waiting(question, base_url: str) -> float:
    await asyncio.sleep(5)
    return 1.0


def earns_nothing(question, base_url: str) -> None:
    asks_once(question, base_url)


def earns_words(question, base_url: str) -> str:
    asks_once(question, base_url)
    return "much"


def earns_without_asking(question, base_url: str) -> float:
    return 1.0


def fails_for_gout(question, base_url: str) -> float:
    if "gout" in question.text:
        raise RuntimeError("no gout")
    return asks_once(question, base_url)


def asks_two_dialogues(question, base_url: str) -> float:
    """Earns 1 where the second reply is the longer one."""
    said = [
        httpx.post(f"{base_url}/chat/completions", json={**body(question), "user": str(number)}, timeout=60).json()
        for number in range(2)
    ]
    first, second = (each["choices"][0]["message"]["content"] for each in said)
    return float(len(second) > len(first))

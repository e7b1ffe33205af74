"""Plays an environment of verifiers, for `Verifiers`: `python verifiers_worker.py ENV_ID ARGUMENTS SPLIT`.

It imports verifiers alone, so another Python can run it. The first line of JSON out lists the questions, or tells an
error. Then [JOB, QUESTION, BASE_URL] in plays a question, [JOB] cancels it, and each job is answered once. The end of
the input ends the process.
"""

import asyncio
import importlib.util
import json
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from threading import Thread, Timer
from typing import Any
from zlib import crc32

CLIENT = {"api_key_var": "MEDAGENT_NO_KEY"}  # a variable that is not set
SECONDS_TO_END = 3.0

# What each question asks first, how one is played at a base URL for its reward, and what runs meanwhile.
Loaded = tuple[list[str], Callable[[int, str], Awaitable[float]], AbstractAsyncContextManager[Any]]


def classic(env: Any, split: str) -> Loaded:
    """An `Environment` of verifiers 0.1.10 to 0.3."""
    from verifiers.types import ClientConfig

    rows = [dict(row) for row in (env.get_eval_dataset() if split == "eval" else env.get_dataset())]

    async def play(number: int, base_url: str) -> float:
        client = ClientConfig(api_base_url=base_url, max_retries=0, **CLIENT)
        played = await env.run_rollout(rows[number], client, "policy", {})
        if played.get("error"):
            raise RuntimeError(played["error"])
        return float(played["reward"])

    def asked(prompt: Any) -> str:
        said = [prompt] if isinstance(prompt, str) else [m["content"] for m in prompt if m["role"] == "user"]
        return str(said[0]) if said else ""

    return [asked(row["prompt"]) for row in rows], play, nullcontext()


def taskset(env: Any) -> Loaded:
    """An `Env` of verifiers 0.4."""
    import verifiers.v1 as vf

    tasks = list(env.taskset)

    async def play(number: int, base_url: str) -> float:
        (slot,) = env.slots(tasks[number], 1)
        episode = await env.run_slot(slot, vf.ModelContext("policy", vf.EvalClientConfig(base_url=base_url, **CLIENT)))
        trained = [trace for trace in episode.traces if trace.agent.trainable]
        if not episode.ok or len(trained) != 1:
            errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            raise RuntimeError(f"found {len(trained)} trained agents, wanted 1, without errors: {errors}")
        return float(trained[0].reward)

    return [task.data.prompt_text for task in tasks], play, env.serving()


def load(env_id: str, arguments: dict[str, Any], split: str) -> Loaded:
    """The environment. `arguments` are those of its `load_environment`, or without one, settings of its `EnvConfig`."""
    import verifiers

    name = env_id.split("/")[-1].split("@")[0].replace("-", "_")
    named = importlib.util.find_spec(name) or not importlib.util.find_spec("verifiers.v1")  # then importing raises
    module: Any = importlib.import_module(name) if named else None
    if hasattr(module, "load_environment"):
        make = getattr(verifiers, "load_environment", None)  # of 0.1 to 0.3, which also sets the environment's id
        env = make(name, **arguments) if make else module.load_environment(**arguments)
    else:
        import verifiers.v1 as vf

        seat = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}  # a chat with tools, on this machine
        own = {"id": env_id, **arguments.get("taskset", {})}
        env = vf.load_environment(vf.resolve_env_config({"agent": seat, **arguments, "taskset": own}))
    return taskset(env) if hasattr(env, "run_slot") else classic(env, split)


def kill_all() -> None:
    """Kill this process and what it has started, where /proc tells it also in sessions of their own."""
    mark = f"MEDAGENT_WORKER={os.environ.get('MEDAGENT_WORKER')}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if path.parent.name != str(os.getpid()) and mark in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)


async def serve(env: Loaded, numbers: dict[str, int], lines: Any, say: Callable[..., None]) -> None:
    """Play what the lines ask for until they end."""
    tasks: dict[int, asyncio.Task[None]] = {}
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    async def play(job: int, id: str, base_url: str) -> None:
        try:
            say(job=job, reward=await env[1](numbers[id], base_url))
        except BaseException as error:  # an environment may raise anything
            say(job=job, error=repr(error)[:2000])
        finally:
            del tasks[job]

    def hear(job: int, *asked: str) -> None:
        if asked:
            tasks[job] = loop.create_task(play(job, *asked))
        elif job in tasks:
            tasks[job].cancel()

    def end_if_blocked(job: int) -> None:
        blocking = asyncio.current_task(loop)
        for number, task in list(tasks.items()) if job in tasks else ():
            if task is blocking:  # the others begin again
                say(job=number, error="it blocked its process")
        if job in tasks:
            kill_all()

    def read() -> None:
        for line in lines:
            job, *asked = json.loads(line)
            loop.call_soon_threadsafe(hear, job, *asked)
            if not asked:
                Timer(SECONDS_TO_END, end_if_blocked, [job]).start()
        loop.call_soon_threadsafe(ended.set)
        time.sleep(SECONDS_TO_END)
        kill_all()

    async with env[2]:
        Thread(target=read, daemon=True).start()
        await ended.wait()
        for task in (waiting := list(tasks.values())):
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def main(env_id: str, arguments: str, split: str) -> None:
    """Load the environment, list its questions, and play them."""
    lines, out = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what the environment prints

    def say(**what: Any) -> None:
        out.write(json.dumps(what) + "\n")

    sys.path[0] = ""  # the folder where the run began, not that of this file, whose names would hide packages
    random.seed(0)  # an environment that draws its questions draws the same ones again
    try:
        env = load(env_id, json.loads(arguments), split)
    except BaseException as error:
        say(error=repr(error))
        raise
    ids = [f"{env_id}:{number}-{crc32(text.encode()):08x}" for number, text in enumerate(env[0])]
    say(questions=list(zip(ids, env[0], strict=True)))
    asyncio.run(serve(env, {id: number for number, id in enumerate(ids)}, lines, say))


if __name__ == "__main__":
    main(*sys.argv[1:])

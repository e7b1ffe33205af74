"""A stand-in for the package verifiers and an environment of it, as files: what a worker sees of them."""

from __future__ import annotations

from pathlib import Path

PACKAGE = """
class ClientConfig:
    def __init__(self, **settings):
        self.url = settings["api_base_url"]
"""
ENVIRONMENT = """
import asyncio, json, os, signal, subprocess, sys, time, urllib.request
print("noise on standard output")

class Environment:
    def get_dataset(self):
        system = {"role": "system", "content": "Answer."}
        return [{"prompt": [system, {"role": "user", "content": text}]} for text in TEXTS]

    def get_eval_dataset(self):
        return [{"prompt": "evaluated"}]

    async def run_rollout(self, row, client, model, sampling):
        text = row["prompt"] if isinstance(row["prompt"], str) else row["prompt"][-1]["content"]
        body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
        request = urllib.request.Request(client.url + "/chat/completions", body, {"Content-Type": "application/json"})
        said = json.load(await asyncio.to_thread(urllib.request.urlopen, request))
        if "raises" in text:
            raise KeyError("dose")
        if "waits" in text:
            await asyncio.sleep(60)
        if "blocks" in text:
            subprocess.Popen(["sleep", "61.5"], start_new_session=True)
            time.sleep(60)
        if "dies" in text and not os.path.exists("died"):
            open("died", "w").close()
            subprocess.Popen(["sleep", "61.5"], start_new_session=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if "infinite" in text:
            return {"reward": float("inf")}
        return {"reward": float("allo" in said["choices"][0]["message"]["content"]), "error": None}

def load_environment(texts=("Which drug for gout?",), fails=False):
    global TEXTS
    TEXTS = texts
    if fails:
        raise ValueError("no such benchmark")
    return Environment()
"""


def write_stub(folder: Path) -> None:
    """Write both into a folder, from which a worker started there imports them."""
    (folder / "verifiers").mkdir()
    (folder / "verifiers" / "__init__.py").touch()
    (folder / "verifiers" / "types.py").write_text(PACKAGE)
    (folder / "stub_env.py").write_text(ENVIRONMENT)

"""How the service is started: what is wrong is said before anything is loaded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from medagent.cli.main import main
from medagent.cli.serve import Settings, app_of, engine_named
from medagent.errors import ConfigError, InputError
from medagent.serving.background import trim_memory
from medagent.serving.middleware import digest, read_api_key_hashes
from medagent.serving.page import read_examples
from medagent.serving.settings import AdmissionLimits


def test_wrong_settings_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"others could reach the agent.*--auth.api_key_hashes"):
        Settings(host="0.0.0.0")
    (tmp_path / "tokens").write_text(f"{digest('a')} ward 3\nplain\n")
    with pytest.raises(ConfigError, match="found 1 of 2 lines"):
        read_api_key_hashes(tmp_path / "tokens")
    with pytest.raises(ConfigError, match="max_running 0"):
        AdmissionLimits(max_running=0)
    (tmp_path / "examples").write_text('{"question": ""}')
    with pytest.raises(ConfigError, match=r"examples .*cannot be read"):
        read_examples(tmp_path / "examples")
    with pytest.raises(ConfigError, match="0 servers"):
        engine_named("servers")
    with pytest.raises(ConfigError, match="1 servers"):
        engine_named("vllm", servers=["http://a/v1"])
    with pytest.raises(ConfigError, match="Give --engine vllm"):
        engine_named("in_process", vllm={"gpu_memory": 0.5})
    with pytest.raises(ConfigError, match="gpu_memory"):
        engine_named("vllm", vllm={"gpus": 2})
    with pytest.raises(ConfigError, match="--model"):
        engine_named("servers", servers=["http://a/v1"])
    elsewhere = engine_named("servers", servers=["http://a/v1"], model="m")
    with pytest.raises(InputError, match="exported agent"):
        app_of("starter", index="none", model="", tools=[], engine=elsewhere, settings=Settings())


def test_memory_is_trimmed_where_glibc_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("musl", "1.2"))
    asyncio.run(asyncio.wait_for(trim_memory(0.0), 5))
    trimmed = []
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace(malloc_trim=trimmed.append))
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(trim_memory(0.01), 0.5))
    assert len(trimmed) > 1


def test_an_option_by_its_former_name_is_refused_with_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    for line, new in (("serve --tokens x", "--auth.api_key_hashes"), ("evaluate --ask=plain", "--prompting")):
        assert main(line.split()) == 1
        assert new in capsys.readouterr().err

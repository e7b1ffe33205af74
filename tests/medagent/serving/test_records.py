"""The service keeps a record of each answer, and `medagent replay` makes the answer again and says what differs."""

from __future__ import annotations

import asyncio
import json
import os
from errno import ENOSPC
from pathlib import Path
from typing import Any

import httpx
import pytest

from medagent.cli.commands.ask import ServeCommand
from medagent.cli.main import main
from medagent.cli.serve import app_of, engine_of
from medagent.errors import ConfigError
from medagent.models.base_models import STARTER
from medagent.retrieval.passages import Passage
from medagent.serving.records import Records
from medagent.starter.index import build_starter_index
from tests.medagent.serving.support import CHAT, call, client_of, events

PASSAGES = [
    Passage.make("Gout", "Gout hurts. The first-line drug is colchicine.", source="gout.md"),
    Passage.make("Scurvy", "Scurvy is treated with vitamin C.", source="scurvy.md"),
]
EDITED = [
    Passage.make("Gout", "Gout hurts. The first-line drug is naproxen.", source="gout.md"),
    Passage.make("Gout diet", "Gout is treated with less beer.", source="diet.md"),
]
ASKED = {"question": "And its treatment?", "earlier": ["What is gout?"], "seed": 5, "temperature": 2.0}


def served_answer(tmp_path: Path, agent: str, index: str, **more: Any) -> str:
    """The id of an answer that a service gave and recorded."""
    command = ServeCommand(agent=agent, index=index, records=str(tmp_path / "records"), poll_interval_s=0, **more)
    app = app_of(command, engine_of(command))

    async def ask() -> Any:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:
            return (await client.post("/v1/answers", json=ASKED)).json()["id"]

    return str(asyncio.run(ask()))


def replayed(tmp_path: Path, id: str, *more: str) -> int:
    return main(["replay", id, "--records", str(tmp_path / "records"), *more])


@pytest.mark.parametrize("agent", ["none", STARTER])
def test_a_replayed_answer_is_the_same(
    tmp_path: Path, index_folder: Path, agent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    id_ = served_answer(tmp_path, agent, str(index_folder))
    record = json.loads((tmp_path / "records" / f"{id_}.json").read_text(encoding="utf-8"))
    assert record["conversation"] == ["What is gout?", "And its treatment?"]
    assert (record["seed"], record["temperature"]) == (5, 2.0)
    assert record["made_with"]["index_sha256"]
    assert agent == STARTER or record["turns"][0]["passages"], "the untrained policy may search for nothing"
    assert replayed(tmp_path, id_) == 0
    told = capsys.readouterr().out
    assert f"The same answer: {record['answer']['text']}" in " ".join(told.split())
    assert "has changed" not in told
    record["seed"] = 6
    (tmp_path / "records" / f"{id_}.json").write_text(json.dumps(record), encoding="utf-8")
    assert replayed(tmp_path, id_) == (0 if agent == "none" else 1), "another seed samples another answer"


def test_a_changed_index_is_named_with_its_passages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    build_starter_index(before, PASSAGES)
    build_starter_index(after, EDITED)
    id_ = served_answer(tmp_path, "none", str(before))
    assert replayed(tmp_path, id_, "--index", str(after)) == 1
    told, error = capsys.readouterr()
    for line in (
        f"index now:  {after}",
        "index_sha256 then:",
        "Gout, gout.md: changed\n  - The first-line drug is colchicine.\n  + The first-line drug is naproxen.",
        "Scurvy, scurvy.md: gone",
        "Gout diet, diet.md: new",
        "text now:",
    ):
        assert line in told
    assert "Gout hurts." not in told.partition("text then:")[0], "an unchanged sentence is left out"
    assert f"answer {id_}: it differs now" in error
    assert replayed(tmp_path, id_, "--index", str(before)) == 0


def test_a_changed_agent_or_file_of_rules_is_named(
    tmp_path: Path, index_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    synonyms = tmp_path / "synonyms"
    synonyms.write_text("zedonosis|zed disease\n")
    id_ = served_answer(tmp_path, "none", str(index_folder), synonyms=str(synonyms))
    synonyms.write_text("zedonosis|zed syndrome\n")
    assert replayed(tmp_path, id_) == 0
    assert "synonyms_sha256 then:" in capsys.readouterr().out
    assert replayed(tmp_path, id_, "--agent", STARTER) == 1
    assert "agent then: none\nagent now:  starter" in capsys.readouterr().out


def test_what_cannot_be_replayed_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    (folder / "answer-1.json").write_text('{"id": "answer-1", "que')
    (folder / "answer-2.json").write_text('{"id": "answer-2"}')
    for id_, told in (("answer-0", "found no record of it"), ("answer-1", "damaged"), ("answer-2", "of this version")):
        assert replayed(tmp_path, id_) == 1
        assert told in capsys.readouterr().err


def test_records_are_for_their_account_alone_and_the_log_has_nothing(
    policy: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="medagent")
    folder = tmp_path / "new" / "records"
    mask = os.umask(0)
    try:
        settings = {"records": Records(folder)}
        plain = call(policy, "POST", "/v1/answers", settings=settings, json={"question": "my private rash"})
        streamed = call(
            policy, "POST", "/v1/answers", settings=settings, json={"question": "my private rash", "stream": True}
        )
        messages = [{"role": "user", "content": "my private rash"}]
        chat = call(policy, "POST", CHAT, settings=settings, json={"model": "medagent", "messages": messages})
    finally:
        os.umask(mask)
    ids = {plain.json()["id"], dict(events(streamed.text))["id"]["id"], chat.json()["id"]}
    assert {path.stem for path in folder.iterdir()} == ids
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    record = json.loads((folder / f"{plain.json()['id']}.json").read_text(encoding="utf-8"))
    assert record["answer"] == plain.json()["answer"]
    assert record["turns"][-1]["text"] == "<answer> colchicine [1] [7]</answer>", "also where it is withheld"
    assert "rash" not in caplog.text


def test_without_the_option_nothing_is_written(
    tmp_path: Path, index_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ServeCommand(agent="none", index=str(index_folder))
    call_app = app_of(command, engine_of(command))

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=call_app), base_url="http://localhost") as one:
            assert (await one.post("/v1/answers", json=ASKED)).status_code == 200

    asyncio.run(ask())
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_once_and_fails_no_answer(
    policy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    records, replace = Records(tmp_path), os.replace

    async def ask(client: Any) -> None:
        assert (await client.post("/v1/answers", json={"question": "my private rash"})).status_code == 200

    async def run() -> None:
        async with client_of(policy, records=records) as client:
            for _ in range(2):  # it is told again once it had worked
                monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(ENOSPC, "No space left")))
                await ask(client)
                await ask(client)
                assert not list(tmp_path.glob("*.part")), "nothing is left that takes space"
                monkeypatch.setattr(os, "replace", replace)
                await ask(client)

    asyncio.run(run())
    told = [each.getMessage() for each in caplog.records if "cannot be written" in each.getMessage()]
    assert len(told) == 2
    assert "No space left" in told[0]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_killed_write_leaves_no_torn_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records, id_ = Records(tmp_path), f"answer-{1:032x}"

    def killed(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        with pytest.raises(SystemExit):
            records.keep({"id": id_, "question": "gout?"})
    assert not (tmp_path / f"{id_}.json").exists()
    records.keep({"id": id_, "question": "half a character \ud800"})
    assert json.loads((tmp_path / f"{id_}.json").read_text(encoding="utf-8"))["question"].endswith("\ud800")


def test_the_newest_records_are_kept_and_other_files_left_alone(tmp_path: Path) -> None:
    (tmp_path / "answer-sheet.json").write_text("mine")
    records = Records(tmp_path, kept=2)
    for number in range(4):
        records.keep({"id": f"chatcmpl-{number:032x}"})
        os.utime(tmp_path / f"chatcmpl-{number:032x}.json", (number, number))
    (tmp_path / f"chatcmpl-{3:032x}.json").unlink()
    records.keep({"id": f"answer-{4:032x}"})
    assert sorted(path.stem[-1] for path in tmp_path.iterdir()) == ["2", "4", "t"]
    (tmp_path / "file").write_text("")
    for wrong in ({"folder": tmp_path / "file" / "inside"}, {"folder": tmp_path, "kept": 0}):
        with pytest.raises(ConfigError, match="records"):
            Records(**wrong)

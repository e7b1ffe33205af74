"""Files that somebody sent: whatever class, code or pickle they name, opening them runs none of it."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from chromadb.utils.embedding_functions import known_embedding_functions

from medagent.agent_spec import AgentSpec, read_spec, write_spec
from medagent.cli.main import main
from medagent.config_files import allow_class
from medagent.errors import ConfigError, MedagentError
from medagent.models.causal_lm import load_causal_lm
from medagent.models.precision import resolve_precision
from medagent.protocol import TagProtocol
from medagent.retrieval.errors import IndexMismatchError
from medagent.retrieval.vectors import ChromaVectors
from medagent.training.memory.estimate import ModelShape
from medagent.training.module import AgentModule
from medagent.training.run import _refuse_changes, newest_checkpoint
from medagent.types import Limits

FOUND = "found the class hostile.{0}, wanted one of the project's own.* --allow_class hostile.{0}"


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that is written when the module `hostile` is imported."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "hostile.py").write_text(
        f"open({str(tmp_path / 'marker')!r}, 'w').close()\n"
        "from medagent.protocol import TagProtocol\n"
        "from medagent.training.objectives import ClippedSurrogate\n"
        "class Protocol(TagProtocol): pass\n"
        "class Loss(ClippedSurrogate): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "path")
    yield tmp_path / "marker"
    sys.modules.pop("hostile", None)


def agent_in(folder: Path) -> Path:
    folder.mkdir()
    write_spec(folder, AgentSpec("starter", "float32", TagProtocol(), Limits(), 2, None))
    text = (folder / "agent.json").read_text()
    (folder / "agent.json").write_text(text.replace("medagent.protocol.TagProtocol", "hostile.Protocol"))
    return folder


def test_an_agents_protocol_is_imported_when_it_is_allowed(tmp_path: Path, marker: Path, capsys) -> None:
    command = ["export", str(agent_in(tmp_path / "agent")), "--form", "adapter", "--out", str(tmp_path / "out")]
    for asked in (["ask", "Why?", "--agent", command[1], "--index", "x"], ["evaluate", "--agent", command[1]], command):
        assert main(asked) == 1
        assert "hostile.Protocol, wanted one of the project's own" in (said := capsys.readouterr().err)
        assert "--allow_class hostile.Protocol" in said
    assert not marker.exists()
    assert main([*command, "--allow_class=hostile.Protocol"]) == 1
    assert "found no adapter" in capsys.readouterr().err  # it was opened
    assert marker.exists()


def test_names_in_an_agent_import_no_package_of_that_name(tmp_path: Path, monkeypatch) -> None:
    """As where the command is run in a folder that came with the agent."""
    agent = agent_in(tmp_path / "agent")
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "sent.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w').close()\nX = 1\n")
    text = (agent / "agent.json").read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for sent in (text.replace("hostile.Protocol", "training.sent.X"), text.replace('"starter"', '"training.sent.X"')):
        (agent / "agent.json").write_text(sent)
        with pytest.raises(ConfigError, match="--allow_class"):
            read_spec(agent)
    assert not (tmp_path / "marker").exists()


def test_only_a_class_can_be_allowed(capsys) -> None:
    for path in ("no_such_module.Thing", "medagent.protocol.NOT_ADVICE", "", "medagent"):
        assert main(["ask", "Why?", "--allow_class", path]) == 1
        assert f"--allow_class {path}: " in capsys.readouterr().err


def test_a_runs_settings_are_compared_and_never_imported(tmp_path: Path, marker: Path) -> None:
    kept = {"data": {"reward": {"class_path": "hostile.Protocol"}}}
    with pytest.raises(ConfigError, match="other settings"):
        _refuse_changes(tmp_path, kept, {"data": {"reward": {"class_path": "medagent.training.F1"}}})
    assert not marker.exists()


@pytest.mark.parametrize("key", ["hyper_parameters", "hparams"])  # the second is an earlier Lightning's
@pytest.mark.parametrize("loss", [{"class_path": "hostile.Loss", "init_args": {}}, "hostile.Loss"])
def test_a_checkpoints_classes_are_imported_when_they_are_allowed(
    tmp_path: Path, marker: Path, loss: object, key: str
) -> None:
    module = AgentModule("starter", "float32", critic_lora=None)
    plain = {name: value for name, value in module.hparams.items() if name != "policy_loss"}
    kept = {"state_dict": module.state_dict(), "hyper_parameters": plain}
    kept[key] = {**kept.get(key, {}), "policy_loss": loss}
    module.on_save_checkpoint(kept)
    torch.save({**kept, "pytorch-lightning_version": "2.6.4"}, tmp_path / "sent.ckpt")
    with pytest.raises(ConfigError, match=FOUND.format("Loss")):
        AgentModule.load_from_checkpoint(tmp_path / "sent.ckpt")
    assert not marker.exists()
    allow_class("hostile.Loss")
    assert marker.exists()
    assert type(AgentModule.load_from_checkpoint(tmp_path / "sent.ckpt").policy_loss).__name__ == "Loss"


def test_settings_of_a_checkpoint_that_only_an_earlier_version_took_are_ignored(tmp_path: Path) -> None:
    module = AgentModule("starter", "float32", critic_lora=None)
    kept = {"state_dict": module.state_dict(), "hyper_parameters": {**module.hparams, "routing_replay": "none"}}
    module.on_save_checkpoint(kept)
    torch.save({**kept, "pytorch-lightning_version": "2.6.4"}, tmp_path / "kept.ckpt")
    assert "routing_replay" not in AgentModule.load_from_checkpoint(tmp_path / "kept.ckpt").hparams


class Pickled:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return open, (str(self._path), "w")


def test_a_checkpoint_that_is_a_pickle_is_named_and_passed_over(tmp_path: Path, capsys) -> None:
    (tmp_path / "checkpoints").mkdir()
    path = tmp_path / "checkpoints" / "sent.ckpt"
    torch.save({"state_dict": Pickled(tmp_path / "marker")}, path)
    assert newest_checkpoint(tmp_path) is None
    assert f"checkpoint {path} cannot be read" in capsys.readouterr().out
    with pytest.raises(Exception, match="Weights only load failed"):
        AgentModule.load_from_checkpoint(path)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    "opened",
    [
        lambda name: load_causal_lm(name, dtype="float32"),
        lambda name: resolve_precision("auto", name, device="cpu"),
        ModelShape.of,
    ],
)
def test_a_models_own_code_is_not_run_even_if_somebody_would_say_yes(tmp_path: Path, opened, monkeypatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *asked: "y")
    model = tmp_path / "model"
    model.mkdir()
    code = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model", "AutoTokenizer": ["code.Tokens", None]}
    (model / "config.json").write_text(json.dumps({"model_type": "sent", "auto_map": code}))
    (model / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Tokens", "auto_map": code}))
    (model / "code.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w').close()\n")
    with suppress(MedagentError):  # one that cannot be read gets float32
        opened(str(model))
    assert not (tmp_path / "marker").exists()


def test_an_indexs_embedding_function_is_never_built(tmp_path: Path, monkeypatch, capsys) -> None:
    """Chroma builds a named one when passages are added, and that of sentence-transformers may load code."""
    built: list[object] = []
    monkeypatch.setitem(
        known_embedding_functions, "sentence_transformer", SimpleNamespace(build_from_config=built.append)
    )
    (tmp_path / "c.jsonl").write_text('{"id": "a", "text": "Allopurinol lowers urate."}\n')
    index = tmp_path / "index"
    assert main(["index", "build", str(tmp_path / "c.jsonl"), "--out", str(index)]) == 0
    named = {"type": "known", "name": "sentence_transformer", "config": {"model_name": "sent"}}
    with sqlite3.connect(index / "chroma" / "chroma.sqlite3") as database:
        (schema,) = database.execute("SELECT schema_str FROM collections").fetchone()
        row = (json.dumps({"embedding_function": named}), schema.replace('{"type":"legacy"}', json.dumps(named)))
        database.execute("UPDATE collections SET config_json_str = ?, schema_str = ?", row)
    vectors = ChromaVectors.local(index)
    with pytest.raises(IndexMismatchError, match="found the name of an embedding function.*index rebuild"):
        vectors.open()
    assert not built
    vectors._client.get_collection("passages", embedding_function=None).add(ids=["7"], embeddings=[[1.0] * 1024])
    assert built  # what is refused
    built.clear()
    assert main(["index", "rebuild", str(index)]) == 0
    assert ChromaVectors.local(index).open()
    assert not built

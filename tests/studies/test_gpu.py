"""The runs for a GPU that is at hand for minutes: pieces, steps, estimates, and all of it in miniature."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import yaml

from medagent.evaluation.viewer.recorded import read_metrics
from studies.design import Cell
from studies.real.gpu.__main__ import _run
from studies.real.gpu.mfu import shares
from studies.real.gpu.steps import Given, Step, arm_seconds, seed_seconds
from tests.support import ROOT

PIECES = ROOT / "studies" / "real" / "gpu" / "pieces.sh"


def pieces(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", PIECES, *map(str, arguments)], capture_output=True, text=True)


def test_a_file_is_whole_again_from_its_pieces_and_bad_ones_are_named(tmp_path: Path) -> None:
    whole, folder, again = tmp_path / "m.gguf", tmp_path / "pieces", tmp_path / "again.gguf"
    whole.write_bytes(bytes(range(256)) * 250_000)  # 64 MB: two pieces
    assert pieces("make", whole, folder).returncode == 0
    first, second = sorted(folder.glob("*.part"))
    assert (first.stat().st_size, second.stat().st_size) == (60_000_000, 4_000_000)
    kept = second.read_bytes()
    for damage in (lambda: second.unlink(), lambda: second.write_bytes(kept[::-1])):
        damage()
        failed = pieces("join", folder, again)
        assert failed.returncode == 1
        assert second.name in failed.stdout + failed.stderr
        assert first.name not in failed.stdout + failed.stderr
        assert not again.exists()
    second.write_bytes(kept)
    assert pieces("join", folder, again).returncode == 0
    assert again.read_bytes() == whole.read_bytes()
    assert pieces("join", folder).returncode == 2


def test_the_share_of_the_peak_counts_two_operations_per_weight_and_token() -> None:
    seconds = {"prefill": 2.0, "decode": 3.0, "sample": 1.0, "policy forward": 5.0, "backward": 10.0}
    step = {"phases": seconds, "counts": {"prefill": 1000, "decode": 80}, "distinct": 500}
    found = shares(step, weights=1e6, peak=1e10)
    assert {name: row["mfu"] for name, row in found.items()} == pytest.approx(
        {"prefill": 0.1, "decode": 0.004, "update, forward": 0.02, "update, backward": 0.01}
    )


def test_four_passes_cost_three_more_updates_in_the_estimate(tmp_path: Path) -> None:
    study = Given(tmp_path, "base", "", "data", "index", 7, miniature=False).study()
    updates = 8 * 3 * 4 * 2  # iterations, passes more, minibatches, micro-batches
    assert arm_seconds(study, "PPO, hard") - arm_seconds(study, "PPO") == pytest.approx(0.25 * updates)
    assert arm_seconds(study, "SFT only") == 20 + 3 * 7, "a start and three modes"
    alone = sum(arm_seconds(study, arm) for arm in study.arms)
    assert seed_seconds(study, 1) == pytest.approx(50 + alone)
    assert seed_seconds(study, 11) == pytest.approx(50 + alone * 1.6 / 11)


def test_a_step_that_fails_or_is_too_long_is_recorded_and_one_that_is_done_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [Step("bad", "json.tool", ["nowhere.json"], 1), Step("long", "http.server", ["0"], 1)]
    steps += [Step("good", "json.tool", ["--help"], 1), Step("none", "vllm", [], 1, missing="vLLM is not installed")]
    for step in steps:
        _run(step, tmp_path, time.monotonic() + (1.5 if step.name == "long" else 60))
    status = {path.stem: json.loads(path.read_text())["status"] for path in tmp_path.glob("*.json")}
    assert status == {"bad": "failed", "long": "stopped", "good": "done"}
    stamp = (tmp_path / "good.json").stat().st_mtime_ns
    _run(steps[2], tmp_path, time.monotonic() + 60)
    assert (tmp_path / "good.json").stat().st_mtime_ns == stamp
    told = capsys.readouterr().out
    assert "bad: failed" in told
    assert "none: vLLM is not installed" in told
    assert "good: done before" in told


@pytest.mark.long
@pytest.mark.usefixtures("heard")
def test_the_miniature_is_stopped_in_the_middle_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "studies.real.gpu", "--miniature", "true", "--out", str(out)]
    run, log = Cell("ST-PPO", 0, out / "study" / "runs" / "st_ppo-0"), out / "study" / "runs" / "st_ppo-0" / "log.txt"
    examples = Cell("examples", 0, out / "study" / "runs" / "examples-0")
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (log.exists() and "  1/2" in log.read_text()):
        assert process.poll() is None, "it ended before an iteration did"
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=90) != 0
    assert json.loads((out / "steps" / "study.json").read_text())["status"] == "stopped"
    assert examples.finished
    assert not run.finished
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "index: done before" in again.stdout
    assert len(examples.starts) == 1, "examples that are done are kept"
    assert [start["returncode"] == 0 for start in run.starts] == [False, True]
    metrics = read_metrics(run.folder / "rl")
    assert len(metrics) == 2
    share = yaml.safe_load((run.folder.with_name("turn_ppo_at_a_share-0") / "share-0.yaml").read_text())
    scale = sum(row["policy/clip_bias_scale"] for row in metrics) / 2
    assert share["trainer"]["callbacks+"][0]["init_args"] == {"normaliser": "constant", "constant": scale}
    assert json.loads((out / "mfu.json").read_text())["phases"]["decode"]["tokens"] > 0
    with tarfile.open(out / "collected.tar.gz") as archive:
        names = archive.getnames()
    assert {"study/report.md", "study/answers.csv", "study/evaluated.csv", "mfu.json", "steps/study.json"} <= {*names}
    assert [name for name in names if "examples-0" in name] == ["study/runs/examples-0/log.txt"]
    assert not [name for name in names if name.endswith(".safetensors")]

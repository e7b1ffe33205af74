"""What `medagent view` serves and exports."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from medagent.cli.main import main
from medagent.errors import InputError
from medagent.evaluation.viewer import server
from medagent.evaluation.viewer.recorded import RecordedRun
from medagent.evaluation.viewer.server import exported, make_viewer
from tests.evaluation.viewer.support import HOSTILE, SUMMARY, rollout, write_evaluation, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


@pytest.fixture
def client(run: Path) -> TestClient:
    return TestClient(make_viewer([RecordedRun(run)]), base_url="http://127.0.0.1")


def test_the_overview_tells_curves_events_and_the_rollouts_of_each_iteration(client: TestClient, run: Path) -> None:
    told = client.get("/data/0/overview").json()
    assert told["name"] == str(run)
    assert [row["policy/clip_fraction"] for row in told["metrics"]] == [0, 0.1, 0.2]
    assert told["events"][0]["signs"] == ["success fell"]
    assert list(told["parts"]) == ["0", "1", "2"]
    first = told["parts"]["0"]["rollouts"][0]
    assert first == SUMMARY
    assert told["parts"]["0"]["questions"]["q0"].startswith("q0 ")


def test_a_page_that_follows_gets_only_what_is_new(client: TestClient) -> None:
    assert list(client.get("/data/0/overview?known=0&known=1").json()["parts"]) == ["2"]


def test_an_iteration_comes_whole_and_compressed(client: TestClient) -> None:
    answer = client.get("/data/0/parts/1")
    assert answer.headers["content-encoding"] == "gzip"
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert rows[0]["turns"][0]["token_texts"][-1] == HOSTILE
    for wrong in ("7", "x", "..%2F..%2Fetc"):
        assert client.get(f"/data/0/parts/{wrong}").status_code == 404
    assert client.get("/data/3/overview").status_code == 404


def test_what_is_half_written_is_not_shown(client: TestClient, run: Path) -> None:
    (run / "rollouts" / "iteration_0003.jsonl.gz.part").write_bytes(b"\x1f\x8b")
    (run / "rollouts" / "iteration_0004.jsonl.gz").write_bytes(gzip.compress(b"{}"))  # its summary is still to come
    assert list(client.get("/data/0/overview").json()["parts"]) == ["0", "1", "2"]


def test_the_page_allows_no_foreign_asset_and_no_other_host(client: TestClient) -> None:
    page = client.get("/")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert not re.search(r"(src|href)=\"(https?:)?//", page.text)
    assert client.get("/", headers={"host": "evil.example"}).status_code in (400, 403, 421)
    for asset in re.findall(r'(?:src|href)="(page/[^"]+)"', page.text):
        assert client.get(f"/{asset}").status_code == 200, asset


def test_the_answers_of_an_evaluation_are_shown_by_mode(tmp_path: Path) -> None:
    rows = [
        {"mode": mode, "rotation": turned, **rollout(f"q{n}", 0, right=n == 0)}
        for mode, turned in (("search", 0), ("search", 1), ("gold", 0))
        for n in range(2)
    ]
    torn = '{"mode": "search", "rot'
    (tmp_path / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + torn)
    recorded = RecordedRun(tmp_path)
    assert recorded.parts() == ["search", "search rotation 1", "gold"]
    assert [row["verdict"] for row in recorded.overview()["parts"]["gold"]["rollouts"]] == ["correct", "wrong"]
    assert len(gzip.decompress(recorded.lines("search rotation 1")).splitlines()) == 2


def test_the_overview_holds_the_report_of_an_evaluation(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "out")
    told = RecordedRun(folder).overview()
    assert told["report"] == json.loads((folder / "report.json").read_text())
    assert [table["title"] for table in told["report"]["tables"]] == ["Result", "Trust", "Without any model"]
    assert exported([RecordedRun(folder)]) == (folder / "report.html").read_text()
    (folder / "predictions.jsonl").unlink()
    assert RecordedRun(folder).overview()["parts"] == {}, "a report alone is shown too"


def test_metrics_that_are_no_numbers_are_left_out(client: TestClient, run: Path) -> None:
    with (run / "logs" / "version_0" / "metrics.csv").open("a") as log:
        log.write("3,3,nan,inf\n")
    assert client.get("/data/0/overview").json()["metrics"][3] == {"epoch": 3, "step": 3}


@pytest.mark.parametrize(("room", "kept"), [(3, ["0", "1", "2"]), (2, ["0", "2"]), (1, ["0"]), (0.5, [])])
def test_a_large_export_leaves_rollouts_out_and_says_so(
    run: Path, monkeypatch: pytest.MonkeyPatch, room: float, kept: list[str]
) -> None:
    whole = server._packed(RecordedRun(run), server.LARGEST)
    sizes = [len(whole["parts"][name]) + len(json.dumps(whole["overview"]["parts"][name])) for name in "012"]
    monkeypatch.setattr(server, "LARGEST", int(room * max(sizes)))
    (found,) = json.loads(re.findall(r'id="data">(.*?)</script>', exported([RecordedRun(run)]))[0])
    assert list(found["parts"]) == list(found["overview"]["parts"]) == kept
    assert len(found["overview"]["metrics"]) == 3
    told = f"This file holds the rollouts of {len(kept)} of 3 iterations or modes; all take 0 MB."
    assert found["overview"].get("left_out", told).startswith(told)
    assert ("left_out" in found["overview"]) == (len(kept) < 3)


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such folder.*default_root_dir"):
        RecordedRun(tmp_path / "none")
    with pytest.raises(InputError, match="neither rollouts"):
        RecordedRun(tmp_path)


def test_the_export_is_one_file_that_runs_no_text_of_the_records(run: Path, tmp_path: Path) -> None:
    assert main(["view", str(run), "--export", str(tmp_path / "run.html")]) == 0
    page = (tmp_path / "run.html").read_text()
    assert page == exported([RecordedRun(run)])
    assert "import " not in re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)[0]
    assert not re.search(r"<(link|img|script src)", page)
    assert page.count("</script>") == 2
    assert HOSTILE not in page

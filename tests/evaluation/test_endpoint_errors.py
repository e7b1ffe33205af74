"""Evaluation at an endpoint that fails, limits and stops: it ends in a report, or says why and goes on later."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import httpx
import pytest

from medagent.cli.main import main
from medagent.errors import InputError
from medagent.evaluation.evaluator import evaluate
from medagent.policies.http_endpoint import Endpoint
from tests.evaluation.support import scripted

QUESTIONS = 41
Answer = Callable[[int], httpx.Response]


def said(text: str | None = "<answer>(B)", finish_reason: str = "stop") -> httpx.Response:
    """A chat completion, with its usage."""
    choice = {"message": {"content": text}, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    return httpx.Response(200, json={"choices": [choice], "usage": usage})


class Server:
    """Answers by the question's number, on a clock that only requests and waits advance."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[int] = []
        self.times: list[float] = []
        self.answer: Answer = lambda number: said()
        self._waiting: list[tuple[float, int]] = []
        self._sleep = asyncio.sleep

    def handle(self, request: httpx.Request) -> httpx.Response:
        number = int(re.findall(r"Which is number (\d+)\?", request.content.decode())[-1])
        self.now += 0.001
        self.asked.append(number)
        self.times.append(self.now)
        return self.answer(number)

    async def sleep(self, seconds: float) -> None:
        """Let all others do what they can, then advance the clock to the sleeper that wakes first."""
        mine = (self.now + seconds, len(self.asked) * 10_000 + len(self._waiting))
        heappush(self._waiting, mine)
        while True:
            for _ in range(20):
                await self._sleep(0)
            if self._waiting[0] == mine:
                heappop(self._waiting)
                self.now = max(self.now, mine[0])
                return


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    client = httpx.AsyncClient(transport=httpx.MockTransport(made.handle))
    monkeypatch.setattr(Endpoint, "_http", lambda self: client)
    monkeypatch.setattr(asyncio, "sleep", made.sleep)
    for module in ("medagent.agent", "medagent.policies.http_endpoint"):
        monkeypatch.setattr(f"{module}.monotonic", lambda: made.now)
    return made


class Run:
    """`medagent evaluate` into one folder, and what lies there after it."""

    def __init__(self, folder: Path) -> None:
        rows = [
            {"id": f"q{n}", "question": f"Which is number {n}?", "options": ["aspirin", "zinc"], "answer": "B"}
            for n in range(QUESTIONS)
        ]
        (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.folder, self.questions = folder / "out", folder / "q.jsonl"

    def __call__(self, *more: str) -> int:
        command = ["evaluate", "--agent", "http://stub/v1", "--model", "m", "--benchmark", "jsonl", "--path"]
        command += [str(self.questions), "--modes", "closed_book", "--out", str(self.folder)]
        return main([*command, *more])

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return found

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "predictions.jsonl").read_text().splitlines()]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_limit_per_minute_is_waited_out(server: Server, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    served: dict[int, int] = {}
    limit = {"error": {"message": "Rate limit reached: requests per min. Limit 25"}}

    def answer(number: int) -> httpx.Response:
        window = int(server.now // 60)
        served[window] = served.get(window, 0) + 1
        return said() if served[window] <= 25 else httpx.Response(429, json=limit)

    server.answer = answer
    assert run() == 0
    assert (len(run.rows), run.report["n"], run.report["errors"], run.report["accuracy"]) == (41, 41, 0, 1.0)
    assert 60 <= server.now < 130
    assert capsys.readouterr().err.count("limits requests (status 429") == 1


def test_a_question_that_always_fails_is_an_error_in_the_report(
    server: Server, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer = lambda number: httpx.Response(500, text="boom\nboom") if number == 7 else said()
    for _ in range(2):
        server.asked.clear()
        assert run() == 0
        assert (run.report["n"], run.report["errors"], run.report["accuracy"]) == (41, 1, 40 / 41)
        ((name, reason),) = run.report["modes"]["closed_book"]["error_reasons"]
        assert (name, "status 500: boom boom" in reason) == ("q7", True)
        assert "| q7 | endpoint http://stub/v1: no answer" in (run.folder / "report.md").read_text()
        assert "1 ended in an error" in " ".join(capsys.readouterr().out.split())
        (row,) = [row for row in run.rows if row["verdict"] == "error"]
        assert (row["question_id"], row["error"], len(run.rows)) == ("q7", reason, 41)
    assert set(server.asked) == {7}, "the second run asks errors again, and nothing else"
    server.answer = lambda number: said()
    assert run() == 0
    assert (run.report["errors"], run.report["accuracy"], len(run.rows)) == (0, 1.0, 41)


def fails(error: Exception) -> Answer:
    def answer(number: int) -> httpx.Response:
        raise error

    return answer


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (lambda n: httpx.Response(502, text="bad gateway"), "status 502: bad gateway"),
        (lambda n: httpx.Response(200, html="<html>busy</html>"), "status 502 inside a 200: <html>busy"),
        (lambda n: httpx.Response(200, text='{"choices": [{"mess'), "status 502 inside a 200"),
        (lambda n: httpx.Response(200, json={"choices": []}), "status 502 inside a 200"),
        (lambda n: httpx.Response(200, json={"error": {"code": "1302"}}), "status 502 inside a 200"),
        (lambda n: httpx.Response(200, json={"choices": [{"message": None}]}), "wanted a chat completion"),
        (lambda n: httpx.Response(400, text="cannot decode"), "refused with status 400: cannot decode"),
        (lambda n: httpx.Response(429, text="Request too large: tokens per min"), "status 429: Request too large"),
        (lambda n: said("no", "content_filter"), "content filter"),
        (fails(httpx.ReadTimeout("slow")), "ReadTimeout"),
        (fails(httpx.DecodingError("gzip")), "DecodingError"),
    ],
)
def test_whatever_fails_for_one_question_is_its_error(server: Server, run: Run, failure: Answer, reason: str) -> None:
    server.answer = lambda number: failure(number) if number == 0 else said()
    assert run("--concurrency", "1") == 0
    ((name, found),) = run.report["modes"]["closed_book"]["error_reasons"]
    assert name == "q0"
    assert reason in found
    report = run.report
    assert (report["errors"], report["abstained"], report["no_answer"], report["accuracy"]) == (1, 0, 0, 40 / 41)
    assert report["trust"]["coverage"]["accuracy"] == 40 / 41


def test_an_answer_without_text_is_no_error(server: Server, run: Run) -> None:
    server.answer = lambda number: said(None) if number == 7 else said()
    assert run() == 0
    assert (run.report["errors"], run.report["no_answer"]) == (0, 1)


def test_an_unparsable_200_is_asked_again(server: Server, run: Run) -> None:
    broken = {3, 4}

    def answer(number: int) -> httpx.Response:
        if number not in broken:
            return said()
        broken.remove(number)
        return httpx.Response(200, html="<html>restarting</html>")

    server.answer = answer
    assert run() == 0
    assert run.report["accuracy"] == 1.0
    assert len(server.asked) == 43


@pytest.mark.parametrize("concurrency", ["1", "4", "64"])
def test_a_server_that_is_gone_stops_the_run_with_what_it_has(
    server: Server, run: Run, concurrency: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer = lambda number: said() if len(server.asked) <= 25 else fails(httpx.ConnectError("refused"))(number)
    assert run("--concurrency", concurrency) == 1
    assert re.search(r"stopped after 5 errors in a row.*ConnectError", capsys.readouterr().err)
    assert sum(row["verdict"] == "correct" for row in run.rows) == 25
    assert not (run.folder / "report.json").exists()
    assert run("--concurrency", concurrency, "--max_errors", "17") == 0
    assert (run.report["n"], run.report["errors"], len(run.rows)) == (41, 16, 41)
    server.asked.clear()
    assert run("--concurrency", concurrency) == 0
    assert (run.report["errors"], len(server.asked)) == (0, 16)


def test_errors_apart_from_each_other_do_not_stop_the_run(server: Server, run: Run) -> None:
    server.answer = lambda number: httpx.Response(500) if number % 5 == 0 else said()
    assert run() == 0, "the nine end last and together, but others were answered after each first failed"
    assert (run.report["errors"], len(run.rows)) == (9, 41)


def test_where_nothing_is_answered_there_is_no_report_and_the_folder_is_free(
    server: Server, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer = lambda number: httpx.Response(401, text="who are you?")
    assert run() == 1
    assert "status 401: who are you?" in capsys.readouterr().err
    assert run("--limit", "3") == 1
    assert "no question was answered, 3 ended in errors" in capsys.readouterr().err
    server.answer = lambda number: said()
    assert run("--temperature", "0.5") == 0


@pytest.mark.parametrize("concurrency", ["1", "64"])
def test_requests_per_minute_are_kept_by_the_client(server: Server, run: Run, concurrency: str) -> None:
    assert run("--requests_per_minute", "30", "--concurrency", concurrency) == 0
    gaps = [after - before for before, after in zip(server.times, server.times[1:], strict=False)]
    assert min(gaps) > 1.99
    assert server.now == pytest.approx(80, abs=1)


def test_rates_and_errors_out_of_range_are_refused(
    server: Server, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--requests_per_minute", "-1") == 1
    assert "wanted a number above 0, for an endpoint" in capsys.readouterr().err
    with pytest.raises(InputError, match="for an endpoint"):
        evaluate(scripted(lambda read, turn: ""), run.questions, modes="closed_book", requests_per_minute=5)
    assert run("--max_errors", "0") == 1
    assert "max_errors 0: wanted 1 or more" in capsys.readouterr().err
    assert not server.asked


def test_an_interrupt_loses_no_usage(server: Server, run: Run) -> None:
    def answer(number: int) -> httpx.Response:
        if len(server.asked) == 13:
            raise KeyboardInterrupt
        return said()

    server.answer = answer
    assert run("--concurrency", "1") == 130
    assert [row["usage"]["prompt_tokens"] for row in run.rows] == [100] * 12
    assert run() == 0
    usage = run.report["usage"]
    assert (usage["questions"], usage["requests"], usage["prompt_tokens"], usage["completion_tokens"]) == (
        41,
        41,
        4_100,
        410,
    )


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "Unsupported parameter: temperature"),
        (400, "invalid temperature: only 1 is allowed for this model"),
        (422, "['body', 'temperature']: Extra inputs are not permitted"),
    ],
)
def test_a_parameter_that_the_server_refuses_is_left_out_and_said(
    server: Server, run: Run, capsys: pytest.CaptureFixture[str], status: int, words: str
) -> None:
    bodies: list[dict[str, Any]] = []
    handle = server.handle

    def strict(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        if "temperature" in bodies[-1]:
            return httpx.Response(status, json={"error": {"message": words}})
        return handle(request)

    client = httpx.AsyncClient(transport=httpx.MockTransport(strict))
    Endpoint._http = lambda self: client  # type: ignore[method-assign]  # undone by the fixture
    assert run() == 0
    assert run.report["accuracy"] == 1.0
    assert run.report["settings"]["parameters_left_out"] == ["temperature"]
    assert capsys.readouterr().err.count("takes no temperature; it is left out") == 1

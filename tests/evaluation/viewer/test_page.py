"""The page of `medagent view` in Chromium and Firefox."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medagent.evaluation.viewer.recorded import RecordedRun
from medagent.evaluation.viewer.server import exported, make_viewer
from tests.evaluation.viewer.support import rollout, write_evaluation, write_iteration, write_run
from tests.medagent.serving.support import served
from tests.medagent.serving.test_page import AXE, RULES

pytestmark = pytest.mark.page


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


@pytest.fixture
def page(browser: Any, run: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    with served(make_viewer([RecordedRun(run)])) as url:
        context = browser.new_context(**getattr(request, "param", {}))
        page = context.new_page()
        page.wrong = []
        page.on("console", lambda message: page.wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.goto(url)
        page.locator("article.card").first.wait_for()
        yield page
        assert not page.wrong
        assert page.evaluate("window.hacked") is None
        context.close()


def test_the_newest_iteration_opens_and_a_curve_chooses_another(page: Any) -> None:
    from playwright.sync_api import expect

    expect(page.locator("#part")).to_have_value("2")
    expect(page.locator("#curves figure")).to_have_count(2)
    expect(page.locator("#curves line.alarm")).to_have_count(2)
    page.locator("#curves svg").first.click(position={"x": 2, "y": 20})
    expect(page.locator("#part")).to_have_value("0")
    expect(page.locator("#count")).to_contain_text("6 of 6 rollouts")


def test_rollouts_are_filtered_and_sorted(page: Any) -> None:
    from playwright.sync_api import expect

    page.select_option("#part", "0")
    page.select_option("#filter", "searched_wrong")
    expect(page.locator("#count")).to_contain_text("3 of 6 rollouts")
    expect(page.locator("#count")).to_contain_text("3 wrong: mean reward 0")
    assert page.locator("#filter option").all_text_contents()[:2] == ["all (6)", "correct (3)"]
    assert page.locator("#filter option[value=equal]").count() == 0, "there is none"
    page.select_option("#filter", "stop answered")
    page.reload()
    expect(page.locator("#filter")).to_have_value("stop answered")
    page.select_option("#part", "2")
    expect(page.locator("#count")).to_contain_text("6 of 6 rollouts")
    page.get_by_label("Question has").fill("Q1")
    expect(page.locator("#count")).to_contain_text("2 of 6 rollouts")
    page.select_option("#order", "changed")
    expect(page.locator("#rollouts button")).to_have_count(2)


def test_tokens_show_the_trainers_numbers_to_pointer_and_keyboard(page: Any) -> None:
    from playwright.sync_api import expect

    tokens = page.locator(".tokens").first
    tokens.locator("span").nth(1).hover()
    expect(page.locator("#values")).to_contain_text("importance weight")
    expect(page.locator("#values")).to_contain_text("1.2")
    page.get_by_label("Colour tokens by").select_option("advantage")
    expect(page.locator("#legend")).to_contain_text("advantage")
    tokens = page.locator(".tokens").first
    tokens.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#values")).to_contain_text("token 2 of the turn")


def test_the_keyboard_walks_the_list(page: Any) -> None:
    from playwright.sync_api import expect

    page.locator("#rollouts button").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    second = page.locator("#rollouts button").nth(1)
    expect(second).to_have_attribute("aria-current", "true")
    expect(second).to_be_focused()


def test_a_group_and_an_earlier_iteration_stand_beside_a_rollout(page: Any) -> None:
    from playwright.sync_api import expect

    page.get_by_label("Beside it").select_option("group")
    expect(page.locator("article.card")).to_have_count(2)
    page.get_by_label("Beside it").select_option("before")
    expect(page.locator("article.card").nth(1)).to_contain_text("iteration 2")
    page.get_by_role("button", name="iteration 1: 1/2").click()
    expect(page.locator("#part")).to_have_value("0")


def test_marks_that_turn_the_direction_are_written_out(page: Any) -> None:
    from playwright.sync_api import expect

    expect(page.locator("article.card h3")).to_contain_text("\u27e8U+202E\u27e9")
    page.get_by_text("Prompt, as the model read it").click()
    expect(page.locator(".passage p").first).to_contain_text("Question: </script><img src=x")
    page.locator(".turn .passage summary").first.click()
    expect(page.locator(".turn .passage p").first).to_contain_text("<img src=x")


def test_the_page_follows_a_run(page: Any, run: Path) -> None:
    from playwright.sync_api import expect

    write_iteration(run, 3, [rollout("q9", 0, right=True, words=20_000)])
    expect(page.locator("#part")).to_have_value("3", timeout=20_000)
    expect(page.locator("article.card h3")).to_contain_text("q9")


@pytest.mark.parametrize("page", [{"viewport": {"width": 390, "height": 780}, "color_scheme": "dark"}], indirect=True)
def test_nothing_is_wider_than_a_phone(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_exported_file_shows_the_same(browser: Any, run: Path, tmp_path: Path) -> None:
    place = tmp_path / "run.html"
    place.write_text(exported([RecordedRun(run)]))
    page = browser.new_page()
    page.goto(place.as_uri())
    page.locator("article.card").first.wait_for()
    page.select_option("#part", "0")
    page.get_by_label("Beside it").select_option("group")
    page.locator("article.card").nth(1).wait_for()
    assert page.evaluate("window.hacked") is None
    page.close()


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not there: make test-page installs it")
@pytest.mark.parametrize(
    "page", [{"bypass_csp": True, "color_scheme": scheme} for scheme in ("light", "dark")], indirect=True
)
def test_axe_finds_nothing(page: Any) -> None:
    page.get_by_label("Beside it").select_option("group")
    page.locator("article.card").nth(1).wait_for()
    page.locator(".passage summary").first.click()
    page.locator(".tokens span").nth(1).hover()
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("tags => axe.run(document, {runOnly: tags})", RULES)
    assert found["passes"], "it ran"
    assert not [(each["id"], [node["html"] for node in each["nodes"]]) for each in found["violations"]]


def test_the_report_of_an_evaluation_shows_its_tables(browser: Any, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    page = browser.new_page()
    page.goto((write_evaluation(tmp_path / "out") / "report.html").as_uri())
    table = page.get_by_role("region", name="Result").get_by_role("table", name="Result")
    expect(table.get_by_role("columnheader")).to_have_text(["search", "closed_book"])
    accuracy = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="accuracy, strict"))
    expect(accuracy.get_by_role("cell")).to_have_text(["66.7%", "66.7%"])
    expect(page.locator("#report li").first).to_contain_text("On 6 questions of medqa, in mode search, 66.7%")
    labels = [each.get_attribute("aria-label") for each in page.locator(".shares svg").all()]
    assert labels[:2] == [
        "search: reliability, accuracy by confidence: 0 at 0.300, 1 at 0.900",
        "search: selective, accuracy by coverage: 1 at 0.667, 0.667 at 1",
    ]
    assert len(labels) == 4
    expect(page.locator("#curves")).to_be_hidden()
    expect(page.locator("#count")).to_contain_text("6 of 6 rollouts")
    page.locator("summary", has_text="Settings").click()
    expect(page.get_by_role("row", name="agent")).to_contain_text("<img src=x")
    assert page.evaluate("window.hacked") is None
    page.close()

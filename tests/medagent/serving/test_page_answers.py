"""The answer card in Chromium, and what a tab keeps: `make test-page`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.filters import Filter
from medagent.retrieval.passages import Hit, Passage
from tests.medagent.serving.page_visit import QUESTION, Visit
from tests.medagent.serving.support import soon

pytestmark = pytest.mark.page
sync_api = pytest.importorskip("playwright.sync_api", reason="make test-page installs it")
expect = sync_api.expect


def test_an_answer_without_evidence_is_replaced_by_what_the_corpus_has(visit: Visit) -> None:
    page = visit.page
    visit.ask("What is the first-line drug for goutt?")
    visit.policy.allow(2)
    expect(page.locator(".verdict")).to_have_text("The passage is about something else")
    expect(page.locator(".answer")).to_contain_text("does not mention goutt")
    expect(page.locator(".answer .text")).to_have_count(0)
    page.get_by_role("button", name="gout", exact=True).click()
    visit.policy.allow(2)
    expect(page.get_by_role("heading", name=QUESTION)).to_be_visible()
    expect(page.locator(".answer .text")).to_contain_text("colchicine")


def test_a_question_of_the_same_subject_is_offered_next(visit: Visit) -> None:
    gout = Passage.make("gout", "The first-line drug is colchicine. The classic sign is podagra.", id="g")
    visit.app.state.corpus.search = lambda queries, *, top_k: [[Hit(gout, 0.5)] for _ in queries]
    visit.answered()
    visit.page.get_by_role("button", name="What are the signs of gout?").click()
    visit.policy.allow(2)
    expect(visit.page.get_by_role("heading", name="What are the signs of gout?")).to_be_visible()
    expect(visit.page.locator(".verdict")).not_to_have_text("Stated in the corpus")


def test_options_belong_to_one_question_and_a_follow_up_to_the_one_before(visit: Visit) -> None:
    page = visit.page
    page.get_by_role("button", name=QUESTION).click()
    page.get_by_role("button", name="Ask", exact=True).click()
    visit.policy.allow(2)
    page.get_by_text("What was read of the other options").click()
    expect(page.locator(".others")).to_contain_text("(B) insulin: no passage that was read names it.")
    assert page.locator("#options").input_value() == ""
    visit.answered()
    visit.ask("And pseudogout?")
    visit.policy.allow(2)
    expect(page.get_by_text("Asked as: What is the first-line drug for pseudogout?")).to_be_visible()


def test_back_closes_a_passage_and_stays_on_the_page(visit: Visit) -> None:
    page = visit.page
    visit.answered()
    page.get_by_role("button", name=re.compile("^Passage 1")).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.url.startswith(visit.url)
    expect(page.locator(".answer .text")).to_be_visible()


def test_a_reload_asks_a_running_question_again(visit: Visit) -> None:
    visit.ask()
    soon(lambda: visit.policy.open_now == 1)
    visit.page.reload()
    soon(lambda: visit.app.state.admission.outcomes["left"] == 1)
    visit.policy.allow(2)
    expect(visit.page.locator(".answer .text")).to_contain_text("colchicine")


def test_a_session_can_be_saved(visit: Visit) -> None:
    if visit.browser == "firefox":
        pytest.skip("WebDriver BiDi tells nothing of downloads that the page makes itself")
    page = visit.page
    visit.answered()
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save as Markdown").click()
    saved = Path(saving.value.path()).read_text(encoding="utf-8")
    assert f"## {QUESTION}" in saved
    assert "colchicine" in saved
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save as JSON").click()
    assert json.loads(Path(saving.value.path()).read_text(encoding="utf-8"))[0]["answer"]["verdict"]["kind"] == "stated"


def test_a_session_can_be_searched(visit: Visit) -> None:
    page = visit.page
    visit.answered()
    for number in range(5):
        visit.ask(f"Gout {number}?")
        visit.policy.allow(2)
        expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    page.get_by_label("Find in this tab").fill("gout 3")
    expect(page.locator("#asked button")).to_have_count(1)


@pytest.mark.parametrize("visit", [{"context": {"color_scheme": "dark"}}], indirect=True)
def test_paper_is_light_and_text_has_its_own_direction(visit: Visit) -> None:
    page = visit.page
    visit.ask("\u0645\u0627 \u0647\u0648 \u0639\u0644\u0627\u062c gout\u061f " * 8)
    visit.policy.allow(2)
    expect(page.get_by_role("heading", name="Answer", exact=True)).to_be_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('#entry h2')).direction") == "rtl"
    assert page.locator("#asked button").first.bounding_box()["height"] < 100
    page.emulate_media(media="print", color_scheme="dark")
    channels = [int(found) for found in re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).color"))]
    assert sum(channels) < 200


def test_a_search_is_limited_to_a_source_and_years(visit: Visit) -> None:
    page, corpus, asked = visit.page, visit.app.state.corpus, []

    def search_where(queries: list[str], *, top_k: int, where: Filter) -> list[list[Hit]]:
        asked.append(str(where))
        return corpus.search(queries, top_k=top_k)

    corpus.search_where = search_where
    known = {"passages": 3, "names": ["WHO", "Gut"], "sources": ["WHO"], "more_sources": 1, "years": [1999, 2021]}
    about = {"name": "medagent", "max_characters": 100, "examples": [], "feedback": False}
    page.route("**/v1/agent", lambda route: route.fulfill(json={**about, "corpus": known}))
    page.reload()
    page.get_by_text("Limit the search").click()
    page.get_by_label("Source").fill("WHO")
    page.get_by_label("From year").fill("2010")
    visit.answered()
    assert asked[0] == "source=WHO year>=2010"
    expect(page.locator("article .status")).to_contain_text('Only passages with source="WHO" year>=2010 were searched.')
    assert not visit.wrong


@pytest.mark.parametrize("visit", [{"context": {"viewport": {"width": 375, "height": 640}}}], indirect=True)
def test_an_emergency_is_in_view_and_what_is_merely_near_is_folded(visit: Visit) -> None:
    page = visit.page
    near = Passage.make(
        "gout", "Colchicine is taken with meals.", source="WHO", id="g", about=Bibliography(date="2021-03")
    )
    visit.app.state.corpus.search = lambda queries, *, top_k: [[Hit(near, 0.5)] for _ in queries]
    visit.ask("I took 40 colchicine tablets, what now?")
    visit.policy.allow(2)
    expect(page.get_by_text("This may be an emergency.")).to_be_in_viewport(ratio=1)
    expect(page.locator("#question")).to_be_focused()
    quote = page.locator(".quoted button")
    expect(quote).to_be_hidden()
    page.get_by_text("The nearest sentences of the corpus").click()
    expect(quote.locator(".about")).to_have_text("WHO \u00b7 2021-03")


def test_a_cited_sentence_is_shown_once_with_what_it_is_limited_to(visit: Visit) -> None:
    page = visit.page
    chronic = Passage.make("chronic gout", "The first-line drug is allopurinol.", source="WHO", id="g")
    visit.app.state.corpus.search = lambda queries, *, top_k: [[Hit(chronic, 0.5)] for _ in queries]
    visit.policy._script = lambda read, turn: (
        "<search>gout</search>" if turn == 0 else "<answer>allopurinol [1]</answer>"
    )
    visit.answered()
    expect(page.locator(".sources .chip")).to_have_text("only for chronic gout")
    expect(page.locator(".sources .about")).to_have_text("WHO \u00b7 no date")
    expect(page.locator(".quoted")).to_have_count(0)

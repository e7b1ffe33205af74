"""The page in Chromium, as people use it: `make test-page`.

Chromium is found on the PATH or named by MEDAGENT_CHROMIUM; axe-core is where MEDAGENT_AXE says (`npm install
axe-core`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from medagent.serving.middleware import digest
from medagent.serving.settings import AdmissionLimits
from tests.medagent.serving.page_visit import QUESTION, Visit
from tests.medagent.serving.support import soon

pytestmark = pytest.mark.page
sync_api = pytest.importorskip("playwright.sync_api", reason="make test-page installs it")
expect = sync_api.expect


def test_turns_come_in_as_they_end_and_a_citation_opens_its_sentence(visit: Visit) -> None:
    page = visit.page
    expect(page.get_by_text("not medical advice")).to_be_visible()
    page.get_by_role("button", name=QUESTION).click()  # the example, with its options
    page.get_by_role("button", name="Ask", exact=True).click()
    status = page.get_by_role("status").first
    expect(status).to_have_text("Thinking.")
    steps = page.get_by_role("list", name="Steps").locator("> li")
    expect(steps).to_have_count(0)
    visit.policy.allow()
    expect(steps).to_have_count(1)
    expect(page.get_by_text("Searched: gout drug")).to_be_visible()
    expect(page.get_by_role("button", name="gout <i>guideline</i>")).to_be_visible()
    expect(page.get_by_role("heading", name="Answer", exact=True)).to_have_count(0)
    page.get_by_text("Thinking", exact=True).click()
    expect(page.get_by_text("A drug <i>question</i>.")).to_be_visible()
    visit.policy.allow()
    expect(page.locator(".answer .text")).to_have_text(re.compile(r"^colchicine \[1\]"))
    expect(page.get_by_text("Citations taken out because no such passage was shown: 1.")).to_be_visible()
    expect(page.locator(".choices .chosen")).to_have_text("(A) colchicine")
    page.get_by_role("button", name="Passage 1: gout <i>guideline</i>").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("mark")).to_have_text("The first-line drug is colchicine.")
    expect(dialog).to_contain_text("<script>window.hacked = 1</script>")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.locator(".verdict")).to_have_text("Stated in the corpus")
    page.get_by_text("How it searched: once, 2 passages read").click()
    page.get_by_role("button", name="[2] pseudogout").click()
    expect(page.get_by_role("dialog")).to_contain_text("The answer does not cite this passage.")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, a[href^=javascript]").count() == 0
    assert not visit.wrong


def test_stop_ends_the_agents_work(visit: Visit) -> None:
    visit.ask()
    soon(lambda: visit.policy.open_now == 1)
    visit.page.get_by_role("button", name="Stop").click()
    expect(visit.page.get_by_text("Stopped. The agent no longer works on it.")).to_be_visible()
    soon(lambda: visit.policy.open_now == 0)
    assert visit.app.state.admission.outcomes["left"] == 1
    visit.page.get_by_role("button", name="Ask again").click()
    visit.policy.allow(2)
    expect(visit.page.get_by_role("heading", name="Answer", exact=True)).to_be_visible()


@pytest.mark.parametrize("visit", [{"limits": AdmissionLimits(max_running=1, max_waiting=1)}], indirect=True)
def test_waiting_and_overload_are_said(visit: Visit, browser: Any) -> None:
    visit.ask()
    soon(lambda: visit.policy.open_now == 1)
    second, third = (browser.new_context().new_page() for _ in range(2))
    for page in (second, third):
        page.goto(visit.url)
        page.get_by_label("Your question").fill(QUESTION)
        page.get_by_label("Your question").press("Enter")
        if page is second:
            expect(page.get_by_text("Waiting for a free place: 0 questions are before yours.")).to_be_visible()
    alert = third.get_by_role("alert").filter(has_text="Too many questions just now")
    expect(alert).to_contain_text("Try again in")
    expect(third.get_by_role("button", name="Ask again")).to_be_disabled()
    visit.policy.allow(4)
    for page in (visit.page, second):
        expect(page.get_by_role("heading", name="Answer", exact=True)).to_be_visible()
    for page in (second, third):
        page.context.close()


@pytest.mark.parametrize("visit", [{"limits": AdmissionLimits(timeout_s=0.3)}], indirect=True)
def test_what_takes_too_long_is_said(visit: Visit) -> None:
    visit.ask()
    alert = visit.page.get_by_role("alert").filter(has_text="no answer within 0.3 s")
    expect(alert.get_by_role("heading")).to_have_text("It took too long")


def test_failures_are_said_and_can_be_tried_again(visit: Visit) -> None:
    page = visit.page
    visit.app.state.corpus.failing = True
    visit.app.state.admission._current.search._retries = 0
    visit.ask()
    visit.policy.allow()
    expect(page.get_by_role("alert").filter(has_text="the corpus cannot be searched now")).to_be_visible()
    assert "10.0.0.7" not in page.content()
    visit.app.state.corpus.failing = False
    page.route("**/v1/answers", lambda route: route.abort())
    page.get_by_role("button", name="Ask again").click()
    expect(page.get_by_role("alert").filter(has_text="The service cannot be reached.")).to_be_visible()
    page.unroute("**/v1/answers")
    page.get_by_role("button", name="Ask again").click()
    visit.policy.allow(2)
    expect(page.get_by_role("heading", name="Answer", exact=True)).to_be_visible()


def test_the_page_works_by_keyboard_alone(visit: Visit) -> None:
    page = visit.page
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the answer")).to_be_focused()
    for _ in range(2):
        page.keyboard.press("Tab")
    expect(page.get_by_label("Your question")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Write a question first.")).to_be_visible()
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    soon(lambda: visit.policy.open_now == 1)
    page.keyboard.press("Escape")
    expect(page.get_by_text("Stopped.")).to_be_visible()
    soon(lambda: visit.policy.open_now == 0)  # until then it would take a turn of those allowed below
    page.keyboard.press("Enter")
    visit.policy.allow(2)
    citation = page.get_by_role("button", name=re.compile("^Passage 1"))
    expect(citation).to_be_visible()
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    for _ in range(20):
        page.keyboard.press("Tab")
        if citation.evaluate("element => element === document.activeElement"):
            break
    expect(citation).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(citation).to_be_focused()


@pytest.mark.parametrize(
    "visit", [{"context": {"viewport": {"width": 320, "height": 640}, "has_touch": True}}], indirect=True
)
def test_the_page_fits_a_phone(visit: Visit) -> None:
    page = visit.page
    visit.ask("Pneumonoultramicroscopicsilicovolcanoconiosis" * 4)
    visit.policy.allow(2)
    expect(page.get_by_role("heading", name="Answer", exact=True)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    visit.answered()
    first = page.get_by_role("button", name=re.compile("^Passage 1"))
    if visit.browser == "firefox":
        first.click()  # what is tapped by WebDriver BiDi is not clicked
    else:
        first.tap()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    box = page.get_by_role("dialog").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 320


@pytest.mark.parametrize("visit", [{"context": {"permissions": ["clipboard-read", "clipboard-write"]}}], indirect=True)
def test_a_tab_keeps_its_answers_and_copies_them(visit: Visit) -> None:
    page = visit.page
    visit.answered()
    page.get_by_role("button", name="Copy as Markdown").click()
    expect(page.get_by_text("Copied.")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(f"## {QUESTION}\n")
    assert "- Searched: gout drug" in copied
    assert "> The first-line drug is colchicine." in copied
    assert "gout \\<i\\>guideline" in copied, "nothing of it is markup"
    assert "not medical advice" in copied
    page.get_by_label("Your question").fill("Another?")
    page.get_by_label("Your question").press("Enter")
    visit.policy.allow(2)
    history = page.get_by_role("navigation", name="Questions of this tab")
    expect(history.get_by_role("button", name="Another?")).to_have_attribute("aria-current", "true")
    expect(page.get_by_role("heading", name="Answer", exact=True)).to_be_visible()
    page.reload()
    history.get_by_role("button", name=QUESTION).click()
    expect(page.get_by_role("region", name="Answer")).to_be_focused()
    expect(page.get_by_role("heading", name=QUESTION)).to_be_visible()
    expect(page.locator(".answer .text")).to_contain_text("colchicine")
    history.get_by_role("button", name="Forget all").click()
    page.reload()
    expect(page.get_by_role("heading", name="Ask, watch it search, check what it says")).to_be_visible()


@pytest.mark.parametrize("visit", [{"tokens": (digest("sesame"),)}], indirect=True)
def test_a_token_is_asked_for(visit: Visit) -> None:
    page = visit.page
    visit.ask()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Token").fill("\u201csesame\u201d")
    dialog.get_by_role("button", name="Use it").click()
    expect(page.get_by_text("This cannot be a token")).to_be_visible()
    page.get_by_role("button", name="Ask again").click()
    dialog.get_by_label("Token").fill(" sesame ")
    dialog.get_by_role("button", name="Use it").click()
    visit.policy.allow(2)
    expect(page.get_by_role("heading", name="Answer", exact=True)).to_be_visible()


AXE = Path(os.environ.get("MEDAGENT_AXE", ".axe/node_modules/axe-core/axe.min.js"))
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not there: make test-page installs it")
@pytest.mark.parametrize(
    "visit", [{"context": {"bypass_csp": True, "color_scheme": scheme}} for scheme in ("light", "dark")], indirect=True
)
def test_axe_finds_nothing(visit: Visit) -> None:
    page = visit.page

    def check(state: str) -> None:
        page.evaluate(AXE.read_text(encoding="utf-8"))
        found = page.evaluate("tags => axe.run(document, {runOnly: tags})", RULES)
        assert found["passes"], "it ran"
        told = [(each["id"], each["impact"], [node["html"] for node in each["nodes"]]) for each in found["violations"]]
        assert not told, f"{state}: {told}"

    check("empty")
    visit.ask()
    check("working")
    visit.policy.allow(2)
    expect(page.get_by_role("heading", name="Answer", exact=True)).to_be_visible()
    page.get_by_text("How it searched").click()
    page.get_by_text("Thinking", exact=True).click()
    check("answered")
    page.get_by_role("button", name=re.compile("^Passage 1")).click()
    check("passage")
    page.keyboard.press("Escape")
    page.route("**/v1/answers", lambda route: route.abort())
    page.get_by_role("button", name="Ask again").click()
    expect(page.get_by_role("alert").filter(has_text="cannot be reached")).to_be_visible()
    check("failed")
    page.unroute("**/v1/answers")
    visit.ask("I have crushing chest pain. Which drug?")
    visit.policy.allow(2)
    expect(page.get_by_text("This may be an emergency.")).to_be_visible()
    check("evidence lacking, in an emergency")


def test_an_answer_that_the_page_cannot_read_is_a_failure(visit: Visit) -> None:
    page = visit.page
    broken = 'event: turn\ndata: {"thought": NaN}\n\n'
    page.route("**/v1/answers", lambda route: route.fulfill(body=broken, content_type="text/event-stream"))
    visit.ask()
    expect(page.get_by_role("alert").filter(has_text="This page failed")).to_be_visible()
    expect(page.get_by_role("button", name="Ask again")).to_be_enabled()


def test_the_page_works_without_browser_storage(visit: Visit, browser: Any) -> None:
    page = browser.new_page()
    page.add_init_script(
        "for (const name of ['localStorage', 'sessionStorage']) Object.defineProperty(window, name, { get() { throw "
        "new Error('kept out'); } })"
    )
    page.goto(visit.url)
    page.get_by_label("Your question").fill(QUESTION)
    page.get_by_label("Your question").press("Enter")
    visit.policy.allow(2)
    expect(page.get_by_role("heading", name="Answer", exact=True)).to_be_visible()
    page.close()

"""A service and a page of it in Chromium and in Firefox."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from medagent.agent import Agent
from medagent.evidence.check import EvidenceCheck
from medagent.evidence.words import Names
from medagent.retrieval.passages import Hit, Passage
from medagent.serving.app import make_app
from medagent.serving.page import Example
from tests.medagent.serving.support import Corpus, Stepwise, served

HOSTILE = Passage.make(
    "gout <i>guideline</i>",
    "\U0001f9b6 Gout hurts. The first-line drug is colchicine. It is old: <script>window.hacked = 1</script><img "
    "src=x onerror=hacked=1>",
    source="javascript:hacked=1",
    id="p1",
)
OTHER = Passage.make("pseudogout", "Crystals of calcium pyrophosphate. Not gout.", source="rheumatic teaching", id="p2")
BROWSERS = {
    "chromium": ("MEDAGENT_CHROMIUM", "chromium", "chromium-browser"),
    "firefox": ("MEDAGENT_FIREFOX", "firefox-esr", "firefox"),
}
QUESTION = "What is the first-line drug for gout?"


class Hostile(Corpus):
    """A document that tries to be more than text, and a harmless one."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        super().search(queries, top_k=top_k)
        return [[Hit(HOSTILE, 0.5), Hit(OTHER, 0.25)] for _ in queries]


def speaks(read: str, turn: int) -> str:
    if turn == 0:
        return "<think>A drug <i>question</i>.</think><search>gout drug</search>"
    return "<answer> colchicine [1] [7] (A)</answer>"


@pytest.fixture(scope="session", params=["chromium", "firefox"])
def browser(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Each browser of the machine. Firefox is the usual one, which Playwright drives over WebDriver BiDi."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="make test-page installs it")
    sync_api.expect.set_options(timeout=20_000)  # of machines that do other things too
    variable, *names = BROWSERS[request.param]
    path = os.environ.get(variable) or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(f"there is no {request.param} on the PATH")
    with sync_api.sync_playwright() as playwright:
        if request.param == "firefox":
            running = playwright.firefox.launch(channel="moz-firefox", executable_path=path)
        else:
            running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


class Visit:
    """A service, and a page of it."""

    def __init__(self, policy: Stepwise, app: Any, url: str, page: Any, browser: str) -> None:
        self.policy, self.app, self.url, self.page, self.browser = policy, app, url, page, browser
        self.wrong: list[str] = []
        page.on("console", lambda message: self.wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))

    def ask(self, question: str = QUESTION) -> None:
        """Type a question and send it."""
        self.page.get_by_label("Your question").fill(question)
        self.page.get_by_role("button", name="Ask", exact=True).click()

    def answered(self) -> None:
        """Ask, and let it answer."""
        self.ask()
        self.policy.allow(2)
        self.page.get_by_role("heading", name="Answer", exact=True).wait_for()


@pytest.fixture
def visit(browser: Any, tokenizer: Any, request: pytest.FixtureRequest) -> Iterator[Visit]:
    settings = dict(getattr(request, "param", {}))
    policy, corpus = Stepwise(tokenizer, speaks), Hostile()
    options = settings.pop("context", {})
    check = EvidenceCheck(Names([HOSTILE.title, "gout", "pseudogout"]))
    app = make_app(
        Agent(policy, corpus),
        check=check,
        examples=[Example(question=QUESTION, options=["colchicine", "insulin"])],
        **settings,
    )
    app.state.corpus = corpus
    with served(app) as url:
        context = browser.new_context(**options)
        page = context.new_page()
        visit = Visit(policy, app, url, page, browser.browser_type.name)
        page.goto(url)
        yield visit
        context.close()

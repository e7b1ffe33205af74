r"""Open WebUI against a running service, in Chromium: list, stream, title, follow-up, citation.

    python3 -m venv webui && webui/bin/pip install open-webui       # gigabytes, with torch
    medagent serve --agent runs/demo/agent &
    WEBUI_AUTH=False OFFLINE_MODE=True ENABLE_OLLAMA_API=False DATA_DIR=webui/data \\
      OPENAI_API_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=none \\
      RAG_EMBEDDING_ENGINE=openai webui/bin/open-webui serve --host 127.0.0.1 --port 8090 &
    .venv/bin/python -m benchmarks.clients.open_webui http://127.0.0.1:8090

`make test-page` installs Playwright, and MEDAGENT_CHROMIUM names the browser. Prints what was found.
"""

from __future__ import annotations

import os
import re
import shutil
import sys

from playwright.sync_api import Page, expect, sync_playwright

QUESTION, FOLLOW_UP = "What is the first-line drug for trachoma?", "What is its classic sign?"
PATIENCE_MS = 60_000


def ask(page: Page, text: str) -> None:
    """Type a message and send it."""
    box = page.locator("#chat-input")
    box.click()
    box.press_sequentially(text)
    page.keyboard.press("Enter")


def main(url: str) -> None:
    """Hold a conversation of two questions, and print a line for each thing that a person expects."""
    path = os.environ.get("MEDAGENT_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto(url)
        expect(page.get_by_text("medagent").first).to_be_visible(timeout=PATIENCE_MS)
        print("the model is listed")
        news = page.get_by_role("button", name=re.compile("Okay, Let's Go", re.IGNORECASE))
        page.wait_for_timeout(3_000)
        if news.is_visible():  # once for each version
            news.click()
        ask(page, QUESTION)
        replies = page.locator("#response-content-container")
        expect(replies.first).to_contain_text(re.compile(r"azithromycin\s*(\[1\]|1)"), timeout=PATIENCE_MS)
        print(f"an answer with its citation: {replies.first.inner_text()[:120]!r}")
        thought = page.get_by_text(re.compile(r"^(Thought|Thinking|Reason)", re.IGNORECASE)).first
        expect(thought).to_be_visible(timeout=PATIENCE_MS)
        print("its searches are folded as thoughts")
        expect(page).to_have_title(re.compile("first-line drug"), timeout=PATIENCE_MS)
        print("the conversation has a title from its question")
        ask(page, FOLLOW_UP)
        expect(replies.nth(1)).to_contain_text("Asked as", timeout=PATIENCE_MS)
        print(f"a follow-up: {replies.nth(1).inner_text()[:160]!r}")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])

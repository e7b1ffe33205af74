"""Pictures of the page in its states, beside this file: `make test-page` installs what it needs.

    medagent serve --agent runs/demo/agent &
    .venv/bin/python docs/images/screenshots.py http://127.0.0.1:8080

MEDAGENT_CHROMIUM names the browser where it is not `chromium`.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parent
WIDE, PHONE = {"width": 1100, "height": 720}, {"width": 390, "height": 780}
ANSWERED = "What is the first-line drug for trachoma?"
LACKING = "What is the first-line drug for tracoma?"
URGENT = "I have crushing chest pain. What is the first-line drug for stable angina?"
# Name, question, and settings of the browser.
STATES: list[tuple[str, str, dict[str, Any]]] = [
    ("page-light", ANSWERED, {"viewport": WIDE}),
    ("page-lacking", LACKING, {"viewport": WIDE}),
    ("page-emergency-phone", URGENT, {"viewport": PHONE}),
]


def main(url: str) -> None:
    """Take every picture of the service at an address."""
    path = os.environ.get("MEDAGENT_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, question, settings in STATES:
            context = browser.new_context(**settings)
            page = context.new_page()
            page.goto(url)
            page.locator("#coverage").filter(has_text="passages").wait_for()
            page.get_by_label("Your question").fill(question)
            page.get_by_role("button", name="Ask", exact=True).click()
            page.get_by_role("heading", name="Answer", exact=True).wait_for()
            page.screenshot(path=FOLDER / f"{name}.png", full_page=True)
            context.close()
        browser.close()
    for path in FOLDER.glob("*.png"):  # a page has few colours
        picture = Image.open(path).convert("RGB").quantize(32, dither=Image.Dither.NONE)
        picture.save(path, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1])

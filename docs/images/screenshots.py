"""Takes the picture of docs/serving.md: `python docs/images/screenshots.py http://127.0.0.1:8080`.

The argument is the address of a running service. Chromium is found on the PATH, and Playwright comes with
`pip install -e '.[page]'`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import expect, sync_playwright

FOLDER = Path(__file__).parent


def answered(page: Any, url: str) -> None:
    """Ask the first example, and wait for its answer."""
    page.goto(url)
    page.locator("#examples button").last.click()
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.get_by_role("heading", name="Answer", exact=True)).to_be_visible(timeout=60_000)


def main(url: str) -> None:
    """Write the picture beside this file."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(color_scheme="light", viewport={"width": 1180, "height": 760})
        answered(page, url)
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=FOLDER / "page-light.png", full_page=True)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])

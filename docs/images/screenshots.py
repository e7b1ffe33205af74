"""Takes the pictures of docs/serving.md.

A running service (its address is the argument) photographed by Chromium, `python docs/images/screenshots.py
http://127.0.0.1:8080`.

Playwright comes with `pip install -e '.[page]'`; Chromium is found on the PATH.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import expect, sync_playwright

FOLDER = Path(__file__).parent
PICTURES = (("page-light", "light", 1180, 760), ("page-dark", "dark", 1180, 760), ("page-phone", "light", 390, 780))


def answered(page: Any, url: str) -> None:
    """Ask the first example, and wait for its answer."""
    page.goto(url)
    page.locator("#examples button").last.click()
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.get_by_role("heading", name="Answer", exact=True)).to_be_visible(timeout=60_000)


def main(url: str) -> None:
    """Write the pictures beside this file."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, scheme, width, height in PICTURES:
            page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": height})
            answered(page, url)
            page.evaluate("scrollTo(0, 0)")
            if name == "page-dark":
                page.get_by_role("button", name=re.compile("^Passage")).first.click()
            page.screenshot(path=FOLDER / f"{name}.png", full_page=name != "page-dark")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])

"""Pictures of `medagent view`, beside this file: `make test-page` installs what it needs.

    medagent view runs/demo --port 8010 &
    medagent view runs/too-fast --port 8011 &      # model.policy_lr ten times as high
    medagent view runs/groups --port 8012 &        # data.num_samples 4
    medagent view runs/evaluation/default --port 8013 &
    .venv/bin/python docs/images/view_screenshots.py

MEDAGENT_CHROMIUM names the browser where it is not `chromium`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parent
WIDE, PHONE = {"width": 1200, "height": 800}, {"width": 390, "height": 780}


def nothing(page: Any) -> None:
    """Show the page as it opens."""


def clipped(page: Any) -> None:
    """Open the rollout with the most clipped tokens."""
    page.get_by_label("Keep").select_option("searched")
    page.get_by_label("Sort by").select_option("clipped")
    page.locator("#rollouts button").first.click()
    page.evaluate("document.querySelector('.panes').scrollIntoView()")


def rollout(page: Any) -> None:
    """Show a rollout of the list, with its first passage open."""
    page.locator("#rollouts button").first.click()
    page.locator(".passage summary").first.click()
    page.evaluate("document.querySelector('.panes').scrollIntoView()")


def token(page: Any) -> None:
    """Show the numbers of a token of the rollout with the most clipped tokens."""
    clipped(page)
    page.locator(".tokens [data-at]").nth(4).hover()


def group(page: Any) -> None:
    """Show a group of different rewards side by side, coloured by advantage."""
    page.get_by_label("Keep").select_option("differs")
    page.locator("#rollouts button").first.click()
    page.get_by_label("Beside it").select_option("group")
    page.get_by_label("Colour tokens by").select_option("advantage")
    page.locator("article.card").nth(3).wait_for()
    page.evaluate("document.querySelector('.panes').scrollIntoView()")


# Name, port, the part of the address that says what is shown, what is done, and settings of the browser.
STATES: list[tuple[str, int, str, Callable[[Any], None], dict[str, Any]]] = [
    ("view-curves", 8011, "part=3", nothing, {"viewport": WIDE}),
    ("view-rollout", 8010, "part=1", clipped, {"viewport": WIDE}),
    ("view-token", 8010, "part=1", token, {"viewport": WIDE}),
    ("view-group", 8012, "part=2", group, {"viewport": WIDE}),
    ("view-phone", 8010, "part=5", nothing, {"viewport": PHONE, "color_scheme": "dark"}),
    ("view-evaluation", 8013, "part=search&filter=wrong", rollout, {"viewport": WIDE}),
]


def main() -> None:
    """Take every picture."""
    path = os.environ.get("MEDAGENT_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, port, shown, act, settings in STATES:
            page = browser.new_context(**settings).new_page()
            page.goto(f"http://127.0.0.1:{port}/#{shown}")
            page.locator("article.card").first.wait_for()
            act(page)
            page.wait_for_timeout(500)
            place = FOLDER / f"{name}.png"
            page.screenshot(path=place)
            Image.open(place).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(place, optimize=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()

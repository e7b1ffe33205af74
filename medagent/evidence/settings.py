"""Names of settings, apart from what they set: `--help` need not import that."""

from __future__ import annotations

from typing import Literal

Shown = Literal["stated", "partly", "all"]

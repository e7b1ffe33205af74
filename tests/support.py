"""Paths that many tests use."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs"
SHARED_DATA = (
    ROOT.parent / "shared" / "data"
)  # published benchmark files; tests that read them are skipped without them

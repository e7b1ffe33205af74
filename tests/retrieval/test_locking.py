"""An index is locked in its own folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from medagent.retrieval.errors import IndexUnwritableError
from medagent.retrieval.locking import ReadLock, writing


def test_a_folder_that_cannot_be_locked_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()  # whoever the tests run as, a folder is no lock file
    with pytest.raises(IndexUnwritableError, match="right to write"), writing(tmp_path):
        pass
    (tmp_path / "readers").touch()
    with pytest.raises(IndexUnwritableError, match="right to write"):
        ReadLock(tmp_path)

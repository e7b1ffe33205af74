"""Shared by the service's tests."""

from __future__ import annotations

from typing import Any

import pytest

from medagent.policies.scripted import ScriptedPolicy
from tests.medagent.serving.page_visit import visit
from tests.medagent.serving.support import says

__all__ = ["visit"]


@pytest.fixture
def policy(tokenizer: Any) -> ScriptedPolicy:
    return ScriptedPolicy(tokenizer, says)

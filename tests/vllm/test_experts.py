"""Real vLLM takes no mixture of experts with an adapter beside it, but on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from medagent.errors import ConfigError
from medagent.policies.vllm.server import HAS_TRITON
from medagent.training.engines import ModuleWeights, VllmEngine
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from tests.mixtures import make_mixture
from tests.training.support import setup_of

pytestmark = pytest.mark.vllm


@pytest.mark.skipif(HAS_TRITON, reason="of the CPU build")
def test_experts_without_triton_are_refused_before_vllm_starts(tmp_path: Path) -> None:
    make_mixture(tmp_path / "base", "mixtral", experts=8, layers=1)
    module = AgentModule(str(tmp_path / "base"), policy_lora=LoraSettings(4, 8), critic_lora=None)
    with pytest.raises(ConfigError, match="beside a mixture of experts"):
        VllmEngine().start(ModuleWeights(module), setup_of(module, tmp_path))

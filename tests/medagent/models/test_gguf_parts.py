"""A GGUF file from which transformers would make another model without a word is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from medagent.errors import ConfigError
from medagent.models.base_models import model_path
from tests.medagent.models.gguf_files import write_gguf

F16 = GGMLQuantizationType.F16


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEDAGENT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "base-models"


def test_a_part_of_a_model_is_not_filled_up_with_random_weights(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "tiny-00001-of-00002.gguf"
    write_gguf(file, F16, without=("blk.1.attn_q.weight", "blk.1.ffn_up.weight"))
    with pytest.raises(ConfigError, match=r"lacks 2 of the model's tensors .*layers\.1\.mlp\.up_proj.*joined into one"):
        model_path(str(file))
    assert [path.suffix for path in cache.glob("tiny-*")] == [".lock"]


def test_scaled_positions_are_not_left_out(tmp_path: Path) -> None:
    write_gguf(tmp_path / "scaled.gguf", F16, position_factors=8.0)
    with pytest.raises(ConfigError, match=r"scales its positions \(rope_freqs\.weight"):
        model_path(str(tmp_path / "scaled.gguf"))
    write_gguf(tmp_path / "plain.gguf", F16, position_factors=1.0)
    assert Path(model_path(str(tmp_path / "plain.gguf"))).is_dir()


def test_weights_that_transformers_leaves_out_are_not_lost_in_silence(tmp_path: Path) -> None:
    write_gguf(tmp_path / "biased.gguf", F16, biases=True)
    with pytest.raises(ConfigError, match=r"holds 82,304 weights, of which transformers keeps 82,240: it would be"):
        model_path(str(tmp_path / "biased.gguf"))

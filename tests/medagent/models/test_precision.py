"""Which precision `auto` settles on: bfloat16 for bases of size where the hardware computes in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, LlamaConfig

from medagent.agent_folder import open_agent
from medagent.models import precision
from medagent.models.precision import AUTO, Precision, num_parameters, resolve_precision

WITH, WITHOUT = "flags\t\t: fpu avx512f avx512_bf16 amx_bf16", "flags : fpu avx512f avx512_bf16x"


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Folders with the configurations of bases of about so many million parameters, and no weights."""
    made = {}
    for millions, vocabulary in ((49, 68_000), (51, 71_000)):
        folder = tmp_path_factory.mktemp(str(millions))
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=700,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=True,
        ).save_pretrained(folder)
        made[millions] = str(folder)
    return made


@pytest.fixture
def flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def write(line: str) -> None:
        (tmp_path / "cpuinfo").write_text(f"processor : 0\n{line}\nbugs : avx512_bf16\n")

    monkeypatch.setattr(precision, "CPUINFO", tmp_path / "cpuinfo")
    return write


def test_parameters_are_counted_without_weights(sizes, tmp_path: Path) -> None:
    assert 48e6 < num_parameters(sizes[49]) < 50e6 < num_parameters(sizes[51]) < 53e6
    GPT2Config(vocab_size=100, n_embd=8, n_layer=1, n_head=2, n_positions=16).save_pretrained(tmp_path)
    assert num_parameters(str(tmp_path)) == 100 * 8 + 16 * 8 + (12 * 8 * 8 + 13 * 8) + 2 * 8


def test_a_processor_with_bfloat16_gets_it_for_bases_of_size(sizes, flags) -> None:
    flags(WITH)
    found = resolve_precision(AUTO, sizes[51], device="cpu")
    assert found.dtype == "bfloat16"
    assert found.reason.startswith("this processor has bfloat16 (avx512_bf16, amx_bf16), and the base has 5")
    small = resolve_precision(AUTO, sizes[49], device="cpu")
    assert small.dtype == "float32"
    assert "M parameters is small" in small.reason


def test_a_processor_without_bfloat16_gets_float32(sizes, flags) -> None:
    for line in (WITHOUT, "Features : fp asimd bf16"):
        flags(line)
        assert resolve_precision(AUTO, sizes[51], device="cpu") == Precision(
            "float32", "this processor has no bfloat16"
        )
    precision.CPUINFO.unlink()
    assert resolve_precision(AUTO, sizes[51], device="cpu").dtype == "float32", "no Linux"


@pytest.mark.parametrize(
    ("there", "able", "dtype"), [(True, True, "bfloat16"), (True, False, "float32"), (False, False, "bfloat16")]
)
def test_a_gpu_gets_what_it_has(sizes, monkeypatch, there: bool, able: bool, dtype: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: able)
    assert resolve_precision(AUTO, sizes[51], device="cuda").dtype == dtype
    assert resolve_precision(AUTO, sizes[49], device="cuda").dtype == "float32"


def test_what_is_set_stays_and_the_starter_is_float32(sizes, flags) -> None:
    flags(WITH)
    assert resolve_precision("float32", sizes[51], device="cpu").dtype == "float32"
    assert resolve_precision("bfloat16", "starter", device="cpu").dtype == "bfloat16"
    assert resolve_precision(AUTO, "starter", device="cpu").dtype == "float32"
    assert resolve_precision(AUTO, "/no/such", device="cpu") == Precision(
        "float32", "the size of the base is not known"
    )


def test_an_untrained_model_is_asked_in_it(monkeypatch, flags, index_folder: Path, capsys) -> None:
    flags(WITH)
    monkeypatch.setattr(precision, "SMALLEST", 1000)
    folder = precision.model_path("starter")
    agent = open_agent(f"hf:{folder}", index=str(index_folder))
    assert agent.policy.model.dtype is torch.bfloat16
    said = capsys.readouterr()
    assert f"{folder}: in bfloat16, as this processor has bfloat16 (avx512_bf16" in said.err
    assert not said.out

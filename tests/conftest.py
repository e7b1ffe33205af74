"""Shared fixtures: the packaged starter policy, and a small index over the starter corpus."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from medagent.models.base_models import STARTER, model_path
from medagent.models.causal_lm import load_causal_lm
from medagent.retrieval.search import HybridRetriever
from medagent.run_folder import ENDING
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from tests.medagent.models.gguf_files import write_gguf
from tests.medagent.serving.page_visit import browser

__all__ = ["browser"]  # here, as Playwright runs once in a session

# make test runs as many workers as cores: more threads than one, here or in a child, would only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def starter() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The packaged base policy; tests must not change it."""
    return load_causal_lm(STARTER)


@pytest.fixture(scope="session")
def tokenizer(starter) -> PreTrainedTokenizerBase:
    return starter[1]


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random Llama with SmolLM2's tokenizer and chat template, as a folder."""
    folder = tmp_path_factory.mktemp("base")
    write_gguf(folder / "tiny.gguf", GGMLQuantizationType.F16)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MEDAGENT_CACHE", str(folder / "cache"))
        return model_path(str(folder / "tiny.gguf"))


@pytest.fixture(scope="session")
def world() -> World:
    return World.load()


@pytest.fixture(scope="session")
def index_folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    build_starter_index(folder, world.passages())
    return folder


@pytest.fixture(scope="session")
def retriever(index_folder: Path) -> HybridRetriever:
    return HybridRetriever(str(index_folder))


@pytest.fixture(scope="session")
def train_index(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What training searches: the corpus without the test conditions."""
    folder = tmp_path_factory.mktemp("train-index")
    build_starter_index(folder, world.passages(("train", "validation")))
    return folder


@pytest.fixture
def heard() -> Iterator[None]:
    """Signals are heard, as in a terminal: nohup and shells in the background have some ignored."""
    before = {each: signal.getsignal(each) for each in ENDING}
    for each in ENDING:
        signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)

"""Makes the starter base policy from scratch: a tokenizer and a small Qwen2 model taught on made-up names only.

The skill "find the option that equals the retrieved value" appears late and suddenly, and the loss does not announce
it. So the learning rate stays constant until the held-out lookup accuracy passes a gate. It decays much later.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from medagent.agent_folder import save_agent
from medagent.agent_spec import AgentSpec
from medagent.errors import ConfigError, MedagentError
from medagent.models.base_models import STARTER, model_path
from medagent.models.causal_lm import load_causal_lm
from medagent.starter.templates import INHERITANCE, RELATIONS
from medagent.training.execution import keep_freed_memory
from medagent.types import LETTERS, Limits
from studies.starter_base.batches import LessonBatch, LessonStream, lookup_accuracy, loss_and_lookup, make_exam
from studies.starter_base.lessons import (
    NOT_FOUND,
    STARTER_LIMITS,
    STARTER_PROTOCOL,
    STARTER_TOP_K,
    Habits,
    Lesson,
    LessonMaker,
)
from studies.starter_base.made_up_names import NameMaker

PAD, END = "<pad>", "<end>"
# Steps from one exam to the next; one costs as much as three steps, so they are frequent only where they decide when
# to stop.
EXAM_EVERY = 250
GATED_EXAM_EVERY = 50
PROGRESS_FILE = "warm_start.json"
MOST_THINKING = 128  # tokens per turn
THINKING_SLACK = 16  # tokens: a turn stops thinking at the end of a sentence


@dataclass(frozen=True)
class WarmStartConfig:
    """Settings of the warm start; the defaults make the shipped checkpoint, in about half an hour on 2 cores."""

    seed: int = 0
    vocab_size: int = 2048
    hidden_size: int = 128
    num_layers: int = 3
    num_heads: int = 4
    intermediate_size: int = 256
    batch_size: int = 32
    warmup_steps: int = 100
    habits: Habits = field(default_factory=Habits)

    def __post_init__(self) -> None:
        """Check that heads of an even width fit."""
        if self.hidden_size < 1 or self.hidden_size % (2 * self.num_heads):
            raise ConfigError(
                f"starter base: found a hidden size of {self.hidden_size}, wanted a multiple of {2 * self.num_heads} "
                f"({self.num_heads} heads of an even width)."
            )


def make_tokenizer(
    *, seed: int, vocab_size: int, forbidden: frozenset[str], texts: Sequence[str] = ()
) -> PreTrainedTokenizerBase:
    """A byte-level BPE tokenizer learnt from made-up names, the phrasings, and `texts` in the manner of the corpus.

    Without such texts real names fall into many more pieces than made-up ones. The protocol's tags are special tokens.
    """
    names = NameMaker(random.Random(seed), forbidden=forbidden)
    kinds = ("condition", "drug", "cause", "test", "sign", "mechanism")
    lines = [" " + names.draw(kind) for _ in range(2_000) for kind in kinds] + [f" {text}" for text in texts] * 20
    for relation in RELATIONS.values():
        phrases = [
            *relation.passages,
            *relation.questions,
            *relation.descriptions,
            " " + relation.key,
            *INHERITANCE,
            f" {NOT_FOUND}",
        ]
        lines += [f" {phrase.format(v='', c='')}" for phrase in phrases] * 300
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    special = [PAD, END, *STARTER_PROTOCOL.tag_tokens]
    bpe.train_from_iterator(
        lines + ["Question:", "Options:", " no passage found\n"] * 300,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    # One token per option mark and per citation: the last token of a name then tells what follows it, which a
    # small model learns to look up in minutes. With " (", "A", ")" apart, the same token follows every option.
    marks = [f" ({letter})" for letter in LETTERS] + [f" [{number}]" for number in range(1, 20)]
    bpe.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token=PAD, eos_token=END, additional_special_tokens=list(STARTER_PROTOCOL.tag_tokens)
    )


def make_model(config: WarmStartConfig, tokenizer: PreTrainedTokenizerBase) -> Qwen2ForCausalLM:
    """A randomly initialised Qwen2 language model in float32 with tied embeddings."""
    torch.manual_seed(config.seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_heads,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum.

    It ends after `steps` steps. With a `gate` it ends at the first exam that reaches the gate, within these steps.
    `decay` lets the rate fall linearly to zero over the steps.
    """

    name: str
    draw: Callable[[], Lesson]
    exam: list[LessonBatch]
    learning_rate: float
    steps: int
    gate: float | None = None
    decay: bool = False


def curriculum(tokenizer: PreTrainedTokenizerBase, config: WarmStartConfig, forbidden: frozenset[str]) -> list[Stage]:
    """The stages in order: copying easy names, searching and reading, then the bad habits.

    Reading is taught at a high rate, then at a falling one. The falling rate makes the copying of rare names sure.
    """
    pad_id = int(tokenizer.pad_token_id)

    def lessons(seed: int, habits: Habits, *, easy: bool = False) -> LessonMaker:
        return LessonMaker(tokenizer, seed=config.seed + seed, habits=habits, forbidden=forbidden, all_pieces=not easy)

    exam = partial(make_exam, pad_id=pad_id)
    # Useless searches and open questions are rare while the model learns to read: with more of them two-hop reading
    # suffers.
    diligent = Habits(first_search=1.0, second_search=1.0, useless_results=0.12, open_question=0.1)
    beginner = lessons(999_979, diligent, easy=True)
    reading = exam(lessons(999_983, replace(diligent, useless_results=0.0, open_question=0.0)).draw)
    return [
        Stage("pairs", lessons(4, diligent, easy=True).pairs, exam(beginner.pairs), 2e-3, 5000, gate=0.9),
        Stage("drills", lessons(1, diligent, easy=True).drill, exam(beginner.drill), 2e-3, 5000, gate=0.9),
        Stage("lessons", lessons(2, diligent).draw, reading, 2e-3, 1500),
        Stage("polish", lessons(3, replace(diligent, two_hop=0.65)).draw, reading, 2e-3, 2400, decay=True),
        Stage("habits", lessons(4, config.habits).draw, reading, 1e-3, 600, decay=True),
    ]


def warm_start(
    out: Path,
    config: WarmStartConfig,
    *,
    forbidden: frozenset[str],
    texts: Sequence[str] = (),
    report: Callable[[str], None] = print,
) -> dict[str, float]:
    """Train the base policy and save tokenizer, model (safetensors) and `warm_start.json` to `out`.

    `forbidden` are the names of the knowledge base, which no lesson may use. `texts` go into the tokenizer alone. Every
    stage that ends is saved. Called again with the same settings, an interrupted warm start goes on with the next
    stage.

    Returns:
        The measured figures.

    Raises:
        MedagentError: a skill does not form.
        ConfigError: `out` holds something else.
    """
    keep_freed_memory()
    tokenizer = make_tokenizer(seed=config.seed, vocab_size=config.vocab_size, forbidden=forbidden, texts=texts)
    stages = curriculum(tokenizer, config, forbidden)
    done, figures = _read_progress(out, config)
    if done == len(stages):
        raise ConfigError(f"{out}: holds a finished base of these settings. Give another folder, or remove it.")
    model = Qwen2ForCausalLM.from_pretrained(out) if done else make_model(config, tokenizer)
    model.train()
    for number, stage in enumerate(stages[done:], start=done):
        minutes = figures.get("minutes", 0.0)
        figures = run_stage(model, stage, config, int(tokenizer.pad_token_id), first=number == 0, report=report)
        figures["minutes"] = round(figures["minutes"] + minutes, 2)
        progress = {"config": asdict(config), "stages_done": number + 1, "figures": figures}
        _save(out, model, tokenizer, STARTER_LIMITS, progress)
    return figures


def _save(
    out: Path, model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, limits: Limits, progress: dict[str, Any]
) -> None:
    """Write the weights, the format that they were taught, and how far the warm start has come."""
    model.save_pretrained(out)
    save_agent(out, AgentSpec(".", "float32", STARTER_PROTOCOL, limits, STARTER_TOP_K, retriever=None), tokenizer)
    (out / PROGRESS_FILE).write_text(json.dumps(progress, indent=2) + "\n", encoding="utf-8")


def _read_progress(out: Path, config: WarmStartConfig) -> tuple[int, dict[str, float]]:
    """How many stages are done in `out`, and the last figures."""
    if not out.exists() or not any(out.iterdir()):
        return 0, {}
    file = out / PROGRESS_FILE
    progress = json.loads(file.read_text()) if file.exists() else {}
    if progress.get("config") != asdict(config):
        raise ConfigError(f"{out}: holds files of something else, or of other settings. Give a new folder with --out.")
    return progress["stages_done"], progress["figures"]


def run_stage(
    model: Qwen2ForCausalLM,
    stage: Stage,
    config: WarmStartConfig,
    pad_id: int,
    *,
    first: bool,
    report: Callable[[str], None],
) -> dict[str, float]:
    """Teach one stage; `first` lets the rate rise slowly.

    Raises:
        MedagentError: the gate was not reached.
    """
    data = LessonStream(stage.draw, batch_size=config.batch_size, seed=config.seed, pad_id=pad_id)
    loader: DataLoader[LessonBatch] = DataLoader(data, batch_size=None, num_workers=1)
    warmup = config.warmup_steps if first else 1
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    every = EXAM_EVERY if stage.gate is None else GATED_EXAM_EVERY
    started = time.monotonic()
    for step, batch in enumerate(loader, start=1):
        scale = max(0.0, 1 - step / stage.steps) if stage.decay else min(1.0, step / warmup)
        for group in optimizer.param_groups:
            group["lr"] = stage.learning_rate * scale
        loss, _, _ = loss_and_lookup(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % every and step < stage.steps:
            continue
        minutes = (time.monotonic() - started) / 60
        accuracy = lookup_accuracy(model, stage.exam)
        report(
            f"{stage.name:8s} step {step:5d} of {stage.steps}  loss {loss.item():.3f}  lookup {accuracy:6.1%}"
            f"  {minutes:5.1f} min"
        )
        passed = stage.gate is not None and accuracy >= stage.gate
        if passed or step >= stage.steps:
            break
    if stage.gate is not None and not passed:
        raise MedagentError(
            f"starter base, stage {stage.name}: lookup accuracy {accuracy:.1%} after {step} steps, wanted "
            f"{stage.gate:.0%}. The skill forms suddenly and not with every seed: try another --seed."
        )
    return {"minutes": round(minutes, 2), "lookup_accuracy": accuracy, "loss": loss.item()}


def lengthen(
    out: Path,
    *,
    thinking: int,
    forbidden: frozenset[str],
    steps: int = 800,
    seed: int = 0,
    report: Callable[[str], None] = print,
) -> dict[str, float]:
    """Teach the packaged base to think `thinking` tokens per turn, and save it with limits that leave room for them.

    It makes the same decisions, spread among more tokens that decide nothing. Turn-level importance weights average
    over these, so a comparison of weight levels needs turns of several lengths.

    A turn thinks on to the end of the sentence, which takes eight to ten tokens more. The action takes ten. With
    `thinking` 0 the base is only taught on, for as many steps: the control of a comparison of lengths. `forbidden` are
    the names of the knowledge base, which no lesson may use. Returns the measured figures.

    Raises:
        ConfigError: `thinking` is out of range, or `out` is not empty.
    """
    if not 0 <= thinking <= MOST_THINKING:
        raise ConfigError(f"thinking: found {thinking} tokens per turn, wanted 0 to {MOST_THINKING}.")
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out}: is not empty. Give a new folder with --out.")
    keep_freed_memory()
    model, tokenizer = load_causal_lm(STARTER, dtype="float32")
    assert isinstance(model, Qwen2ForCausalLM)
    model.requires_grad_(True).train()
    built = json.loads((Path(model_path(STARTER)) / PROGRESS_FILE).read_text(encoding="utf-8"))["config"]
    config = replace(WarmStartConfig(seed=seed), batch_size=built["batch_size"])
    habits = replace(Habits(**built["habits"]), thinking=thinking)
    diligent = replace(habits, first_search=1.0, second_search=1.0, useless_results=0.0, open_question=0.0)
    pad_id = int(tokenizer.pad_token_id)

    def lessons(number: int, taught: Habits) -> LessonMaker:
        return LessonMaker(tokenizer, seed=seed + number, habits=taught, forbidden=forbidden)

    stage = Stage(
        "thinking",
        lessons(5, habits).draw,
        make_exam(lessons(999_991, diligent).draw, pad_id=pad_id),
        learning_rate=1e-3,
        steps=steps,
        decay=True,
    )
    figures = run_stage(model, stage, config, pad_id, first=False, report=report)
    room = thinking + THINKING_SLACK if thinking else 0
    limits = replace(
        STARTER_LIMITS,
        max_turn_tokens=STARTER_LIMITS.max_turn_tokens + room,
        max_total_tokens=STARTER_LIMITS.max_total_tokens + STARTER_LIMITS.max_turns * room,
    )
    progress = {"config": asdict(replace(config, habits=habits)), "steps": steps, "figures": figures}
    _save(out, model, tokenizer, limits, progress)
    return figures

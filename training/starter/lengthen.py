"""The starter base with longer turns: it thinks aloud before it searches or answers, as large models do.

Nothing else changes: the same decisions, spread among more tokens that decide nothing. That is what turn-level
importance weights average over, so a comparison of weight levels needs turns of several lengths.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from transformers import Qwen2ForCausalLM

from medagent.agent_folder import save_agent
from medagent.agent_spec import AgentSpec
from medagent.errors import ConfigError
from medagent.models.base_models import STARTER, model_path
from medagent.models.causal_lm import load_causal_lm
from medagent.training.execution import keep_freed_memory
from medagent.training.starter.batches import make_exam
from medagent.training.starter.build import PROGRESS_FILE, Stage, WarmStartConfig, run_stage
from medagent.training.starter.lessons import STARTER_LIMITS, STARTER_PROTOCOL, STARTER_TOP_K, Habits, LessonMaker

LONGEST = 128
SLACK = 16  # tokens: a turn stops thinking at the end of a sentence


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

    A turn thinks on to the end of the sentence, which takes eight to ten tokens more. The action takes ten. With
    `thinking` 0 the base is only taught on, for as many steps: the control of a comparison of lengths. `forbidden` are
    the names of the knowledge base, which no lesson may use. Returns the measured figures.

    Raises:
        ConfigError: `thinking` is out of range, or `out` is not empty.
    """
    if not 0 <= thinking <= LONGEST:
        raise ConfigError(f"thinking: found {thinking} tokens per turn, wanted 0 to {LONGEST}.")
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
    room = thinking + SLACK if thinking else 0
    limits = replace(
        STARTER_LIMITS,
        max_turn_tokens=STARTER_LIMITS.max_turn_tokens + room,
        max_total_tokens=STARTER_LIMITS.max_total_tokens + STARTER_LIMITS.max_turns * room,
    )
    model.save_pretrained(out)
    save_agent(out, AgentSpec(".", "float32", STARTER_PROTOCOL, limits, STARTER_TOP_K, retriever=None), tokenizer)
    progress = {"config": asdict(replace(config, habits=habits)), "steps": steps, "figures": figures}
    (out / PROGRESS_FILE).write_text(json.dumps(progress, indent=2) + "\n", encoding="utf-8")
    return figures

"""The stages of `medagent demo` for each base, and the settings that decide its numbers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from medagent.cli.demo_report import PERMUTED, SAMPLED
from medagent.config_files import packaged_configs
from medagent.errors import ConfigError
from medagent.evaluation.modes import Mode
from medagent.files import write_whole
from medagent.training.run import RUN_PARTS, discard

CONFIGS = packaged_configs()
LEAST_DEMONSTRATIONS = 8  # of an optimizer step
# The files of a resumable demonstration beside its training run.
PARTS = (
    *("demo.json", "done", "answers", "examples", "untrained", "report.json", "report.html"),
    *("index", "index-train", "index-permuted"),
)


@dataclass(frozen=True)
class DemoStage:
    """A training in `folder`, or questions in some ways (`parts`) to the agent there, or to the "base" itself.

    `column` names an agent's figures in the report.
    """

    name: str
    folder: str
    configs: tuple[str, ...] = ()
    column: str = ""
    parts: tuple[str, ...] = ()

    @property
    def examples(self) -> bool:
        """Whether this training is supervised."""
        return self.folder == "examples"


CONTROLS = (Mode.SEARCH, SAMPLED, Mode.FORCED_SEARCH, Mode.UNRELATED)
AFTER = (Mode.SEARCH, Mode.FORCED_SEARCH, Mode.UNRELATED, PERMUTED)
STARTER_STAGES = (
    DemoStage("before training", "base", column="before", parts=CONTROLS),
    DemoStage("training with ST-PPO", ".", configs=("experiments/demo.yaml",)),
    DemoStage("after training", "agent", column="after", parts=(*CONTROLS, PERMUTED)),
)
PRETRAINED_STAGES = (
    DemoStage("the untrained model", "base", column="untrained", parts=(Mode.SEARCH, Mode.SINGLE_SHOT)),
    DemoStage("learning from examples", "examples", configs=("sft/starter-smollm2.yaml",)),
    DemoStage("after examples", "examples/agent", column="examples", parts=AFTER),
    DemoStage("reinforcement learning", ".", configs=("experiments/starter-smollm2.yaml",)),
    DemoStage("after reinforcement learning", "agent", column="trained", parts=AFTER),
)


@dataclass(frozen=True)
class DemoSettings:
    """The settings that decide a demonstration's numbers. A folder resumes only with the same settings.

    `demonstrations` (questions that examples are written for) and `iterations` are None for those of the files.
    """

    base: str
    seed: int
    demonstrations: int | None
    iterations: int | None
    threads: int
    questions_per_kind: int = 200

    def __post_init__(self) -> None:
        """Refuse now what would otherwise fail after the untrained model was measured."""
        for name, value, least in (
            ("seed", self.seed, 0),
            ("demonstrations", self.demonstrations, LEAST_DEMONSTRATIONS),
            ("iterations", self.iterations, 1),
            ("threads", self.threads, 0),
            ("questions_per_kind", self.questions_per_kind, 1),
        ):
            if value is not None and value < least:
                raise ConfigError(f"--{name}: found {value}, wanted {least} or more.")


def begin(out: Path, settings: DemoSettings, *, overwrite: bool) -> None:
    """Note the settings of a new demonstration. Raises `ConfigError` where the folder holds one with others."""
    path, wanted = out / "demo.json", asdict(settings)
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) == wanted and not overwrite:
        return
    others = [name for name in (*PARTS, *RUN_PARTS) if (out / name).exists()]
    if others and not overwrite:
        raise ConfigError(
            f"demo folder {out}: holds another demonstration ({', '.join(sorted(others)[:3])}), wanted one with "
            f"{wanted} or none. Give another --out, or --overwrite true to begin anew there."
        )
    discard(out, (*PARTS, *RUN_PARTS))
    write_whole(path, json.dumps(wanted, indent=2) + "\n")

"""Writes cli.md, settings.md and metrics.md from the code, so that they cannot say anything else.

`python docs/reference/generate.py` writes them; with `--check` it writes nothing, and exits with 1 where one is stale.
"""

from __future__ import annotations

import difflib
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from docs.reference.from_code import (
    Entry,
    class_entries,
    class_path,
    command_entries,
    commands,
    describes,
    logged_metrics,
    nameable,
    settings_of,
    summary,
)
from docs.reference.metric_words import METRICS
from docs.reference.words import WORDS
from medagent.cli.commands.train import CONFIGURED
from medagent.cli.main import COMMANDS
from medagent.retrieval.formats import FORMATS
from medagent.training.agent_data import AgentData
from medagent.training.data import RolloutData
from medagent.training.sft.supervised import SupervisedData

HERE = Path(__file__).parent
WRITTEN_BY = "<!-- Written by docs/reference/generate.py from the code: change it there, then `make reference`. -->"


def cell(text: str) -> str:
    """Text as a cell of a table holds it."""
    return text.replace("|", "\\|")


def code(text: str) -> str:
    """Text as inline code; nothing of nothing."""
    return f"`{cell(text)}`" if text else ""


def table(rows: Iterable[Entry], *, first: str, prefix: str = "") -> str:
    """Entries as a Markdown table."""
    lines = [f"| {first} | type | default | |", "|---|---|---|---|"]
    for row in rows:
        default = row.default if row.default == "required" else code(row.default)
        lines.append(f"| {code(prefix + row.name)} | {cell(row.type)} | {default} | {cell(row.text)} |")
    return "\n".join(lines)


def defaults(data: type[AgentData]) -> str:
    """The callbacks that runs with this data have unless told otherwise."""
    *most, last = [code(path.rsplit(".", 1)[-1]) for path in data.default_callbacks]
    return f"{', '.join(most)} and {last}"


def cli_page() -> str:
    """Commands and their options."""
    parts = ["# Commands", "Every command with its options. `medagent COMMAND --help` says the same."]
    for name, function in commands(COMMANDS):
        parts += [f"## {name}", summary(function)]
        command = name.removeprefix("medagent ")
        if command in CONFIGURED:
            own = [row for row in settings_of(command) if "." not in row.name]
            rows = [Entry("config", "file", "", WORDS["config"]), *own]
            parts += [table(rows, first="option", prefix="--"), "Every setting besides: [settings](settings.md)."]
        elif rows := command_entries(function):
            positional = [row for row in rows if row.default == "required"]
            options = [row for row in rows if row.default != "required"]
            named = [*positional, *(Entry(f"--{row.name}", row.type, row.default, row.text) for row in options)]
            parts.append(table(named, first="option"))
    return "\n\n".join([WRITTEN_BY, *parts]) + "\n"


def of_sft(of_train: list[Entry]) -> list[str]:
    """The part of `medagent sft`, most of whose settings are those of `medagent train`."""
    rows, known = settings_of("sft"), {replace(row, text="") for row in of_train}
    own = [row for row in rows if replace(row, text="") not in known]
    shared = [row.name for row in rows if row not in own and not row.name.startswith("trainer.")]
    return [
        "## medagent sft",
        "Those that are not in `medagent train`, or have another default there:",
        table(own, first="setting"),
        "As there: " + ", ".join(map(code, shared)) + ".",
    ]


def settings_page() -> str:
    """Settings, and the classes that they can name."""
    of_train = settings_of("train")
    parts = [
        "# Settings",
        "Every setting of a training run. A YAML nests them; the command line writes `--model.policy_lr 1e-5`.",
        "## medagent train",
        table([row for row in of_train if not row.name.startswith("trainer.")], first="setting"),
        *of_sft(of_train),
        "## Trainer",
        "These are the supported settings of [Lightning's Trainer]"
        "(https://lightning.ai/docs/pytorch/stable/common/trainer.html). Others can be given as well; one that cannot "
        "work here is refused. "
        "`trainer.callbacks` join the default callbacks and those of the algorithm. A later file's list replaces an "
        "earlier file's, and `trainer.callbacks+` adds to it. `without_callbacks` leaves default ones out. "
        f"The defaults of `medagent train` are {defaults(RolloutData)}. "
        f"Those of `medagent sft` are {defaults(SupervisedData)}.",
        table([row for row in of_train if row.name.startswith("trainer.")], first="setting"),
        "## Classes",
        "What `class_path` can name, with its `init_args`. A class of your own goes by its dotted path too.",
    ]
    for base, classes in {**nameable("train"), **nameable("sft")}.items():
        parts.append(f"### {base}")
        for kind in classes:
            rows, _ = class_entries(kind)
            parts += [f"#### {class_path(kind)}", summary(kind)]
            parts += [table(rows, first="init_args")] if rows else []
    return "\n\n".join(part for part in [WRITTEN_BY, *parts] if part) + "\n"


def metrics_page() -> str:
    """Metrics with their meaning."""
    logged = logged_metrics()
    lines = ["| metric | meaning | logged by |", "|---|---|---|"]
    for name, text in METRICS.items():
        where = next((path for found, path in sorted(logged.items()) if describes(name, found)), "")
        lines.append(f"| {code(name)} | {cell(text)} | {where} |")
    intro = (
        "A run logs these figures into `logs/version_*/metrics.csv` and TensorBoard. Figures of rollouts come with "
        "an iteration's first optimizer step; names under `policy`, `critic` and `kl` are logged at every step. "
        "Reports of `medagent evaluate` also have `omitting`, the share of shown answers that leave out a warning or "
        "advice on their subject, and `omitted`, the number of such sentences in what was read."
    )
    return "\n\n".join([WRITTEN_BY, "# Metrics", intro, "\n".join(lines)]) + "\n"


def formats_page() -> str:
    """The formats of files, and how each is read."""
    rows = (
        f"| {', '.join(each.names)} | {', '.join(map(code, each.suffixes))} | {cell(each.how)} |" for each in FORMATS
    )
    intro = "What `medagent index build` reads. Each file may end in `.gz`."
    return (
        "\n\n".join([WRITTEN_BY, "# Formats", intro, "\n".join(("| format | files | |", "|---|---|---|", *rows))])
        + "\n"
    )


def with_formats(name: str) -> str:
    """A page of the documentation that names the formats between two marks."""
    begin, end = "<!-- formats, by make reference -->\n", "\n<!-- end of formats -->"
    before, _, rest = (HERE.parent / name).read_text(encoding="utf-8").partition(begin)
    kinds = dict.fromkeys(each.holds for each in FORMATS)
    of_kind = {kind: [name for each in FORMATS if each.holds == kind for name in each.names] for kind in kinds}
    named = " ".join(f"{kind.capitalize()}: {', '.join(names)}." for kind, names in of_kind.items())
    named = textwrap.fill(f"Give a file or a folder. {named}", 100)
    return f"{before}{begin}{named}{end}{rest.partition(end)[2]}"


def help_text(command: str) -> str:
    """What `medagent COMMAND --help` prints for a command that parses settings."""
    paths = {name: ", ".join(map(class_path, kinds)) for name, kinds in nameable(command).items()}
    lines = [
        f"usage: medagent {command} --config FILE [--config FILE ...] [--SETTING VALUE ...]",
        "",
        *textwrap.wrap(summary(dict(commands(COMMANDS))[f"medagent {command}"]).replace("`", ""), 100),
        "",
    ]
    for row in (Entry("config", "file", "", WORDS["config"]), *settings_of(command)):
        lines.append(f"  --{row.name}  ({row.type}{f'; {row.default}' if row.default else ''})")
        text = re.sub(r"\[(\w+)\]\(settings\.md#\w+\)", lambda match: paths[match[1]], row.text).replace("`", "")
        lines += textwrap.wrap(text, 100, initial_indent=" " * 8, subsequent_indent=" " * 8, break_long_words=False)
    lines += ["", *textwrap.wrap(OTHERS, 100)]
    return "\n".join(lines) + "\n"


OTHERS = (
    "Settings of Lightning's Trainer that are not listed can be given as well. One that cannot work here is refused. "
    "docs/reference/settings.md says what each class takes."
)
PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "settings.md": settings_page,
    "metrics.md": metrics_page,
    "formats.md": formats_page,
    "../retrieval.md": partial(with_formats, "retrieval.md"),
    "../your-model-and-corpus.md": partial(with_formats, "your-model-and-corpus.md"),
    **{f"../../medagent/cli/help/{command}.txt": partial(help_text, command) for command in CONFIGURED},
}


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` say which are stale and how."""
    stale = 0
    for name, make in PAGES.items():
        path, text = HERE / name, make()
        found = path.read_text(encoding="utf-8") if path.exists() else ""
        if found == text:
            continue
        stale += 1
        if "--check" in arguments:
            changes = list(difflib.unified_diff(found.splitlines(), text.splitlines(), "there", "code", "", "", 0, ""))
            shown = "\n  ".join(changes[2:12])
            print(f"docs/reference/{name}: stale, {len(changes)} lines of difference. Run make reference.\n  {shown}")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"Wrote docs/reference/{name}.")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

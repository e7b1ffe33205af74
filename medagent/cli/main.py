"""The command line: `medagent COMMAND ...`, whose commands `medagent --help` lists by what they are for.

Functions import what they need when they are called, so `--help` answers at once.
"""

import argparse
import os
import sys
from errno import EDQUOT, ENOSPC, EROFS
from inspect import get_annotations, getdoc
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, auto_cli

from medagent.cli.commands.ask import ASK_COMMANDS
from medagent.cli.commands.environment import ENVIRONMENT_COMMANDS
from medagent.cli.commands.evaluate import EVALUATION_COMMANDS
from medagent.cli.commands.index import INDEX_COMMANDS, search
from medagent.cli.commands.questions import QUESTION_COMMANDS
from medagent.cli.commands.train import CONFIGURED, TRAINING_COMMANDS, settings_help
from medagent.cli.commands.view import view
from medagent.cli.text_lists import HELP, with_lists_said
from medagent.config_files import allow_class, with_config_paths
from medagent.errors import InputError, MedagentError
from medagent.retrieval.errors import RetrievalError


def demo(
    out: str | None = None,
    base: str = "starter",
    seed: int = 0,
    demonstrations: int | None = None,
    iterations: int | None = None,
    threads: int = 0,
    questions_per_kind: int = 200,
    overwrite: bool = False,
) -> None:
    """Watch an agent learn to search: measure, train with ST-PPO, measure again, ask it a question.

    Args:
        out: Folder for indexes, logs, report and agent: runs/demo, or runs/ and the base's name. The demo of the
            starter replaces an earlier one there. The demo of another base resumes it.
        base: "starter", which learns in minutes, or a pretrained model: "smollm2" (`make smollm2`), a .gguf file, a
            folder or a hub name. It first learns from examples, and takes hours on two cores.
        seed: Seed of questions, sampling and initialisation.
        demonstrations: Questions that examples are written for, half of each kind. By default as in
            configs/sft/starter-smollm2.yaml.
        iterations: Training iterations. By default as in configs/experiments. A much longer run needs a longer decay
            than that file sets.
        threads: Torch threads; 0 keeps torch's own choice.
        questions_per_kind: Test questions of one hop, and as many of two. Fewer take less time and widen the intervals.
        overwrite: Begin the demo of a pretrained model anew.
    """
    from medagent.cli.demo import DemoSettings, run_demo
    from medagent.models.base_models import STARTER, stored_name
    from medagent.models.causal_lm import refuse_unmerged
    from medagent.training.memory.estimate import ModelShape

    if base == STARTER and demonstrations is not None:
        raise InputError("demonstrations: the starter learns without. Give --base smollm2, or leave them out.")
    refuse_unmerged(base)
    ModelShape.of(base)  # one that is absent is named before anything is made
    name = "demo" if base == STARTER else Path(base).name.removesuffix(".gguf")
    settings = DemoSettings(stored_name(base), seed, demonstrations, iterations, threads, questions_per_kind)
    run_demo(Path(out or f"runs/{name}"), settings, overwrite=overwrite)


NO_TELEMETRY = {
    "ANONYMIZED_TELEMETRY": "False",  # Chroma
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
GROUPS: dict[str, dict[str, Any]] = {
    "train": {"demo": demo, **TRAINING_COMMANDS, "view": view, "environment": ENVIRONMENT_COMMANDS},
    "measure": EVALUATION_COMMANDS,
    "ask": ASK_COMMANDS,
    "data": {"index": INDEX_COMMANDS, "questions": QUESTION_COMMANDS, "search": search},
}
COMMANDS: dict[str, Any] = {name: command for group in GROUPS.values() for name, command in group.items()}
OF_THE_PAGE = ("--feedback", "--examples")  # also written without their group


class CommandParser(ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End with the message and where the options are listed."""
        if not self.exit_on_error:
            super().error(message, ex)
        program = self.prog.replace(" [options]", "")
        self.exit(2, f"{program}: {' '.join(message.split())}. See {program} --help.\n")

    def format_help(self, formatter: argparse.HelpFormatter | None = None) -> str:
        """The help, with commands written as they are typed."""
        return super().format_help(formatter).replace(" [options] ", " ")


def overview() -> str:
    """The commands by what they are for."""
    lines = ["usage: medagent COMMAND ...", "", "A medical search agent: train it, measure it, ask it."]
    for group, commands in GROUPS.items():
        lines += ["", group]
        for name, command in commands.items():
            told = command["_help"] if isinstance(command, dict) else getdoc(command) or ""
            lines.append(f"  {name:<14}{told.splitlines()[0]}")
    lines += [
        "",
        "`medagent COMMAND --help` lists a command's options. Each also takes --allow_class my_task.MyProtocol,",
        "which lets an agent or a checkpoint name a class of yours. It may be given several times.",
    ]
    return "\n".join(lines)


def _flags(commands: dict[str, Any]) -> set[str]:
    """The options of all commands that are true or false."""
    functions = [found for found in commands.values() if callable(found)]
    nested = [_flags(found) for found in commands.values() if isinstance(found, dict)]
    own = {f"--{name}" for function in functions for name, kind in get_annotations(function).items() if kind is bool}
    return own.union(*nested)


def with_flags_said(arguments: list[str]) -> list[str]:
    """The arguments as the parser takes them: `--overwrite` alone as `--overwrite true`, and see `text_lists`."""
    flags = _flags(COMMANDS)
    said: list[str] = []
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=True):
        of_page = arguments[:1] == ["serve"] and argument.partition("=")[0] in OF_THE_PAGE
        said.append(f"--page.{argument[2:]}" if of_page else argument)
        if argument in flags and after.lower() not in ("true", "false"):
            said.append("true")
    return with_lists_said(said, COMMANDS)


def without_allowed_classes(arguments: list[str]) -> list[str]:
    """The arguments without `--allow_class CLASS`, which every command takes, once the classes are imported."""
    kept, words = list[str](), iter(arguments)
    for word in words:
        option, _, value = word.partition("=")
        if option == "--allow_class":
            allow_class(value or next(words, ""))
        else:
            kept.append(word)
    return kept


def main(argv: list[str] | None = None) -> int:
    """Run a command. A user's error is one line on standard error and exit status 1."""
    for name, value in NO_TELEMETRY.items():
        os.environ.setdefault(name, value)
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        from medagent.tracing import start_tracing

        start_tracing()
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # where classes of one's own lie, which options, a YAML or an agent name
    try:
        arguments = with_config_paths(without_allowed_classes(sys.argv[1:] if argv is None else argv))
        command, given = arguments[:1], arguments[1:]
        if not command or command[0] in HELP:
            print(overview())
        elif command[0] not in CONFIGURED:
            named = {name: found for name, found in COMMANDS.items() if name == command[0]}
            chosen = auto_cli(
                named or COMMANDS,  # the parser of one command is made in a tenth of the time
                args=with_flags_said(arguments),
                prog="medagent",
                as_positional=True,
                parser_class=CommandParser,
            )
            if callable(chosen):  # a command that is a record of its options
                chosen()
        elif any(each in HELP for each in given):
            print(settings_help(command[0]))
        else:
            CONFIGURED[command[0]](given)
    except (MedagentError, RetrievalError) as error:
        print(f"medagent: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno not in (ENOSPC, EDQUOT, EROFS):
            raise
        print(f"medagent: {error}. Free some space, or write elsewhere, and run the command again.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nmedagent: interrupted; run the same command again to go on.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Descriptions of commands, settings and metrics, for the pages that `generate` writes.

Options come from the declarations of the commands, settings from the parsers of the training commands, their words
from docstrings, and the names of metrics from the syntax trees.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
import types
from argparse import Action
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, is_dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from docstring_parser import parse
from jsonargparse import ArgumentParser, capture_parser
from jsonargparse._typehints import ActionTypeHint

from docs.reference.words import CLASS_WORDS, WORDS
from medagent.training.command import sft_command, train_command
from medagent.training.data import RolloutData
from medagent.training.memory.plan import plan
from medagent.training.module import AgentModule
from medagent.training.settings import SUPPORTED
from medagent.training.sft.supervised import SupervisedData, SupervisedModule
from medagent.training.trial import check_command

ROOT = Path(__file__).parents[2]
PACKAGES = ("medagent",)
SENTENCE = re.compile(r"(?<=[.!?])(?<!Dr\.)(?<!al\.)\s+(?=[A-Z`\"(])")
OTHERS = ("LazyInstance_", "_")  # how names begin that no YAML may use
METRIC = re.compile(r"[a-z_]+/[a-z0-9_]+")
LONGEST_DEFAULT = 60  # characters
CONFIGURABLE: dict[str, tuple[Callable[[list[str]], Any], dict[str, type]]] = {
    "train": (train_command, {"model": AgentModule, "data": RolloutData}),
    "sft": (sft_command, {"model": SupervisedModule, "data": SupervisedData}),
    "check": (check_command, {"model": AgentModule, "data": RolloutData}),
    "plan": (plan, {"model": AgentModule, "data": RolloutData}),
}


@dataclass(frozen=True)
class Entry:
    """One row of a table: an option or a setting."""

    name: str
    type: str
    default: str
    text: str


# Words for types, defaults and docstrings.


def type_name(hint: Any) -> str:
    """A type as people write it, without modules: `str`, `int or none`, `token, turn`."""
    if hint is type(None):
        return "none"
    if get_origin(hint) is Literal:
        return ", ".join(str(value) for value in get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_name(part) for part in get_args(hint)))
    if get_origin(hint) in (list, tuple, dict) or (get_origin(hint) and get_args(hint)):
        parts = ", ".join("..." if part is ... else type_name(part) for part in get_args(hint))
        return f"{get_origin(hint).__name__}[{parts}]"
    return str(hint.__name__) if isinstance(hint, type | TypeVar) else re.sub(r"\b(\w+\.)+", "", str(hint))


def default_text(value: object) -> str:
    """A default as YAML has it, cut where it is long; empty where the setting must be given."""
    if value is inspect.Parameter.empty:
        return "required"
    if isinstance(value, Enum):
        value = value.value
    if is_dataclass(value):
        return type(value).__name__
    text = json.dumps(value, default=lambda other: dict(vars(other)))
    text = text.strip('"') if isinstance(value, str) and value else text
    return text if len(text) <= LONGEST_DEFAULT else text[:LONGEST_DEFAULT].rsplit(" ", 1)[0] + " ..."


def one_line(text: str | None) -> str:
    """The text without its line breaks."""
    return " ".join((text or "").split())


def summary(documented: Any) -> str:
    """A docstring's text before its arguments, in one line."""
    return one_line((documented.__doc__ or "").split("Args:")[0])


def arguments_text(docstring: str | None, names: Iterable[str]) -> dict[str, str]:
    """Argument -> its words in the part of a docstring that begins with "Args:"."""
    told = {each.arg_name: one_line(each.description) for each in parse(docstring or "").params}
    return {name: told[name] for name in names if name in told}


def sentences_about(owner: type, name: str) -> str:
    """A setting's description in the docstrings of its class: its words under "Args:", or the sentences that name it.

    A sentence that begins with a quoted value goes on with what the one before it says of a setting.
    """
    documented = [each.__doc__ for each in owner.__mro__ if each is not object and each.__module__.startswith(PACKAGES)]
    for text in [*documented, inspect.getdoc(owner.__init__)]:
        if words := arguments_text(text, inspect.signature(owner).parameters).get(name):
            return words
        said: list[str] = []
        goes_on = False
        for sentence in SENTENCE.split(one_line(text)):
            goes_on = f"`{name}`" in sentence or (goes_on and sentence.startswith('"'))
            said += [sentence] if goes_on else []
        if said:
            return " ".join(said)
    return ""


# Options, from the declarations.


def command_entries(function: Callable[..., Any]) -> list[Entry]:
    """The rows of a command's options. A group of options has one row per field."""
    hints, parameters = get_type_hints(function), inspect.signature(function).parameters
    texts: dict[str, str] = {}
    for each in reversed(inspect.getmro(function)) if inspect.isclass(function) else (function,):
        texts |= arguments_text(each.__doc__, parameters)
    rows: list[Entry] = []
    for name, parameter in parameters.items():
        if is_dataclass(hints[name]):
            rows += [replace(row, name=f"{name}.{row.name}") for row in group_entries(parameter.default)]
        else:
            rows.append(Entry(name, type_name(hints[name]), default_text(parameter.default), texts.get(name, "")))
    return rows


def group_entries(group: Any) -> list[Entry]:
    """The rows of a group of options, given as the record of its defaults."""
    hints = get_type_hints(type(group))
    texts = arguments_text(type(group).__doc__, hints)
    return [Entry(name, type_name(hints[name]), default_text(vars(group)[name]), texts.get(name, "")) for name in hints]


def commands(tree: dict[str, Any], above: str = "medagent") -> Iterator[tuple[str, Callable[..., Any]]]:
    """(full name, function) of every command."""
    for name, found in tree.items():
        if isinstance(found, dict):
            yield from commands(found, f"{above} {name}")
        elif callable(found):
            yield f"{above} {name}", found


# Settings, from the parsers.


@cache
def project_classes() -> tuple[type, ...]:
    """Every public class of the packages but the command line's, by name."""
    found = set()
    for package in PACKAGES:
        for info in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not info.name.startswith("medagent.cli"):
                found |= {each for each in vars(importlib.import_module(info.name)).values() if inspect.isclass(each)}
    own = [each for each in found if each.__module__.split(".")[0] in PACKAGES and not each.__name__.startswith(OTHERS)]
    return tuple(sorted(own, key=lambda each: (each.__module__, each.__name__)))


def is_protocol(kind: type) -> bool:
    """Whether it is a `typing.Protocol`, which classes fit by their methods."""
    return bool(vars(kind).get("_is_protocol"))


def fits(candidate: type, base: type) -> bool:
    """Whether a YAML may name the class where `base` is wanted: a subclass, or one with a protocol's methods."""
    if inspect.isabstract(candidate) or is_protocol(candidate):
        return False
    if not is_protocol(base):
        return issubclass(candidate, base)
    wanted = {name: method for name, method in vars(base).items() if inspect.isfunction(method) and name != "__init__"}
    own = {name: shape_of(method) for name, method in wanted.items() if name[0] != "_" or name == "__call__"}
    found = {name: inspect.getattr_static(candidate, name, None) for name in own}
    return bool(own) and all(
        inspect.isfunction(method) and shape_of(method) == own[name] for name, method in found.items()
    )


def shape_of(method: types.FunctionType) -> tuple[list[str], Any]:
    """The names of a method's arguments, and what it returns as it is written."""
    return list(inspect.signature(method).parameters), method.__annotations__.get("return")


def classes_in(hint: Any) -> Iterator[type]:
    """The classes of ours, and Lightning's that ours extend, that a type holds."""
    if get_origin(hint) is not Literal:
        for part in get_args(hint):
            yield from classes_in(part)
    if inspect.isclass(hint) and hint.__module__.split(".")[0] in (*PACKAGES, "lightning"):
        yield hint


def families_in(hint: Any) -> Iterator[type]:
    """The classes in a type that others stand for: protocols, bases, and records that may be none or many."""
    records = {part for part in get_args(hint) if get_origin(hint) in (Union, types.UnionType, list)}
    for kind in classes_in(hint):
        lightnings = kind.__module__.startswith("lightning")
        if lightnings or is_protocol(kind) or inspect.isabstract(kind) or (is_dataclass(kind) and kind in records):
            yield kind


def named_settings(parser: ArgumentParser) -> Iterator[tuple[str, Any, Action]]:
    """(name, type, action) of everything that a YAML can set."""
    for action in parser._actions:
        if isinstance(action, ActionTypeHint):
            yield action.dest, action._typehint, action


def owner_of(name: str, kinds: dict[str, type]) -> type | None:
    """The class that a dotted setting is an argument of."""
    head, *inner = name.split(".")
    kind = kinds.get(head)
    for part in inner[:-1]:
        hints = get_type_hints(kind.__init__) if kind else {}
        kind = next(classes_in(hints.get(part)), None)
    return kind


def entries(parser: ArgumentParser, kinds: dict[str, type], needed: set[str]) -> list[Entry]:
    """The rows of a parser's settings; `kinds` says which class the first part of a name stands for."""
    rows = []
    for name, hint, action in named_settings(parser):
        owner = owner_of(name, kinds)
        text = one_line(action.help) or (sentences_about(owner, name.rsplit(".", 1)[-1]) if owner else "")
        default = default_text(inspect.Parameter.empty if name in needed else action.default)
        rows.append(Entry(name, type_name(hint), default, text))
    return rows


def class_key(owner: type, argument: str) -> str:
    """The key of an argument's words in CLASS_WORDS: of the class or its nearest base; empty where there are none."""
    keys = [f"{each.__name__}.{argument}" for each in owner.__mro__]
    return next((key for key in keys if key in CLASS_WORDS), "")


def class_keys(kind: type, rows: Iterable[Entry]) -> dict[str, str]:
    """Name of a row of a class -> key of its words in CLASS_WORDS, empty where there are none."""
    owners = {row.name: owner_of(f"own.{row.name}", {"own": kind}) for row in rows}
    return {name: class_key(owner, name.rsplit(".", 1)[-1]) if owner else "" for name, owner in owners.items()}


@cache
def class_entries(kind: type) -> tuple[list[Entry], list[type]]:
    """The rows of a class's `init_args`, with words for each, and the kinds of class that those name."""
    parser, parameters = ArgumentParser(), inspect.signature(kind).parameters
    parser.add_class_arguments(kind, "own", fail_untyped=False)
    needed = {f"own.{name}" for name, each in parameters.items() if each.default is inspect.Parameter.empty}
    rows = [replace(row, name=row.name.removeprefix("own.")) for row in entries(parser, {}, needed)]
    keys, told = class_keys(kind, rows), arguments_text(kind.__doc__, parameters)
    rows = [replace(row, text=CLASS_WORDS.get(keys[row.name], told.get(row.name, row.text))) for row in rows]
    inner = [each for _, hint, _ in named_settings(parser) for each in families_in(hint)]
    return rows, inner


def parser_of(command: str) -> ArgumentParser:
    """The parser of `medagent train`, `sft` or `plan`."""
    return capture_parser(CONFIGURABLE[command][0], [])


@cache
def settings_of(command: str) -> list[Entry]:
    """The rows of a training command's settings, with words for each; of Lightning's trainer the supported ones."""
    parser, named = parser_of(command), nameable(command)
    rows = entries(parser, CONFIGURABLE[command][1], {each.dest for each in parser._actions if each.required})
    classes = {name: [kind.__name__ for kind in families_in(hint)] for name, hint, _ in named_settings(parser)}

    def words(row: Entry) -> str:
        text = SUPPORTED.get(row.name.removeprefix("trainer.")) or WORDS.get(row.name, row.text)
        told = [f"[{name}](settings.md#{name.lower()})" for name in dict.fromkeys(classes[row.name]) if name in named]
        return f"{text} Classes: {', '.join(told)}.".strip() if told else text

    return [replace(row, text=words(row)) for row in rows if row.name[:8] != "trainer." or row.name[8:] in SUPPORTED]


@cache
def nameable(command: str) -> dict[str, list[type]]:
    """A setting that wants a class -> the project's classes that a YAML can name there, inner ones too."""
    found: dict[str, list[type]] = {}
    bases = [base for _, hint, _ in named_settings(parser_of(command)) for base in families_in(hint)]
    while bases:
        base = bases.pop(0)
        if base.__name__ in found or issubclass(base, Enum):
            continue
        found[base.__name__] = sorted((each for each in project_classes() if fits(each, base)), key=class_path)
        bases += [inner for each in found[base.__name__] for inner in class_entries(each)[1]]
    return {name: classes for name, classes in found.items() if classes}


def class_path(kind: type) -> str:
    """The shortest dotted path: that of the package which exports the class, or of its module."""
    package, _, _ = kind.__module__.rpartition(".")
    exported = package and vars(importlib.import_module(package)).get(kind.__name__) is kind
    return f"{package if exported else kind.__module__}.{kind.__name__}"


# Metrics, from the syntax trees.


def metrics_in(source: str) -> set[str]:
    """Names that a module logs, as keys, subscripts and arguments of `.log`; an f-string has `*` for what changes."""
    places: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)  # those of METRICS have texts
            places += [key for key, value in pairs if not isinstance(getattr(value, "value", None), str)]
        elif isinstance(node, ast.DictComp):
            places.append(node.key)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            places.append(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "log":
            places += node.args[:1]
    names = set()
    for place in places:
        parts = place.values if isinstance(place, ast.JoinedStr) else [place]
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in parts)
        if METRIC.fullmatch(text.replace("*", "x")):
            names.add(text)
    return names


def logged_metrics() -> dict[str, str]:
    """Name or pattern -> the first module that logs it, over the packages."""
    found: dict[str, str] = {}
    for package in ("training", "retrieval", "medagent"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in sorted(metrics_in(path.read_text(encoding="utf-8"))):
                found.setdefault(name, path.relative_to(ROOT).as_posix())
    return found


def describes(described: str, logged: str) -> bool:
    """Whether a name of METRICS, in which capitals vary, stands for a logged name, in which `*` does."""
    return fnmatchcase(described, logged) or fnmatchcase(logged, re.sub(r"[A-Z]+", "*", described))

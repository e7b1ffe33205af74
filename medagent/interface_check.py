"""Checks a user's class against a protocol or an abstract class: methods and parameter names must fit."""

import inspect
import re
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, formatannotation
from pydoc import locate
from typing import Any

from medagent.errors import ConfigError

REFUSALS = (  # as jsonargparse words them
    re.compile(
        r"Import path (?P<found>[\w.]+) does not (?:implement protocol|correspond to a subclass of) (?P<wanted>\w+)"
    ),
    re.compile(  # of a setting that may also be null
        r"Import path does not (?:implement protocol|correspond to a subclass of) (?P<wanted>\w+).+?"
        r"Given value: (?P<found>[\w.]+\w)",
        re.DOTALL,
    ),
    re.compile(r"Expected an instantiatable class, but (?P<found>[\w.]+) is (?P<wanted>abstract)"),
)

QUALIFIED = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])")  # the modules of a class: medagent.types.Question
EXAMPLE = re.compile(r"^Example: .+", re.MULTILINE)  # a line in the docstring of a protocol
RENAME = "Name the parameters as wanted, in that order, and give any others a default. Annotations may be left out."


def misfit(found: type, wanted: type) -> str | None:
    """Why a class cannot be used as `wanted`, with both signatures and the remedy. None where it can."""
    said = f"{_name(found)} does not fit {_name(wanted)}."
    if not vars(wanted).get("_is_protocol"):
        return _misfit_of_base(found, wanted, said)
    own, example = _methods(found), EXAMPLE.search(inspect.getdoc(wanted) or "")
    shown = f" {example[0]}" if example else ""
    for name, method in _methods(wanted).items():
        if name not in own:
            return f"{said} Wanted: {_written(name, method)}. Found: no method {name}. Define it.{shown}"
        if not _fits(own[name], method):
            return f"{said} Wanted: {_written(name, method)}. Found: {_written(name, own[name])}. {RENAME}{shown}"
    return None


def _misfit_of_base(found: type, wanted: type, said: str) -> str | None:
    derived = issubclass(found, wanted)
    methods = {name: method for name, method in _methods(found if derived else wanted).items() if _abstract(method)}
    asked = " and ".join(_written(name, method) for name, method in methods.items())
    if not derived:
        return f"{said} Wanted: a subclass with {asked}. Found: no subclass. Derive it from {_name(wanted)}."
    if methods:
        return f"{said} Wanted: {asked}. Found: no such method. Define it."
    held = {name for each in found.__mro__ for name in vars(each)}
    for name, kind in wanted.__annotations__.items():
        if str(kind).startswith("typing.ClassVar") and name not in held:
            return f"{said} Wanted: the class attribute {name}: {formatannotation(kind)}. Found: none. Set it."
    own = _methods(found)
    for name, method in _methods(wanted).items():
        static = isinstance(inspect.getattr_static(found, name), staticmethod)
        if not static and own[name] is not method and not _fits(own[name], method):
            return f"{said} Wanted: {_written(name, method)}. Found: {_written(name, own[name])}. {RENAME}"
    return None


def check_part(setting: str, value: object, wanted: type) -> None:
    """Raise ConfigError unless an object fits an interface; a function fits one that is only called."""
    if isinstance(value, type):
        raise ConfigError(f"{setting}: found the class {value.__name__}, wanted an object: {value.__name__}(...).")
    if callable(value) and list(_methods(wanted)) == ["__call__"]:
        return
    if reason := misfit(type(value), wanted):
        raise ConfigError(f"{setting}: found {str(value)[:80]!r}. {reason}")


def compare_by_names(protocol: type) -> None:
    """Let jsonargparse, which asks `inspect.signature`, compare classes with a protocol by parameter names alone."""
    for method in _methods(protocol).values():
        plain = inspect.signature(method)
        names = [parameter.replace(annotation=Parameter.empty) for parameter in plain.parameters.values()]
        method.__signature__ = Signature(names, return_annotation=Any)  # type: ignore[attr-defined]


def explained(message: str, interfaces: Sequence[type]) -> str:
    """An error of jsonargparse. If it refuses a class for one of `interfaces`, the text says why."""
    for refusal in REFUSALS:
        for match in refusal.finditer(message):
            found = locate(match["found"])  # which jsonargparse has just imported
            if not inspect.isclass(found):
                continue
            if match["wanted"] == "abstract":
                wanted = [each for each in interfaces if each in found.__mro__]
            else:
                wanted = [each for each in interfaces if each.__name__ == match["wanted"]]
            message += "".join(f"\n{reason}" for each in wanted if (reason := misfit(found, each)))
    return message


def _name(each: type) -> str:
    return f"{each.__module__}.{each.__qualname__}"


def _abstract(method: Callable[..., Any]) -> bool:
    return bool(vars(method).get("__isabstractmethod__"))


def _methods(each: type) -> dict[str, Callable[..., Any]]:
    found = inspect.getmembers(each, predicate=inspect.isfunction)
    return {name: method for name, method in found if name == "__call__" or not name.startswith("_")}


def _written(name: str, method: Callable[..., Any]) -> str:
    notes = method.__annotations__
    parameters = [
        parameter.replace(annotation=notes.get(parameter.name, Parameter.empty))
        for parameter in inspect.signature(method).parameters.values()
    ]
    written = Signature(parameters, return_annotation=notes.get("return", Signature.empty))
    return QUALIFIED.sub("", f"def {name}{written}".replace("'", ""))


def _fits(found: Callable[..., Any], wanted: Callable[..., Any]) -> bool:
    """Whether a method can be called in every way that the wanted one can. Both have `self` first."""
    own = Signature(list(inspect.signature(found).parameters.values())[1:])
    asked = list(inspect.signature(wanted).parameters.values())[1:]
    ordered = [each.name for each in asked if each.kind is not Parameter.KEYWORD_ONLY]
    names = {each.name: each.name for each in asked}
    try:
        by_position = own.bind(*ordered, **{name: name for name in names if name not in ordered}).arguments
        own.bind(**names)
    except TypeError:
        return False
    return all(by_position.get(name, name) == name for name in ordered)

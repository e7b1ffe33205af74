"""Lists of texts on the command line. What is typed stays text: 00123 keeps its zeros, and null is a word."""

import json
from collections import defaultdict
from inspect import Parameter, signature
from itertools import islice
from typing import Any

import yaml

HELP = ("-h", "--help")
NESTED = "list[str | list[str]]"  # a list in brackets is one of its items


def with_lists_said(arguments: list[str], commands: dict[str, Any]) -> list[str]:
    """The arguments as the parser takes them: positional ones first, and each list of texts as JSON.

    A list is written as `WHO,AHRQ`, as `[22, 00123]`, or item by item. An option may also be repeated.
    """
    words, found, said = iter(arguments), commands, list[str]()
    while isinstance(found, dict):
        said += islice(words, 1)
        if not said or said[-1] not in found:
            return arguments
        found = found[said[-1]]
    parameters = {each.name: each for each in signature(found).parameters.values()}
    lists = {name: str(each.annotation) for name, each in parameters.items() if "list[" in str(each.annotation)}
    required = [name for name, each in parameters.items() if each.default is Parameter.empty]
    named = next((name for name in required if name in lists), "")  # the list that is given without its name
    num_plain, latest = len(required) - bool(named), ""
    plain, options, texts = list[str](), list[str](), defaultdict[str, list[Any]](list)
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in lists:
            latest = name
            texts[name] += texts_of(value if equals else next(words, ""), objects="McpServer" in lists[name])
        elif word.startswith("--") or word in HELP:
            latest = ""
            options += [word] if equals or word in HELP else [word, *islice(words, 1)]
        elif len(plain) < num_plain or not (named or latest):
            plain.append(word)
        elif lists[named or latest] == NESTED:
            texts[named].append(texts_of(word) if word.startswith("[") else word)
        else:
            texts[named or latest] += texts_of(word, objects="McpServer" in lists[named or latest])
    said += [*plain, *([_written(texts.pop(named))] if named in texts else [])]
    return [*said, *options, *(part for name, found in texts.items() for part in (f"--{name}", _written(found)))]


def texts_of(word: str, *, objects: bool = False) -> list[Any]:
    """The texts of a list as it is typed, with brackets or without. With `objects` some may be mappings.

    >>> texts_of("[22, 00123]"), texts_of("a,b"), texts_of('["a, b"]')
    (['22', '00123'], ['a', 'b'], ['a, b'])
    """
    if not word.startswith("["):
        return [each.strip() for each in word.split(",") if each.strip()]
    try:
        found = yaml.load(word, Loader=yaml.BaseLoader)  # noqa: S506 (this loader makes texts and nothing else)
    except yaml.YAMLError:
        found = None  # such as [*pain], which YAML takes for a reference
    if isinstance(found, list) and all(isinstance(each, str) or (objects and isinstance(each, dict)) for each in found):
        return found
    return texts_of(word[1:].removesuffix("]"))


def _written(texts: list[Any]) -> str:
    return json.dumps(texts, ensure_ascii=False)

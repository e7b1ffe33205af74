"""Tells a question in another language from one in English, by its script and by common words."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from importlib.resources import files

import yaml

from medagent.evidence.words import FRAME, TOKEN, asked_for, folded
from medagent.retrieval.analysis import STOPWORDS

ONLY_ENGLISH = "Only questions in English are read. Please ask it in English."


@lru_cache(maxsize=1)
def _common_words() -> list[frozenset[str]]:
    lists = yaml.safe_load(files("medagent.evidence").joinpath("languages.yaml").read_text(encoding="utf-8"))
    return [frozenset(words.split()) for words in lists]


def is_other_language(question: str) -> bool:
    """Whether a question is in another language: two letters of another script, or more common words of another one."""
    scripts = [unicodedata.name(each, "").split()[0] for each in question if each.isalpha()]
    foreign = sum(script not in ("LATIN", "GREEK", "MICRO", "FEMININE", "MASCULINE") for script in scripts)
    if foreign > 1 or scripts.count("GREEK") > 4:
        return True
    words = [folded(found[0]) for found in TOKEN.finditer(question)]
    asks = bool(asked_for(question)) - bool({"\u00bf", "\u00a1"} & set(question))
    english = STOPWORDS | FRAME
    return any(
        sum(word in common for word in words) > asks + sum(word in english - common for word in words)
        for common in _common_words()
    )

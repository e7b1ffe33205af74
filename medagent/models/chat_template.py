"""A tokenizer's chat template, rendered as on a fixed day, and the tokens that it puts before a text."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from medagent.errors import ConfigError

_SENTINEL = "\u2063question\u2063"


def day_of(text: str) -> datetime:
    """The beginning of a day, given as 2025-01-01. Raises `ConfigError` for any other form."""
    try:
        day = date.fromisoformat(text)
    except (TypeError, ValueError):
        day = None
    if day is None or day.isoformat() != text:
        raise ConfigError(
            f'protocol.date: found {text!r}, wanted a day as YEAR-MONTH-DAY, such as "2025-01-01". Correct it.'
        )
    return datetime(day.year, day.month, day.day)


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[dict[str, Any]],
    day: datetime,
    *,
    tools: list[Any] | None = None,
    add_generation_prompt: bool = True,
) -> str:
    """The messages in the tokenizer's chat template, as text, on `day`, up to the assistant's next turn.

    Errors of the template are raised.
    """
    return str(
        tokenizer.apply_chat_template(
            list(messages),
            tools=tools,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            strftime_now=day.strftime,
            date_string=day.strftime("%d %b %Y"),
        )
    )


@dataclass(frozen=True)
class ChatFrame:
    """The texts that a chat template writes before and after a lone first message of the user."""

    before: str
    after: str

    def opened(self, mark: str) -> str:
        """`mark` and the white space behind it where the frame ends so, else nothing."""
        kept = self.after.rstrip()
        return self.after[len(kept) - len(mark) :] if kept.endswith(mark) else ""


def chat_frame(tokenizer: PreTrainedTokenizerBase, date: str) -> ChatFrame:
    """The frame of a tokenizer's chat template on a day such as 2025-01-01; it is rendered once.

    Raises `ConfigError` where there is no template, or one that does not take a lone message of the user.
    """
    if not tokenizer.chat_template:
        raise ConfigError("protocol.chat is true, and the model's tokenizer has no chat template. Set it to false.")
    return _frame(tokenizer, str(tokenizer.chat_template), date)


@lru_cache(maxsize=64)
def _frame(tokenizer: PreTrainedTokenizerBase, template: str, date: str) -> ChatFrame:
    day = day_of(date)
    try:
        whole = render(tokenizer, [{"role": "user", "content": _SENTINEL}], day)
    except Exception as error:  # a template is a program of the model's makers and may raise anything
        raise ConfigError(
            f"protocol.chat is true, and the chat template refuses a lone message of the user ({error}). Set it to "
            "false."
        ) from error
    before, sentinel, after = whole.partition(_SENTINEL)
    if not sentinel:
        raise ConfigError("protocol.chat is true, and the chat template drops the user's message. Set it to false.")
    if _SENTINEL in after:
        raise ConfigError("protocol.chat is true, and the chat template repeats the user's message. Set it to false.")
    return ChatFrame(before, after)


def beginning_of_text(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The ids that the tokenizer itself puts before a text, such as that of `<s>`; often none.

    Ids that it puts behind a text do not count.
    """
    whole = list(tokenizer("x")["input_ids"])
    bare = list(tokenizer("x", add_special_tokens=False)["input_ids"])
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return tuple(whole[:start])
    return ()

"""What a chat template makes of earlier turns: kept as sampled, shown otherwise, or rewritten.

Many templates drop the thoughts of earlier turns, or write calls anew. A server that renders each request from messages
then shows the model another history than it was trained on. `told_of` says so at start. `Rerendered` samples each turn
in the history that such a server shows, which makes several rows of one rollout (`medagent.types.NEW_CONTEXT`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from medagent.errors import ConfigError
from medagent.models.chat_template import day_of, render
from medagent.models.tool_template import ToolTemplate
from medagent.pieces import Piece, encode
from medagent.policy import SampledTurn, Session, TurnStop
from medagent.tool_calls import Message, ToolCall

_RESULT = "\u2063{}\u2063"

"""Native tool calls in training: what a base cannot write is refused, and every way of training reads them."""

from __future__ import annotations

import pytest
import torch

from medagent.errors import ConfigError
from medagent.models.causal_lm import load_causal_lm
from medagent.tool_protocol import ToolProtocol
from medagent.training.compatibility import check_protocol
from tests.medagent.test_tool_protocol import HERMES


def starter_with_tools():
    base, tokenizer = load_causal_lm("starter")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<tool_call>"]})
    tokenizer.chat_template = HERMES
    base.resize_token_embeddings(len(tokenizer) + 20, mean_resizing=False)
    return base, tokenizer


def test_a_base_that_cannot_write_the_tokens_of_calls_is_refused() -> None:
    base, tokenizer = starter_with_tools()
    with torch.no_grad():
        base.get_output_embeddings().weight[-22:] = 0.5  # as reserved tokens that no training has touched
    with pytest.raises(ConfigError, match="cannot write '<tool_call>', as 21 other tokens"):
        check_protocol(base, tokenizer, ToolProtocol())
    check_protocol(base, tokenizer, ToolProtocol(call_form="json"))


def test_tokens_that_were_trained_are_taken() -> None:
    base, tokenizer = starter_with_tools()
    with torch.no_grad():
        base.get_output_embeddings().weight.normal_()
    check_protocol(base, tokenizer, ToolProtocol())

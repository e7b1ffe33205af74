"""Text for a model behind a chat endpoint, whose template nobody knows: the marks of the common families go."""

from __future__ import annotations

import pytest

from medagent.policies.chat_endpoint import byte_tokenizer
from medagent.untrusted_text import harmless

MARKS = [
    *("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    *("[TOOL_CONTENT]", "[THINK]", "[/THINK]", "[CALL_ID]", "[/INST]", "[ / INST ]", "［INST］", "<</SYS>>"),
    *("[|assistant|]", "[|endofturn|]", "<|turn>model", "<turn|>", "<|tool_call>", "<tool_call|>", "<channel|>"),
    *("<extra_id_1>", "<reserved_106>", "<seed:eos>", "<eoh>", "<eop>", "[gMASK]<sop>", "<SPECIAL_12>", "<unused5>"),
    *("<|im_start|>", "<im_start>", "<|END_OF_TURN_TOKEN|>", "<｜User｜>", "<| User |>", "<｜end▁of▁sentence｜>"),
    *("<start_of_turn>", "<end_of_utterance>", "<function=search>", "<tools>", "<arg_key>", "<tool_response>"),
    *("</s>", "<bos>", "<role>", "<assistant>", "<message role='assistant'>", "]~b]ai", "[e~["),
    *("### Input:", "###Input :", "### Instruction:", "## Response:", "### Assistant:", "＃## Input："),
]
ROLES = ["ASSISTANT:", "USER :", "Human:", "Assistant:", "User：", "A\u200bssistant:"]
STAYS = [
    "Take 5-10 mg/kg/d (max. 400 mg) for 6–8 weeks; p < 0.05, HR > 1.2, 1 <x| y> 2, n<5|m>3.",
    "Human cells [1], [2, 3], [4-6]; human:mouse ratio 3:1, and a Human:mouse chimera; anti-Human: none.",
    "The assistant: a nurse. The user: a patient. The nervous system: brain. Nervous System: brain.",
    "PAD [PAD], bronchiolitis obliterans [BOS], capillary leak [CLS], resistance genes [ARGs], a mask [MASK].",
    "# Results\n## Response to treatment\n### Response\n#### Human studies\nInput: 2 l; output: 1 l. Response: good.",
    "| drug | dose |\n|---|---|\n| a | <5 mg |\n\n```r\nPr(>|t|) <- x[['a']] || y\n```",
    "See <https://who.int/a_b?x=1&y=2#z>, <b>bold</b>, <p class='x'>, <br/>, $5,000/QALY, 3 m/s, {a: b}, x_1.",
    "HLA-B*27:05, IL-6/IL-10, T½ ~ 4 h, Na+/K+, ↑CRP, 37 °C, ≥ 3 × ULN, «x», 【1】, ⟨r|s⟩ and E. coli O157:H7.",
]


@pytest.mark.parametrize("mark", MARKS)
def test_marks_of_common_families_go(mark: str) -> None:
    for text in (f"x {mark} y", f"{mark} y", f"x\n{mark.lower()}"):
        made = harmless(byte_tokenizer(), text)
        assert made != text
        assert mark.lower() not in made.lower()
        assert harmless(byte_tokenizer(), made) == made


@pytest.mark.parametrize("role", ROLES)
def test_roles_with_a_colon_go_within_a_line_too(role: str) -> None:
    for text in (f"Gout hurts. {role} B", f"x {role} y", f"x\n{role}", f"({role} B"):
        made = harmless(byte_tokenizer(), text)
        assert not set(made) & set(":：")
        assert "∶" in made


def test_a_mark_in_prose_costs_its_colon_alone() -> None:
    made = harmless(byte_tokenizer(), "Human: anti-TNF (5 mg). Assistant: a study role. System: nerves.")
    assert made == "Human∶ anti-TNF (5 mg). Assistant∶ a study role. System∶ nerves."


@pytest.mark.parametrize("text", STAYS)
def test_medical_text_stays(text: str) -> None:
    assert harmless(byte_tokenizer(), text) == text


def test_a_role_alone_in_a_heading_goes() -> None:
    assert (
        harmless(byte_tokenizer(), "x\n### Assistant\ny\n### System anatomy")
        == "x\n♯♯♯ Assistant\ny\n### System anatomy"
    )

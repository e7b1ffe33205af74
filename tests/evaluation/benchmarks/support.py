"""One row of each published format, made up, and files of such rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MEDQA = {
    "question": "Which drug?",
    "answer": "zinc",
    "options": {"A": "iron", "B": "zinc", "C": "lead", "D": "tin"},
    "meta_info": "step1",
    "answer_idx": "B",
    "metamap_phrases": [],
}
MEDMCQA = {
    "question": "Which?",
    "exp": "because",
    "cop": 2,
    "opa": "a1",
    "opb": "b1",
    "opc": "c1",
    "opd": "d1",
    "subject_name": "Anatomy",
    "topic_name": None,
    "id": "x1",
    "choice_type": "single",
}
PUBMEDQA = {"QUESTION": "Does it?", "CONTEXTS": ["One.", "Two."], "LONG_ANSWER": "SECRET", "final_decision": "no"}
BIOASQ = {
    "body": "Is it?",
    "type": "yesno",
    "exact_answer": "Yes",
    "id": "b1",
    "snippets": [{"text": "It is.", "document": "http://www.ncbi.nlm.nih.gov/pubmed/77"}],
    "documents": ["http://www.ncbi.nlm.nih.gov/pubmed/77", "http://www.ncbi.nlm.nih.gov/pubmed/78"],
}
MEDXPERT = {
    "id": "Text-1",
    "question": "A man has a fever. What is it?\nAnswer Choices: (A) flu (B) gout",
    "options": {"A": "flu", "B": "gout"},
    "label": "B",
    "medical_task": "Diagnosis",
    "body_system": "Joints",
    "question_type": "Reasoning",
}
OPEN = {"id": "test_0", "question": "who?", "golden_answers": ["Osler", "William Osler"]}


def lines(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}

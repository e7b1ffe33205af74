"""Whether an exported agent writes the same answers elsewhere, greedily: transformers with peft, and vLLM.

    python -m benchmarks.exported_agent runs/smollm2/agent --questions 20
    python -m benchmarks.exported_agent runs/bioasq-smollm2/agent --benchmark bioasq_factoid --path '10B*.json'

The agent answers in this process. Then each other way gets the same dialogues, token by token: at every token that the
agent wrote, does it write the same one? In transformers that is the token of the largest logit, once with the adapter
beside the base (peft) and once in the folder of `medagent export`. vLLM, where it is installed, is asked the questions
by the agent's own loop, and whole dialogues are compared. The others compute in float32; the agent in its own dtype.

Prints, for each way, equal tokens and dialogues, and the smallest lead of the largest logit where a token differs.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.common import describe_machine
from medagent.agent import Agent, Job
from medagent.agent_folder import adapter_folder, load_agent, read_spec
from medagent.evaluation.benchmarks.source import BenchmarkSource
from medagent.export import export_merged
from medagent.models.base_models import model_path
from medagent.policies.completions import CompletionPolicy, HttpCompletions
from medagent.policies.huggingface import HFPolicy
from medagent.policies.vllm.server import MODEL, VllmServer
from medagent.types import Question, Rollout


def answered(agent: Agent, questions: Sequence[Question]) -> list[Rollout]:
    """A greedy dialogue for each question."""
    return agent.run_all([Job(question, temperature=0.0) for question in questions])


def report(way: str, tokens: Sequence[tuple[int, int]], leads: Sequence[float] = ()) -> None:
    """Print a way's equal tokens, as (equal, all) for each dialogue, and the leads where a token differs."""
    equal, asked = (sum(each) for each in zip(*tokens, strict=True))
    whole = sum(same == count for same, count in tokens)
    close = f"; smallest lead at a difference {min(leads):.2g}" if leads else ""
    print(f"{way:32s} {equal:,} of {asked:,} tokens, {whole} of {len(tokens)} dialogues equal{close}")


@torch.no_grad()
def against_transformers(way: str, model: PreTrainedModel | PeftModel, rollouts: Sequence[Rollout]) -> None:
    """Compare each token that the agent wrote with the one that the model would write there."""
    tokens, leads = [], []
    for rollout in rollouts:
        ids = torch.tensor(rollout.token_ids)
        written = torch.tensor(rollout.loss_mask)[1:]
        logits_TV = model(ids[None]).logits[0, :-1][written]
        wanted = ids[1:][written]
        same = logits_TV.argmax(dim=-1) == wanted
        tokens.append((int(same.sum()), len(wanted)))
        lead = logits_TV.max(dim=-1).values - logits_TV.gather(1, wanted[:, None])[:, 0]
        leads += lead[~same].tolist()
    report(way, tokens, leads)


def against_vllm(agent: Agent, folder: str, questions: Sequence[Question], rollouts: Sequence[Rollout]) -> None:
    """Ask vLLM the same questions through the agent's own loop."""
    length = agent.limits.max_total_tokens + 512
    with closing(VllmServer(folder, dtype="float32", max_model_len=length)) as starting:
        server = starting.wait()
        own = agent.policy
        assert isinstance(own, HFPolicy)
        policy = CompletionPolicy([HttpCompletions(server.endpoint())], MODEL, own.tokenizer, end_ids=own.end_ids)
        others = answered(Agent(policy, agent.retriever, agent.protocol, agent.limits, agent.top_k), questions)
    same = sum(one.token_ids == other.token_ids for one, other in zip(rollouts, others, strict=True))
    print(f"{'vLLM, exported folder':32s} {same} of {len(rollouts)} dialogues equal, passages included")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", type=Path)
    parser.add_argument("--benchmark", default="starter")
    parser.add_argument("--path")
    parser.add_argument("--index", help="instead of the agent's own")
    parser.add_argument("--questions", type=int, default=20)
    given = parser.parse_args()
    if given.questions < 1:
        parser.error(f"--questions: found {given.questions}, wanted 1 or more")
    print(describe_machine())
    spec = read_spec(given.agent)
    agent = load_agent(given.agent, index=given.index)
    questions = BenchmarkSource(given.benchmark, path=given.path, limit=given.questions).questions()[0]
    rollouts = answered(agent, questions)
    base = AutoModelForCausalLM.from_pretrained(model_path(spec.base_model), dtype=torch.float32)
    against_transformers(
        "transformers and peft", PeftModel.from_pretrained(base, str(adapter_folder(given.agent))).eval(), rollouts
    )
    with tempfile.TemporaryDirectory() as folder:
        merged = Path(folder) / "merged"
        export_merged(given.agent, merged, dtype="float32")
        whole = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32).eval()
        against_transformers("transformers, exported folder", whole, rollouts)
        if importlib.util.find_spec("vllm"):
            against_vllm(agent, str(merged), questions, rollouts)
        else:
            print("vLLM is not installed: make .venv/vllm")


if __name__ == "__main__":
    main()

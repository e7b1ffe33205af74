r"""Qwen2.5-0.5B's shape end to end on a CPU.

    medagent index build medquad.jsonl openstax.jsonl --out indexes/real
    python -m benchmarks.real_shape --index indexes/real --questions train_sample_1000.jsonl \
        --texts medquad.jsonl --folder /tmp/shape

Runs two iterations of ST-PPO on MedQA over an index of real texts. Then compares the exported adapter with plain
transformers and peft, and with vLLM. Weights are random, in the hub's layout: bfloat16 safetensors, a tokenizer with
a chat template. They are made so that an untrained model searches: the last layer adds to every hidden state one
direction, which makes the tags likely. The reward is `TurnRewards`, so that searches differ.
Finished stages are not run again.

Prints the metrics of each iteration, how many greedy continuations are equal, and how far log-probs are apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import torch
from peft import PeftModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from benchmarks.common import describe_machine
from medagent.evaluation.benchmarks import MedQABenchmark
from medagent.protocol import TagProtocol
from medagent.training.callbacks.export import read_metrics

VOCABULARY, TOKENIZER_SIZE = 151_936, 32_000
TAG_SHARE = {"<search>": 0.15, "</search>": 0.15, "<answer>": 0.005, "</answer>": 0.01}
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRAIN = """\
trainer:
  default_root_dir: {folder}/run
  max_epochs: 2
  accelerator: cpu
  accumulate_grad_batches: 2
  callbacks:
    - {{class_path: training.callbacks.TurnLevelSampling}}
    - {{class_path: training.callbacks.ClippingBiasCorrection}}
    - {{class_path: training.callbacks.AgentExport}}
    - {{class_path: training.callbacks.RolloutRecords}}
    - {{class_path: training.callbacks.ProgressLine}}
model:
  base_model: {folder}/model
  dtype: float32
  policy_lora: {{rank: 16, alpha: 32}}
  critic_lora: {{rank: 16, alpha: 32}}
  policy_lr: 1.0e-3
data:
  benchmark:
    class_path: evaluation.benchmarks.MedQABenchmark
    init_args: {{path: {questions}, hub: null, split: validation, start: 0, stop: null}}
  retriever: {{class_path: retrieval.search.HybridRetriever, init_args: {{index: {index}}}}}
  reward: {{class_path: training.rewards.TurnRewards, init_args: {{search_cost: 0.1}}}}
  agent:
    limits: {{max_turns: 3, max_turn_tokens: 24, max_observation_tokens: 160, max_total_tokens: 896}}
  engine: {{class_path: training.engines.InProcessEngine}}
  off_policy: {{importance: behaviour}}
  num_questions: 8
  num_minibatches: 2
  num_micro_batches: 2
"""


def make_tokenizer(texts: Path, folder: Path) -> None:
    """A byte-level BPE tokenizer of the corpus's words, with ChatML's marks and template.

    The protocol's tags are tokens.
    """

    def lines() -> Iterator[str]:
        with texts.open(encoding="utf-8") as file:
            for line in file:
                yield str(json.loads(line)["text"])

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENIZER_SIZE - len(TagProtocol.tag_tokens), special_tokens=marks, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(lines(), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.add_tokens(list(TagProtocol.tag_tokens))
    fast.chat_template = CHATML
    fast.save_pretrained(folder)


@torch.no_grad()
def make_model(texts: Path, folder: Path) -> None:
    """The shape of Qwen2.5-0.5B (494 M parameters) with random weights that write tags now and then."""
    make_tokenizer(texts, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=896,
            intermediate_size=4864,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            max_position_embeddings=32_768,
            rope_parameters={"rope_theta": 1e6, "rope_type": "default"},
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    model.model.layers[-1].self_attn.v_proj.bias.fill_(30.0)
    sample = tokenizer("A patient presents with fever, and what is the diagnosis?", return_tensors="pt").input_ids
    direction = model.model(sample).last_hidden_state[0].mean(0)
    unit = direction / direction.square().sum()  # along which a row's logit rises by one
    embedding = model.get_input_embeddings().weight
    others = float(torch.logsumexp(embedding[: len(tokenizer)] @ direction, 0))
    for tag, share in TAG_SHARE.items():
        embedding[tokenizer.convert_tokens_to_ids(tag)] += unit * (others + torch.tensor(share).log())
    embedding[len(tokenizer) :] -= unit * 20  # rows without a token
    model.bfloat16().save_pretrained(folder)


def train(options: argparse.Namespace) -> None:
    """`medagent train` in a process of its own."""
    folder = options.folder
    config = folder / "train.yaml"
    config.write_text(TRAIN.format(folder=folder, questions=options.questions, index=options.index), encoding="utf-8")
    line = [sys.executable, "-m", "medagent.cli.main", "train", "--config", "configs/medqa-qwen2.5-1.5b.yaml"]
    began = time.perf_counter()
    subprocess.run([*line, "--config", str(config)], check=True)
    print(f"trained in {time.perf_counter() - began:.0f} s with start and export")


def prompts(folder: Path, questions: Path) -> list[list[int]]:
    """Prompts of four questions in the chat template, as the agent reads them."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "run" / "agent")
    chosen = MedQABenchmark(path=str(questions), limit=4).questions()
    return [TagProtocol(chat=True).encode_prompt(tokenizer, question) for question in chosen]


@torch.no_grad()
def by_transformers(base: Path, adapter: Path | None, asked: list[list[int]]) -> list[tuple[list[int], list[float]]]:
    """Greedy continuations of 24 tokens and their log-probs, with transformers and peft alone."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    if adapter:
        model = PeftModel.from_pretrained(model, adapter).eval()
    found = []
    for prompt in asked:
        out = model.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=24,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        ids = out.sequences[0, len(prompt) :]
        rows = torch.cat(out.logits).log_softmax(-1)
        found.append((ids.tolist(), rows.gather(1, ids[:, None])[:, 0].tolist()))
    return found


def by_vllm(base: Path, adapter: Path, asked: list[list[int]], log: Path) -> list[tuple[list[int], list[float]]]:
    """The same from a vLLM server that serves the adapter beside the base."""
    from medagent.policies.completions import UNTRUNCATED
    from medagent.policies.vllm.server import VllmServer

    found = []
    server = VllmServer(str(base), dtype="float32", max_model_len=1024, lora_rank=16, log=log)
    with closing(server):
        server.wait().api.load_adapter("exported", adapter.resolve())
        for prompt in asked:
            body = {"model": "exported", "prompt": prompt, "max_tokens": 24, "temperature": 0.0, "logprobs": 0}
            choice = server.api.call("v1/completions", {**body, **UNTRUNCATED, "return_token_ids": True})["choices"][0]
            found.append((choice["token_ids"], choice["logprobs"]["token_logprobs"]))
    return found


def compare(name: str, ours: list[tuple[list[int], list[float]]], theirs: list[tuple[list[int], list[float]]]) -> None:
    """Print whether token ids are equal and how far log-probs of the common tokens are apart."""
    equal = sum(a[0] == b[0] for a, b in zip(ours, theirs, strict=True))
    gap = max(
        abs(p - q)
        for (ids, one), (other_ids, other) in zip(ours, theirs, strict=True)
        for a, b, p, q in zip(ids, other_ids, one, other, strict=False)
        if a == b
    )
    print(f"{name}: {equal} of {len(ours)} greedy continuations equal, log-probs within {gap:.1e}", flush=True)


def main() -> None:
    """Make the model, train, export, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("index", "questions", "texts", "folder"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--no-vllm", action="store_true")
    options = parser.parse_args()
    print(describe_machine())
    base, agent = options.folder / "model", options.folder / "run" / "agent"
    if not (base / "model.safetensors").exists():
        base.mkdir(parents=True, exist_ok=True)
        make_model(options.texts, base)
    if not agent.exists():
        train(options)
    for number, row in enumerate(read_metrics(options.folder / "run")):
        print(f"iteration {number}: " + "  ".join(f"{name} {row[name]:.4g}" for name in SHOWN if name in row))
    asked = prompts(options.folder, options.questions)
    plain = by_transformers(base, agent / "adapter", asked)
    compare("base without the adapter", plain, by_transformers(base, None, asked))
    merged = options.folder / "merged"
    line = [sys.executable, "-m", "medagent.cli.main", "export", str(agent), "--out", str(merged), "--overwrite"]
    subprocess.run(line, check=True)
    compare("merged by medagent export", plain, by_transformers(merged, None, asked))
    if not options.no_vllm:
        compare("vLLM with the adapter", plain, by_vllm(base, agent / "adapter", asked, options.folder / "vllm.log"))


SHOWN = ("reward/mean", "rollout/searches", "time/rollout", "time/update", "policy/grad_norm", "policy/clip_fraction")

if __name__ == "__main__":
    main()

"""One step of TRL's GRPO trainer with a search tool. It has neither critic nor reference pass.

    python -m benchmarks.rivals.trl --index DIR          # needs the extra `bench`

Our prompts, observations and ends of turns are put into its chat template, its tool and its stopping criteria. Prints
a line of JSON.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from typing import Any

import torch
import trl.trainer.grpo_trainer as grpo
from datasets import Dataset
from peft import LoraConfig
from transformers import StoppingCriteriaList, StopStringCriteria, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.rivals.job import (
    ALPHA,
    NUM_SAMPLES,
    RANK,
    RATE,
    Phases,
    add_arguments,
    job_of,
    report,
)
from medagent.models.causal_lm import load_causal_lm
from medagent.retrieval.search import HybridRetriever

# Messages are our texts as they are. A call is written where TRL tries whether the template can write one.
RAW = (
    "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}[{{ c.function.name }} "
    "{{ c.function.arguments | tojson }}]{% endfor %}{% endif %}{% endfor %}"
)


def main() -> None:
    """Run the steps that warm up, and the one that counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--micro-batch", type=int, default=NUM_SAMPLES, help="rollouts of a forward and backward pass")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    job = job_of(options)
    model, tokenizer = load_causal_lm(job.model, dtype=job.dtype)
    prompts = [tokenizer.decode(job.protocol.encode_prompt(tokenizer, question)) for question in job.questions]
    tokenizer.chat_template = RAW
    tokenizer.response_template = {"fields": {}}
    retriever = HybridRetriever(job.index)
    calls = 0

    def parse(tokenizer: Any, ids: Any, **kwargs: Any) -> dict[str, Any]:
        text = str(tokenizer.decode(ids, skip_special_tokens=True))
        query = job.protocol.parse(text).query
        call = {"type": "function", "function": {"name": "search", "arguments": {"query": query}}}
        return {"role": "assistant", "content": text, "tool_calls": [call] if query else []}

    grpo.parse_response = parse

    def search(query: str) -> str:
        """Search the corpus.

        Args:
            query: What to search for.

        """
        nonlocal calls
        calls += 1
        return job.observation(tokenizer, retriever, query)

    steps: list[dict[str, Any]] = []
    phases = Phases()
    phases.wrap(GRPOTrainer, "_generate", "sampling")
    phases.wrap(GRPOTrainer, "_generate_single_turn", "model")
    phases.wrap(GRPOTrainer, "_get_per_token_logps_and_entropies", "policy forward")

    class Clock(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            phases.take()
            self.began = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            steps.append({"seconds": time.perf_counter() - self.began, "phases": phases.take()[0]})
            print(f"step {len(steps)}: {steps[-1]}", file=sys.stderr)

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **kwargs: [float(len(str(c)) % 7) for c in completions],
            args=GRPOConfig(
                output_dir=folder,
                max_steps=options.warm_up + 1,
                learning_rate=RATE,
                per_device_train_batch_size=options.micro_batch,
                gradient_accumulation_steps=job.rollouts // options.micro_batch,
                generation_batch_size=job.rollouts,
                num_generations=NUM_SAMPLES,
                max_completion_length=job.limits.max_total_tokens,
                max_tool_calling_iterations=job.limits.max_turns - 1,
                use_cpu=not torch.cuda.is_available(),
                bf16=False,
                gradient_checkpointing=False,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                seed=job.seed,
            ),
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in prompts]),
            processing_class=tokenizer,
            peft_config=LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear"),
            tools=[search],
            callbacks=[Clock()],
        )
        trainer.generation_config.max_new_tokens = job.limits.max_turn_tokens
        if job.forced:
            trainer.generation_config.min_new_tokens = job.limits.max_turn_tokens
        else:
            ends = StopStringCriteria(tokenizer, [block.end for block in job.protocol.blocks])
            generate = model.generate
            model.generate = lambda **kwargs: generate(stopping_criteria=StoppingCriteriaList([ends]), **kwargs)
        trainer.train()
    if job.forced:
        wanted = job.rollouts * (job.limits.max_turns - 1) * (options.warm_up + 1)
        assert calls == wanted, f"{calls} searches were made, wanted {wanted}"
    report(steps=steps, rollouts=job.rollouts, searches=calls, threads=torch.get_num_threads())


if __name__ == "__main__":
    main()

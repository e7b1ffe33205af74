"""TRL trains two steps on the OpenEnv server, and its tokens, masks and rewards equal ours on the same dialogues.

    medagent environment serve INDEX --split train --port 8002       # in an environment with the extra `openenv`
    python -m studies.openenv_rivals --url http://127.0.0.1:8002     # needs openenv and trl

The model is tiny and random, so the turns are written beforehand. With `--sampled` it learns to write such turns, and
TRL samples them; medagent then replays what was sampled. TRL asks for one turn after the answer, which is left out of
the comparison. Prints a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from openenv.core import GenericEnvClient
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from medagent.agent import Job
from medagent.environment import AgentSettings
from medagent.policies.scripted import ScriptedPolicy
from medagent.tool_protocol import ToolProtocol
from medagent.training.environments import OpenEnv
from medagent.types import Limits

END, HEADER = "<|im_end|>", "<|im_start|>assistant\n"
QUESTIONS, STEPS = 2, 2
ANSWERS = ("(A)", "(B)", "none of them", "(C) [1]")  # of a question's samples


def qwen_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of bytes with Qwen2.5's template, whose calls TRL reads."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, pad_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    return tokenizer


def learn_turns(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Train the model on written turns behind pieces of this file, so that it samples calls, some of them malformed."""
    written = [f"{END}\n{HEADER}{turn_of(sample, turn)}" for sample in range(len(ANSWERS)) for turn in range(3)]
    rows = tokenizer(written, padding=True, return_tensors="pt")["input_ids"]
    text = torch.tensor(tokenizer(Path(__file__).read_text(encoding="utf-8"))["input_ids"])
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(400):
        before = text[torch.randint(len(text) - 80, (len(rows), 1)) + torch.arange(80)]
        ids = torch.cat([before, rows], dim=1)
        model(ids, labels=ids.masked_fill(ids == tokenizer.pad_token_id, -100)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def turn_of(sample: int, turn: int) -> str:
    """What is written at a turn: a search, a call that does not fit, the answer, and what only TRL asks for."""
    calls: list[tuple[str, dict[str, str]]] = [
        ("search", {"query": "gout treatment"}),
        ("search", {"where": "year>=2020"}),
        ("answer", {"text": ANSWERS[sample]}),
    ]
    if turn >= len(calls):
        return "Done." + END
    name, arguments = calls[turn]
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>{END}"


class Task:
    """The server as TRL's `environment_factory` wants it."""

    url = ""

    def __init__(self) -> None:
        self._session = GenericEnvClient(base_url=self.url).sync()
        self._earned = 0.0

    def reset(self, index: int, **_: Any) -> str:
        """Begin a task."""
        self._earned = 0.0
        return str(self._session.reset(index=index).observation["prompt"])

    def search(self, query: str = "", where: str = "") -> str:
        """Search the corpus.

        Args:
            query: What to search for.
            where: Which passages.

        Returns:
            Passages.

        """
        return self._step("search", {name: each for name, each in (("query", query), ("where", where)) if each})

    def answer(self, text: str) -> str:
        """Give the answer.

        Args:
            text: The answer.

        Returns:
            That the episode has ended.

        """
        return self._step("answer", {"text": text})

    def get_reward(self) -> float:
        """What the episode earned."""
        return self._earned

    def _step(self, name: str, arguments: dict[str, str]) -> str:
        found = self._session.step({"type": "call_tool", "tool_name": name, "arguments": arguments})
        self._earned += found.reward or 0.0
        return str(found.observation["result"]["data"])


class ScriptedTrainer(GRPOTrainer):  # type: ignore[misc]
    """Takes the written turns as sampled, unless it is to sample itself, and keeps what it trains on."""

    kept: tuple[list[Any], ...] = ([], [], [])
    sampled = False

    def _generate_single_turn(self, prompt_ids: Any, *given: Any, **named: Any) -> Any:
        if self.sampled:
            return super()._generate_single_turn(prompt_ids, *given, **named)
        texts = [self.processing_class.decode(ids) for ids in prompt_ids]
        turns = [text.count(HEADER) - 1 for text in texts]
        written = [turn_of(place % len(ANSWERS), turn) for place, turn in enumerate(turns)]
        return [self.processing_class(text)["input_ids"] for text in written], None

    def _generate(self, prompts: Any) -> Any:
        found = super()._generate(prompts)
        self.kept[0].extend(found[1])
        self.kept[1].extend(found[2])
        return found

    def _calculate_rewards(self, *given: Any, **named: Any) -> Any:
        found = super()._calculate_rewards(*given, **named)
        self.kept[2].extend(found.sum(dim=1).tolist())
        return found


def main() -> None:
    """Train with TRL, roll out with medagent, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--sampled", action="store_true", help="TRL samples the turns")
    parsed = parser.parse_args()
    Task.url, ScriptedTrainer.sampled = parsed.url, parsed.sampled
    warnings.filterwarnings("ignore")
    tokenizer = qwen_tokenizer()
    small = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    window = {"use_sliding_window": True, "sliding_window": 96, "max_window_layers": 0}  # as long as what it learns
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), num_hidden_layers=2, **small, **window))
    if parsed.sampled:
        learn_turns(model, tokenizer)
    no_text = [number for number in range(256) if tokenizer.decode([number]) == "\ufffd"]
    before = model.lm_head.weight.detach().clone()
    with tempfile.TemporaryDirectory() as folder:
        rollouts = QUESTIONS * len(ANSWERS)
        trainer = ScriptedTrainer(
            model=model,
            args=GRPOConfig(
                output_dir=folder,
                max_steps=STEPS,
                learning_rate=1e-2,
                per_device_train_batch_size=rollouts,
                num_generations=len(ANSWERS),
                max_completion_length=4096,
                generation_kwargs={"max_new_tokens": 256, "suppress_tokens": no_text},
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                report_to=[],
                save_strategy="no",
                shuffle_dataset=False,
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list(
                [{"prompt": [{"role": "user", "content": ""}], "index": index} for index in range(QUESTIONS * STEPS)]
            ),
            processing_class=tokenizer,
            environment_factory=Task,
        )
        trainer.train()
    environment = OpenEnv(Task.url)
    questions = environment.questions()[: QUESTIONS * STEPS]
    same_ids = same_masks = same_rewards = 0
    for place, (ids, mask, reward) in enumerate(zip(*trainer.kept, strict=True)):
        number, sample = divmod(place, len(ANSWERS))
        sampled = "".join(tokenizer.decode(each) if own else "\0" for each, own in zip(ids, mask, strict=True))
        turns = [text for text in sampled.split("\0") if text]
        settings = AgentSettings(ToolProtocol(), Limits(min(4, len(turns)), 512, 4096, 16384))
        policy = ScriptedPolicy(tokenizer, lambda read, turn, turns=turns: turns[turn])
        (ours,) = environment.agent(policy, settings).run_all([Job(questions[number], sample=sample)])
        end = 1 + max(number for number, own in enumerate(ours.loss_mask) if own)
        own_ids, own_mask = (each[len(ours.prompt_ids) : end] for each in (ours.token_ids, ours.loss_mask))
        same_ids += own_ids == list(ids)[: len(own_ids)]
        same_masks += list(map(int, own_mask)) == list(mask)[: len(own_mask)]
        same_rewards += abs(ours.total_reward - reward) < 1e-6
    moved = float((model.lm_head.weight - before).abs().max())
    counts = {"same_tokens": same_ids, "same_masks": same_masks, "same_rewards": same_rewards}
    print(json.dumps({"rollouts": len(trainer.kept[0]), **counts, "rewards": trainer.kept[2], "moved": moved}))


if __name__ == "__main__":
    main()

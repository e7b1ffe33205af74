"""`medagent check`: one small iteration of a configuration, what it showed, and the commonest mistakes in it."""

import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from medagent.errors import MedagentError
from medagent.evaluation.modes import gold_passages
from medagent.evaluation.rollout_files import read_lines
from medagent.evaluation.viewer.recorded import ROLLOUTS, read_metrics
from medagent.training.callbacks.records import token_texts
from medagent.training.command import fit
from medagent.training.data import RolloutData
from medagent.training.experience import rollout_name
from medagent.training.module import AgentModule
from medagent.types import Question, Rollout, StopReason

SHOWN = 5  # tokens whose log-probs differ most
UPDATE = (
    "policy/grad_norm",
    "policy/clip_fraction",
    "policy/ratio_max",
    "kl/reference",
    "policy/entropy",
    "critic/loss",
)


def check_command(args: list[str]) -> None:
    """Try a configuration: one iteration on two questions, in a folder that is deleted.

    It prints the prompt and the first rollout as tokens, what was earned, where the log-probs of sampler and trainer
    differ most, what the update did, and the memory. MedagentError if it finds a mistake, of which it names the remedy.
    """
    with TemporaryDirectory(prefix="medagent-check-") as folder:
        small = {"num_questions": 2, "num_minibatches": 1, "num_micro_batches": 1}
        ours = [f"--data.{name}={value}" for name, value in small.items()]
        ours += [
            "--trainer.max_epochs=1",
            f"--trainer.default_root_dir={folder}",
            "--trainer.check_val_every_n_epoch=2",
        ]
        cli = fit([*args, *ours], AgentModule, RolloutData, command="check", description=str(check_command.__doc__))
        module, data = cli.model, cli.datamodule
        assert isinstance(module, AgentModule)
        assert isinstance(data, RolloutData)
        (metrics,) = read_metrics(Path(folder))
        place = Path(folder) / ROLLOUTS / "iteration_0000.jsonl.gz"
        rows = list(read_lines(place, lambda row, _: row, wanted="a rollout"))
    first, tokenizer = data.rollouts[0], module.tokenizer
    print(
        f"\nThe first rollout, question {first.question.id}; what the policy sampled stands between \u00ab and \u00bb."
    )
    print(as_marked_tokens(first, tokenizer))
    print(f"\n{len(data.rollouts)} rollouts:")
    for rollout in data.rollouts:
        turns, earned = " + ".join(f"{turn.reward:.2f}" for turn in rollout.turns), rollout.total_reward
        print(
            f"  {rollout_name(rollout)}: reward {earned:.2f} = {turns} of the turns + {rollout.reward:.2f} "
            f"of the outcome; {rollout.num_searches} searches, {rollout.stop_reason.value}"
        )
    print("\nTokens whose log-probs of sampler and trainer differ most:")
    for gap, text, sampler, trainer_ in sorted(gaps(rows), reverse=True)[:SHOWN]:
        print(f"  {gap:.2g}: {text!r}, sampler {sampler:.4f}, trainer {trainer_:.4f}")
    print("Update:", ", ".join(f"{name} {metrics[name]:.3g}" for name in UPDATE if name in metrics))
    print("Memory:", memory_line())
    found = list(mistakes(data.rollouts, data.questions, data))
    if found:
        raise MedagentError("the trial found what most often keeps a run from learning:\n" + "\n".join(found))
    print("None of the commonest mistakes was found. Train with the same arguments: medagent train ...")


def gaps(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[float, str, float, float]]:
    """(difference, text, sampler's log-prob, trainer's) of each sampled token of recorded rollouts."""
    for turn in (turn for row in rows for turn in row["turns"]):
        numbers = [turn["numbers"][name] for name in ("rollout_logprob", "old_logprob") if turn["numbers"]]
        for text, sampler, trainer in zip(turn["token_texts"], *numbers, strict=True):
            yield abs(trainer - sampler), text, sampler, trainer


def as_marked_tokens(rollout: Rollout, tokenizer: PreTrainedTokenizerBase) -> str:
    """The tokens of a rollout with a bar between them, and those of the policy in marks."""
    said, inside = list[str](), False
    for text, sampled in zip(
        token_texts(tokenizer, [max(0, each) for each in rollout.token_ids]), rollout.loss_mask, strict=True
    ):
        if sampled != inside:
            said.append("\u00ab" if sampled else "\u00bb")
            inside = sampled
        said.append(text)
    return "|".join(said)


def memory_line() -> str:
    """The most memory that the process has taken, and a GPU's."""
    unit = 1 if sys.platform == "darwin" else 1024
    said = f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30:.1f} GiB at most"
    return said + (
        f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB of the GPU" if torch.cuda.is_available() else ""
    )


def mistakes(rollouts: Sequence[Rollout], questions: Sequence[Question], data: RolloutData) -> Iterator[str]:
    """What most often keeps a run from learning, a line each with its remedy."""
    share = _share_of(rollouts)
    if data.environment is None and not share(lambda each: each.num_searches > 0):
        yield (
            "It never searches. A model that was not trained rarely does: begin with medagent sft, or reward searches "
            "(configs/rewards)."
        )
    if len({each.total_reward for each in rollouts}) == 1:
        yield (
            f"Every rollout earned {rollouts[0].total_reward:g}: nothing tells good from bad. Take easier questions, "
            "examples before (medagent sft), more data.num_samples or a higher model.temperature. Check that "
            "data.reward reads the answer."
        )
    if share(lambda each: each.stop_reason.truncated) > 0.5:
        cut = next(each for each in rollouts if each.stop_reason.truncated)
        yield f"Most rollouts were cut ({cut.stop_reason.value}). Raise data.agent.limits.{cut.stop_reason.value}."
    if share(lambda each: each.stop_reason is StopReason.MAX_TURN_TOKENS) == 1:
        yield (
            "No turn ended by itself. The protocol's end may be no token that the model writes: compare the rollout "
            "above with the model's chat template, and teach the end by examples (medagent sft)."
        )
    known = [each for each in questions if each.gold_passage_ids]
    held = gold_passages(data.retriever, known, ())
    missing = [each.id for each in known if not set(each.gold_passage_ids) & held.keys()]
    if held and len(missing) > len(known) / 10:
        yield (
            f"The evidence of {len(missing)} of {len(known)} questions is not in the index, such as of {missing[0]}. "
            "Build the index from the corpus of the questions, or leave these questions out."
        )


def _share_of(rollouts: Sequence[Rollout]) -> Callable[[Callable[[Rollout], bool]], float]:
    return lambda holds: sum(map(holds, rollouts)) / len(rollouts)

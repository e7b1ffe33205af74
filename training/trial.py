"""`medagent check`: one small iteration of a configuration, what it showed, and the commonest mistakes in it."""

import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from medagent.errors import MedagentError
from medagent.evaluation.grading.grade import Verdict, grade
from medagent.evaluation.modes import gold_passages
from medagent.evaluation.rollout_files import read_lines
from medagent.evaluation.viewer.recorded import ROLLOUTS, read_metrics
from medagent.models.chat_template import day_of, render
from medagent.policies.turn_ends import end_token_ids
from medagent.protocol import TagProtocol, TurnProtocol
from medagent.retrieval.controls import corpus_of
from medagent.retrieval.search import HybridRetriever
from medagent.tool_protocol import ToolProtocol
from medagent.training.callbacks.records import token_texts
from medagent.training.command import fit
from medagent.training.data import RolloutData
from medagent.training.experience import rollout_name
from medagent.training.module import AgentModule
from medagent.types import Question, Rollout

SHOWN = 5  # tokens whose log-probs differ most
MOST_MOVED = 0.5  # nats, by one update: the starter's rate moves them by 0.16, and ten times that rate by 0.84
UPDATE = "policy/grad_norm policy/clip_fraction policy/ratio_max kl/reference policy/entropy critic/loss".split()
# A second pass over the same rollouts reads them once more after the first optimizer step.
SMALL = (
    "--data.num_questions=2 --data.num_samples=4 --data.num_minibatches=1 --data.num_micro_batches=1 "
    "--data.num_epochs=2 --model.lr_warmup_iterations=0 --trainer.max_epochs=1 --trainer.check_val_every_n_epoch=2 "
    "--trainer.logger=null"
).split()


def check_command(args: list[str]) -> None:
    """Try a configuration: one iteration on two questions with one update, in a folder that is deleted.

    It prints the prompt and the first rollout as tokens, what was earned, where the log-probs of sampler and trainer
    differ most, what one update did, and the memory. Each question has four samples, and there is no warm-up.
    MedagentError if it finds a mistake, of which it names the remedy.
    """
    with TemporaryDirectory(prefix="medagent-check-") as folder:
        ours = [*SMALL, f"--trainer.default_root_dir={folder}"]
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
            f"  {rollout_name(rollout)}: {grade(rollout).verdict.value}, reward {earned:.2f} = {turns} of the turns + "
            f"{rollout.reward:.2f} of the outcome; {rollout.num_searches} searches, {len(rollout.hits)} passages, "
            f"{rollout.stop_reason.value}"
        )
    print("\nTokens whose log-probs of sampler and trainer differ most, before the update:")
    for gap, text, sampler, trainer_ in sorted(gaps(rows, "rollout_logprob", "old_logprob"), reverse=True)[:SHOWN]:
        print(f"  {gap:.2g}: {text!r}, sampler {sampler:.4f}, trainer {trainer_:.4f}")
    moved = [gap for gap, *_ in gaps(rows, "old_logprob", "logprob")]
    moved_by = mean(moved) if moved else 0.0
    most = max(moved, default=0)
    print(f"One update moved the log-probs of sampled tokens by {moved_by:.2g} in the mean, by {most:.2g} at most.")
    print("Means of two steps:", ", ".join(f"{name} {metrics[name]:.3g}" for name in UPDATE if name in metrics))
    print("Memory:", memory_line())
    found = [
        *unended_turns(tokenizer, module, data.agent_settings.protocol),
        *mistakes(data.rollouts, data.questions, data),
    ]
    if moved_by > MOST_MOVED:
        found.append(
            f"One update moved log-probs by {moved_by:.2g} in the mean, wanted at most {MOST_MOVED}: the policy leaves "
            "what it was trained on. Lower model.policy_lr."
        )
    if found:
        raise MedagentError("the trial found what most often keeps a run from learning:\n" + "\n".join(found))
    print("None of the commonest mistakes was found. Train with the same arguments: medagent train ...")


def gaps(rows: Sequence[Mapping[str, Any]], *names: str) -> Iterator[tuple[float, str, float, float]]:
    """(difference, text, one number, the other) of each sampled token of recorded rollouts, for two names."""
    for turn in (turn for row in rows for turn in row["turns"] if turn["numbers"]):  # no step read the others
        for text, one, other in zip(turn["token_texts"], *(turn["numbers"][name] for name in names), strict=True):
            if one is not None and other is not None:  # a number that is not finite is none
                yield abs(other - one), text, one, other


def as_marked_tokens(rollout: Rollout, tokenizer: PreTrainedTokenizerBase) -> str:
    """The tokens of a rollout with a bar between them, and those of the policy in marks."""
    texts = token_texts(tokenizer, [max(0, each) for each in rollout.token_ids])
    parts = groupby(zip(texts, rollout.loss_mask, strict=True), key=itemgetter(1))
    said = ((sampled, "|".join(text for text, _ in part)) for sampled, part in parts)
    return "|".join(f"\u00ab|{text}|\u00bb" if sampled else text for sampled, text in said)


def memory_line() -> str:
    """The most memory that the process has taken, and a GPU's."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    of_gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return f"{peak / 2**30:.1f} GiB at most" + (f", {of_gpu / 2**30:.1f} GiB of the GPU" if of_gpu else "")


def mistakes(rollouts: Sequence[Rollout], questions: Sequence[Question], data: RolloutData) -> Iterator[str]:
    """What most often keeps a run from learning, a line each with its remedy."""
    searched = [each for each in rollouts if each.num_searches]
    right, wrong = (
        [each.total_reward for each in rollouts if grade(each).verdict is verdict]
        for verdict in (Verdict.CORRECT, Verdict.WRONG)
    )
    if data.environment is None and not searched:
        yield (
            "It never searches. A model that was not trained rarely does: begin with medagent sft, or reward searches "
            "(configs/rewards)."
        )
    if data.environment is None and searched and not any(each.hits for each in searched):
        yield (
            "No search found a passage. Ask the index yourself (medagent search WORDS --index FOLDER), and look at "
            "`where` of data.retriever."
        )
    if data.environment is None and right and wrong and mean(wrong) >= mean(right):
        yield (
            f"Wrong answers earned {mean(wrong):.2f} in the mean, and right ones {mean(right):.2f}. Check that "
            "data.reward reads the answer."
        )
    elif len({each.total_reward for each in rollouts}) == 1:
        yield (
            f"Every rollout earned {rollouts[0].total_reward:g}: nothing tells good from bad. Take easier questions, "
            "examples before (medagent sft), more data.num_samples or a higher model.temperature."
        )
    for among, which in ((rollouts, ""), (searched, " that searched")):
        cut = [each.stop_reason.value for each in among if each.stop_reason.truncated]
        if len(cut) > len(among) / 2:
            yield (
                f"{len(cut)} of {len(among)} rollouts{which} were cut. Raise data.agent.limits.{cut[0]}, or teach the "
                "model by examples to end its turns (medagent sft)."
            )
            break
    known = [each for each in questions if each.gold_passage_ids]
    held = gold_passages(data.retriever, known, ())
    missing = [each.id for each in known if not set(each.gold_passage_ids) & held.keys()]
    if isinstance(corpus_of(data.retriever), HybridRetriever) and len(missing) > len(known) / 10:
        yield (
            f"The evidence of {len(missing)} of {len(known)} questions is not in the index, such as of {missing[0]}. "
            "Build the index from the corpus of the questions, or leave these questions out."
        )


def unended_turns(tokenizer: PreTrainedTokenizerBase, module: AgentModule, protocol: TurnProtocol) -> Iterator[str]:
    """A mistake where the protocol uses a chat template that puts no end behind what the assistant said."""
    if not (isinstance(protocol, ToolProtocol) or (isinstance(protocol, TagProtocol) and protocol.chat)):
        return
    said = [{"role": role, "content": role} for role in ("user", "assistant")]
    behind = render(tokenizer, said, day_of(protocol.date), add_generation_prompt=False).rpartition("assistant")[2]
    ends = [str(tokenizer.decode([each])) for each in end_token_ids(tokenizer, module.shared_base.peft)]
    if not any(end in behind for end in ends):
        yield (
            f"The chat template puts {behind.strip()!r} behind the assistant's turn, wanted one of {', '.join(ends)}. "
            "Take the template of the model's makers, or name its end in generation_config.json."
        )

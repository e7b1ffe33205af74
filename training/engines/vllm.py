"""vLLM on this machine as the engine: a server in its own process, handed the policy's weights each iteration."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from medagent.errors import ConfigError
from medagent.models.base_models import model_path
from medagent.models.checksums import Handed
from medagent.models.merging import MAX_MERGE_LOST, Form, MergeLoss
from medagent.models.text_length import room_on_server
from medagent.policies.completions import CompletionPolicy
from medagent.policies.turn_ends import end_token_ids
from medagent.policies.vllm.server import HAS_TRITON, MODEL, VllmServer, VllmSettings
from medagent.training.engines.arrival import ArrivalCheck, require_arrival, trainer_logprobs
from medagent.training.engines.base import EngineSetup, RolloutEngine
from medagent.training.engines.hand_over import (
    WITHOUT_MERGE,
    HandOver,
    form_of,
    is_whole,
    merge_metrics,
    routing_shape,
    save_adapter,
    served_adapter,
)
from medagent.training.module import AgentModule


class VllmEngine(RolloutEngine):
    """A vLLM server on this machine that samples with the policy's weights.

    `hand_over` "merged": base weights with the policy's LoRA folded in are pushed through shared memory. "adapter":
    vLLM serves the LoRA beside the base. "auto": merged where the base is in float32, else adapter. A merge that loses
    a larger share than `max_merge_lost` of the LoRA to rounding stops the run.

    `colocated`: trainer and vLLM share a GPU, and each sleeps while the other works. Otherwise give vLLM GPUs of its
    own (`settings.devices`), or a share of the trainer's (`settings.gpu_memory`). Under DDP every rank starts a server.
    `settings.devices` may then name one GPU per rank, separated by ";".
    """

    records_routing = True

    def __init__(
        self,
        hand_over: HandOver = "auto",
        colocated: bool = False,
        seeded: bool = True,
        settings: VllmSettings = VllmSettings(),
        max_merge_lost: float = MAX_MERGE_LOST,
    ) -> None:
        self._hand_over, self._colocated, self._seeded, self._settings = hand_over, colocated, seeded, settings
        self._max_merge_lost = max_merge_lost
        self.overlaps, self.takes_adapters = not colocated, hand_over != "merged"
        self.trainer_share = 1.0 if colocated or settings.devices else 1.0 - settings.gpu_memory
        self._form: Form = "merged"
        self._loss: MergeLoss | None = None
        self._server: VllmServer | None = None
        self._policy: CompletionPolicy | None = None
        self._setup: EngineSetup | None = None
        self._check: ArrivalCheck | None = None
        self._served = MODEL
        self._asleep, self._handed_over = False, 0
        self._scratch: Path | None = None

    def start(self, module: AgentModule, setup: EngineSetup) -> None:
        """See `RolloutEngine.start`; returns while vLLM still loads."""
        self._setup, self._check = setup, ArrivalCheck(module.dtype_name, four_bits=module.execution.quantise != "none")
        self._form = form_of(self._hand_over, module)
        if self._form == "adapter" and module.roles.routers is not None and not HAS_TRITON:
            raise ConfigError(
                "engine vllm: would serve the adapter beside a mixture of experts, which vLLM can only with Triton, so "
                "on a GPU. Set hand_over: merged, or take InProcessEngine."
            )
        self._server = VllmServer(
            model_path(module.base_name),
            dtype=module.dtype_name,
            max_model_len=room_on_server(module.roles.peft.config, setup.max_tokens, f"the base {module.base_name}"),
            lora_rank=module.policy_lora.rank if self._form == "adapter" else 0,
            sleeps=self._colocated,
            routing=module.routing_replay == "r3",
            settings=of_rank(self._settings, setup, colocated=self._colocated),
            log=setup.folder / "logs" / f"vllm-{setup.rank}.log",
        )

    def hand_over(self, module: AgentModule, *, version: int) -> CompletionPolicy:
        """See `RolloutEngine.hand_over`."""
        if self._server is None or self._setup is None or self._check is None:
            raise ConfigError("engine vllm: was not started. RolloutData.setup does so in a training run.")
        server = self._server.wait()
        if self._asleep:
            torch.cuda.empty_cache()  # what the update has left in torch's cache is room that vLLM needs
            server.wake()
            self._asleep = False
        if self._form == "merged":
            self._push_merged(server, module)
        else:
            self._swap_adapter(server, module, version)
            require_arrival(served_adapter(module, module.dtype_name), server.held_adapter(), where="vLLM")
        if module.routing_replay == "r3":
            server.record_routing()
        probe = self._setup.probe_ids
        if len(probe) > 1 and is_whole(self._loss):
            heard = server.api.logprobs(list(probe), model=self._served)
            self._check(heard, trainer_logprobs(module, probe), where="vLLM")
        if self._policy is None or self._policy.model != self._served:
            self._policy = CompletionPolicy(
                [server.completions()],
                self._served,
                module.tokenizer,
                seeded=self._seeded,
                end_ids=end_token_ids(module.tokenizer, module.roles.peft),
                routing=routing_shape(module),
            )
        return self._policy

    def _push_merged(self, server: VllmServer, module: AgentModule) -> None:
        handed, self._loss = Handed(), MergeLoss()
        places = module.roles.adapted_weights()
        server.push_weights(places, handed.watch(module.roles.merged_policy(self._loss)))
        require_arrival(handed.checksums, server.held_weights(), where="vLLM", names=set(places))
        self._loss.require(self._max_merge_lost, where="engine vllm", remedy=WITHOUT_MERGE)

    def _swap_adapter(self, server: VllmServer, module: AgentModule, version: int) -> None:
        self._handed_over += 1
        name, old = f"policy-{version}-{self._handed_over}", self._served
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="medagent-adapter-"))
        folder = self._scratch / name
        save_adapter(module, folder)
        server.api.load_adapter(name, folder)
        self._served = name
        if old != MODEL:
            server.api.unload_adapter(old)
            shutil.rmtree(self._scratch / old)

    def rest(self) -> None:
        """See `RolloutEngine.rest`: sleeps where the GPU is shared."""
        if self._colocated and self._server is not None and not self._asleep:
            self._server.sleep()
            self._asleep = True

    def metrics(self) -> dict[str, float]:
        """See `RolloutEngine.metrics`."""
        return {**merge_metrics(self._loss), **(self._check.metrics() if self._check else {})}

    def close(self) -> None:
        """See `RolloutEngine.close`."""
        if self._server is not None:
            self._server.close()
            self._server = self._policy = None
        if self._scratch is not None:
            shutil.rmtree(self._scratch)
            self._scratch = None


def of_rank(settings: VllmSettings, setup: EngineSetup, *, colocated: bool) -> VllmSettings:
    """The settings of one rank: where `devices` lists several by ";", its own.

    Colocated without a list, a rank takes the trainer's own GPU.
    """
    if not settings.devices and colocated and setup.device.type == "cuda":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        index = setup.device.index or 0
        return replace(settings, devices=visible.split(",")[index] if visible else str(index))
    if setup.num_ranks > 1 and setup.device.type == "cuda" and ";" not in settings.devices:
        raise ConfigError(
            f"engine vllm: {setup.num_ranks} ranks would start servers on the same GPUs "
            f"({settings.devices or 'all'}). Name one list per rank in settings.devices, such as "
            '"4;5;6;7".'
        )
    if ";" not in settings.devices:
        return settings
    lists = settings.devices.split(";")
    if setup.rank >= len(lists):
        raise ConfigError(
            f"engine vllm: settings.devices names {len(lists)} ranks ({settings.devices}), and this is rank "
            f"{setup.rank}. Name one list per rank."
        )
    return replace(settings, devices=lists[setup.rank])

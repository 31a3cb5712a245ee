"""`rollout.name = hf_cpu`: a sampling server on a CPU, with the sampler of the engine in this process. Imports verl.

Requests that arrive while a batch decodes are decoded together in the next one. Each draws by its own seed, so that a
run samples the tokens that the engine in this process would, whatever came together in a batch.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from factagent.policies.sampling import generate_batch
from factagent.policies.stops import StopStrings

NAME = "hf_cpu"


@dataclass
class _Waiting:
    prompt: list[int]
    parameters: dict[str, Any]
    reply: asyncio.Future[Any]


class Server:
    """One model on a CPU, behind the calls that verl makes to a sampling server."""

    def __init__(self, config: Any, model_config: Any) -> None:
        from transformers import AutoModelForCausalLM
        from verl.utils.config import omega_conf_to_dataclass
        from verl.workers.config import HFModelConfig

        model = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        torch.set_num_threads(1)
        self._config, self._tokenizer = config, model.tokenizer
        self._model = AutoModelForCausalLM.from_pretrained(
            model.local_path, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        self._version: int | None = None
        self._waiting: list[_Waiting] = []
        self._busy = False
        self._stops: dict[tuple[str, ...], StopStrings] = {}

    async def ready(self) -> bool:
        """Whether the model is loaded."""
        return True

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: object
    ) -> TokenOutput:
        """The reply to one prompt."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(list(prompt_ids), sampling_params, reply))
        if not self._busy:
            self._busy = True
            asyncio.get_running_loop().create_task(self._decode_all())
        sample = await reply
        return TokenOutput(
            token_ids=list(sample.response_ids),
            log_probs=list(sample.logprobs),
            stop_reason="completed",
            extra_fields={"global_steps": self._version},
        )

    async def load_weights(self, weights: dict[str, torch.Tensor], version: int | None) -> None:
        """Take the weights of a training step.

        Raises:
            RuntimeError: a tensor has no place in the model.
        """
        named = {name: tensor.float() for name, tensor in weights.items()}
        unexpected = self._model.load_state_dict(named, strict=False).unexpected_keys
        if unexpected:
            raise RuntimeError(f"weights with no place in the model: {', '.join(unexpected[:3])}")
        self._version = version

    async def idle(self, *_: object, **__: object) -> None:
        """What a GPU server does to share its memory; nothing here."""

    wake_up = sleep = abort_all_requests = resume_generation = idle
    clear_kv_cache = release_kv_cache = resume_kv_cache = start_profile = stop_profile = idle

    async def _decode_all(self) -> None:
        await asyncio.sleep(0)  # let requests that came together be decoded together
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await asyncio.to_thread(self._decode, batch, asyncio.get_running_loop())
        finally:
            self._busy = False

    def _decode(self, batch: list[_Waiting], loop: asyncio.AbstractEventLoop) -> None:
        for temperature in sorted({float(one.parameters["temperature"]) for one in batch}):
            part = [one for one in batch if float(one.parameters["temperature"]) == temperature]
            samples: list[Any]
            try:
                samples = self._sample(part, temperature)
            # A reply that never comes would hang the run: whatever went wrong belongs to those who wait.
            except Exception as error:  # noqa: BLE001
                samples = [error] * len(part)
            for one, sample in zip(part, samples, strict=True):
                loop.call_soon_threadsafe(_settle, one.reply, sample)

    def _sample(self, batch: list[_Waiting], temperature: float) -> list[Any]:
        most = max(one.parameters["max_tokens"] for one in batch)
        draws = [np.random.Generator(np.random.Philox(one.parameters["seed"])).random(most) for one in batch]
        return generate_batch(
            self._model,
            [one.prompt for one in batch],
            np.stack(draws),
            temperature=temperature,
            top_p=batch[0].parameters["top_p"],
            max_new_tokens=most,
            stop_ids=batch[0].parameters["stop_token_ids"],
            pad_id=self._tokenizer.pad_token_id or 0,
            stop_strings=[self._stops_of(tuple(one.parameters.get("stop", ()))) for one in batch],
        )

    def _stops_of(self, stop: tuple[str, ...]) -> StopStrings | None:
        if not stop:
            return None
        if stop not in self._stops:
            self._stops[stop] = StopStrings(self._tokenizer, stop)
        return self._stops[stop]


def _settle(reply: asyncio.Future[Any], outcome: Any) -> None:
    """Answer whoever waits; an episode that ran out of time waits no more."""
    if reply.done():
        return
    if isinstance(outcome, Exception):
        reply.set_exception(outcome)
    else:
        reply.set_result(outcome)


def _server_name(replica: int) -> str:
    return f"{NAME}_{ray.get_runtime_context().get_job_id()}_{replica}"


class Replica(RolloutReplica):  # type: ignore[misc]
    """Starts one `Server` as a Ray actor."""

    async def launch_servers(self) -> None:
        """See `RolloutReplica`."""
        server = ray.remote(Server).options(
            name=_server_name(self.replica_rank), num_cpus=0, max_concurrency=self.max_concurrency
        )
        handle = server.remote(self.config, self.model_config)
        await handle.ready.remote()
        self.servers = [handle]
        self._server_handle, self._server_address = handle, f"{NAME}:{self.replica_rank}"


class Sender(BaseRollout):  # type: ignore[misc]
    """The side of the training processes: hands each step's weights to the server of its replica."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        size, rank = self.config.tensor_model_parallel_size * self.config.data_parallel_size, int(os.environ["RANK"])
        self._replica = rank // size if replica_rank == -1 else replica_rank
        self._leads = rank % size == 0

    async def resume(self, tags: list[str]) -> None:
        """Nothing was released."""

    async def release(self) -> None:
        """Nothing to release."""

    @torch.no_grad()
    async def update_weights(
        self, weights: Iterator[tuple[str, torch.Tensor]], global_steps: int | None = None, **_: object
    ) -> None:
        """Send the weights; every rank iterates, since gathering a tensor takes all of them."""
        named = {name: tensor.detach().cpu().clone() for name, tensor in weights}
        if self._leads:
            await ray.get_actor(_server_name(self._replica)).load_weights.remote(named, global_steps)


RolloutReplicaRegistry.register(NAME, lambda: Replica)
_ROLLOUT_REGISTRY[(NAME, "async")] = f"{__name__}.Sender"

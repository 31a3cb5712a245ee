"""One batch of samples and the numbers that an engine makes of it; imported by the test and run by each rank.

python objective_case.py MODEL     as one of several ranks (RANK, MASTER_ADDR, MASTER_PORT): all cases on verl's engine
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from factagent.evaluation.local import model_path
from factagent.train.config import LearnerConfig, RunConfig
from factagent.train.forward import masked_logits, token_logprobs
from factagent.train.loss import LossConfig
from factagent.train.samples import Sample, collate

RANKS = 2
TEMPERATURE = 0.7
PARTS = ("loss", "loss_policy", "loss_kl", "loss_entropy", "loss_llds", "grad_norm")


@dataclass(frozen=True)
class Case:
    """What the batch is like, and how it is trained on."""

    append: bool = False
    learner: dict[str, Any] = field(default_factory=dict)

    def config(self, model: Path) -> RunConfig:
        learner = {"learning_rate": 1e-3, "kl_coef": 0.05, "token_budget": 256, "precision": "fp32"}
        return RunConfig.model_validate(
            {
                "model": {"path": str(model)},
                "rollout": {
                    "temperature": TEMPERATURE,
                    "max_prompt_tokens": 64,
                    "max_new_tokens": 64,
                    "precision": "fp32",
                },
                "learner": learner | self.learner,
                "schedule": {"questions_per_step": 5},
                "cluster": {"device": "cpu", "gpus_per_node": RANKS},
            }
        )


CASES = {
    "steps": Case(),
    "trajectories": Case(append=True),
    "several updates": Case(learner={"updates_per_batch": 3, "warmup_steps": 4}),
    "step ratio": Case(learner={"ratio": "step", "kl_coef": 0.0}),
    "token mean": Case(append=True, learner={"aggregation": "token-mean", "updates_per_batch": 2}),
    "entropy and llds": Case(learner={"entropy_coef": 0.01, "llds_coef": 0.2, "updates_per_batch": 2}),
}


def write_model(directory: Path) -> None:
    """A small Qwen2 of random weights, whose gradients are of the order of 1, with the tiny policy's tokenizer."""
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(3)
    config = Qwen2Config(vocab_size=512, num_key_value_heads=2, max_position_embeddings=256, **sizes)
    Qwen2ForCausalLM(config).save_pretrained(directory)
    AutoTokenizer.from_pretrained(model_path("tiny")).save_pretrained(directory)


def load_model(directory: Path) -> Any:
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def reference_of(model: Any) -> Any:
    """The same model, some way off, so that the KL term has a gradient."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model


def logprobs(model: Any, sample: Sample) -> np.ndarray[Any, Any]:
    """Log-probabilities of the loss tokens of a row, zero elsewhere."""
    batch = collate([sample])
    with torch.no_grad():
        values = token_logprobs(masked_logits(model, batch, "fp32"), batch, TEMPERATURE)
    out = np.zeros(len(sample.response_ids))
    out[sample.loss_mask] = values.double().numpy()
    return out


def samples_of(case: Case, directory: Path) -> list[Sample]:
    """Five groups of uneven size; steps of uneven length; advantages of both signs; an old policy some way off."""
    generator = np.random.default_rng(11)
    model, samples = load_model(directory), []
    for group in range(5):
        for member in range(2 + group % 2):
            for _ in range(1 if case.append else 1 + int(generator.integers(3))):
                steps = 1 + int(generator.integers(3)) if case.append else 1
                mask: list[int] = []
                for step in range(steps):
                    mask += [0] * int(generator.integers(1, 6)) if step else []
                    mask += [1] * int(generator.integers(2, 12))
                loss = np.array(mask, bool)
                starts = np.flatnonzero(np.diff([0, *mask]) == 1)
                ids = np.where(loss, np.searchsorted(starts, np.arange(len(mask)), side="right") - 1, -1)
                values = generator.normal(size=steps)
                prompt = generator.integers(20, 500, int(generator.integers(4, 40)))
                response = generator.integers(20, 500, len(mask))
                advantages = np.where(loss, values[np.maximum(ids, 0)], 0.0)
                row = Sample(prompt, response, loss, np.zeros(len(mask)), advantages, group, ids, member=member)
                old = logprobs(model, row) + np.where(loss, generator.normal(size=len(mask)) * 0.15, 0.0)
                samples.append(Sample(prompt, response, loss, old, advantages, group, ids, member=member))
    return samples


def local_numbers(case: Case, model: Path) -> dict[str, float]:
    """What the engine in this process makes of the batch."""
    from factagent.train.learner import Learner

    config: LearnerConfig = case.config(model).learner
    learner = Learner(load_model(model), config, TEMPERATURE, reference_of(load_model(model)))
    report = learner.update(samples_of(case, model), 1)
    return {name: report.metrics[name] for name in PARTS}


def verl_numbers(case: Case, directory: Path, rank: int) -> dict[str, float]:
    """What verl's engine makes of it on this rank, of `RANKS`."""
    from tensordict import NonTensorData
    from verl.utils import tensordict_utils as tu
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import TrainingWorkerConfig
    from verl.workers.engine_workers import TrainingWorker

    from factagent.distributed.launch import verl_config_of
    from factagent.distributed.loss import weighted_loss
    from factagent.distributed.overrides import overrides_of
    from factagent.distributed.trainer import _learner_metrics

    composed = verl_config_of(overrides_of(case.config(directory), Path("run")))
    actor = omega_conf_to_dataclass(composed.actor_rollout_ref.actor)
    model = actor.model_config = omega_conf_to_dataclass(composed.actor_rollout_ref.model)
    actor.optim.total_training_steps = 10
    settings = TrainingWorkerConfig(
        model_type="language_model",
        model_config=model,
        engine_config=actor.engine,
        optimizer_config=actor.optim,
        checkpoint_config=actor.checkpoint,
    )
    settings.engine_config.use_dynamic_bsz = True
    settings.engine_config.max_token_len_per_gpu = actor.ppo_max_token_len_per_gpu
    worker = TrainingWorker(config=settings)
    worker.reset()
    learner = case.config(directory).learner
    loss = LossConfig(**{name: getattr(learner, name) for name in LossConfig.__dataclass_fields__})
    worker.set_loss_fn(partial(weighted_loss, loss))
    worker.engine.lr_scheduler.step()  # the batch is the second one, as `local_numbers` says
    data, rows = shard(case, directory, rank)
    tu.assign_non_tensor(
        data,
        temperature=TEMPERATURE,
        mini_batch_size=rows * RANKS,
        epochs=1,
        seed=1,
        dataloader_kwargs=NonTensorData({"shuffle": False}),
        calculate_entropy=learner.entropy_coef > 0,
    )
    output = worker.train_mini_batch(data)
    metrics = _learner_metrics(tu.get(output, "metrics"))
    return {name: metrics[name] for name in PARTS}


def shard(case: Case, directory: Path, rank: int) -> tuple[Any, int]:
    """This rank's rows as the trainer lays them out, rows without loss in the empty places; and rows a mini-batch."""
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    from factagent.distributed.rows import lay_out, rows_of, share_of_group

    samples = samples_of(case, directory)
    reference = reference_of(load_model(directory))
    updates = case.config(directory).learner.updates_per_batch
    layout = lay_out([s.group for s in samples], [s.length for s in samples], RANKS, updates)
    fields: list[dict[str, Any]] = []
    tags: list[dict[str, Any]] = []
    for group in range(5):
        own = [sample for sample in samples if sample.group == group]
        made = rows_of(own, 1, group, [0.0] * 3, case.config(directory).learner.aggregation)
        fields, tags = fields + [row.fields for row in made], tags + [row.tags for row in made]
    for sample, row in zip(samples, fields, strict=True):
        row["old_log_probs"] = row["rollout_log_probs"]
        row["ref_log_prob"] = torch.from_numpy(logprobs(reference, sample)).float()
    share = len(layout.order) // RANKS
    mine = []
    for place in range(rank * share, (rank + 1) * share):
        row = layout.order[place]
        if row is None:
            mine.append({name: _added(name, value) for name, value in fields[0].items()})
        else:
            part = [
                tags[other]
                for other, p in zip(layout.order, layout.part, strict=True)
                if p == layout.part[place] and other is not None
            ]
            scale = share_of_group(case.config(directory).learner.aggregation, part)[samples[row].group]
            mine.append(fields[row] | {"token_weights": fields[row]["token_weights"] * scale})
    return list_of_dict_to_tensordict(mine), share // layout.parts


def _added(name: str, like: Any) -> Any:
    """A field of a row that fills up: three tokens of prompt, one of response, no loss."""
    if not isinstance(like, torch.Tensor):
        return 0
    length = {"prompts": 3, "input_ids": 4, "position_ids": 4}.get(name, 1)
    filled = torch.zeros(length, dtype=like.dtype)
    if name == "position_ids":
        return torch.arange(4)
    return filled + 7 if name in ("prompts", "responses", "input_ids") else filled


def main() -> None:
    """One rank."""
    import os

    import torch.distributed

    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
    numbers = {name: verl_numbers(case, Path(sys.argv[1]), rank) for name, case in CASES.items()}
    if rank == 0:
        print("NUMBERS " + json.dumps(numbers), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

"""One side of `step.py`: steps of TRL's GRPOTrainer, one whenever a line arrives on standard input.

It runs in the virtual environment of TRL, so it imports nothing of ours. Its argument is a JSON file that holds
the model, the prompts in order and the settings; each step is answered by a line of JSON: seconds by phase, tokens.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The reward of `step.reward`."""
    return [sum(ids) % 7 / 7 for ids in completion_ids]


class TimedTrainer(GRPOTrainer):
    """GRPOTrainer that notes how long it samples and rewards, and how many tokens it reads and samples."""

    def begin(self) -> None:
        """A step begins."""
        self.noted = {"rollout": 0.0, "credit": 0.0}
        self.tokens = {"trained": 0, "read": 0, "rows": 0}
        self.cpu = time.process_time()
        self.began = time.perf_counter()

    def end(self) -> dict[str, Any]:
        """The step is over; what is neither sampling nor reward is learning (the reference's pass included)."""
        learn = time.perf_counter() - self.began - sum(self.noted.values())
        cpu = time.process_time() - self.cpu
        return {"seconds": self.noted | {"learn": learn}, "cpu": cpu, **self.tokens}

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        result = super()._generate(*args, **kwargs)
        self.noted["rollout"] += time.perf_counter() - began
        return result

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        result = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        self.tokens["read"] += sum(map(len, prompt_ids))
        self.tokens["trained"] += sum(map(len, result[0]))
        self.tokens["rows"] += len(result[0])
        return result

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        result = super()._calculate_rewards(*args, **kwargs)
        self.noted["credit"] += time.perf_counter() - began
        return result


class Turns(TrainerCallback):
    """Waits for a line before each step and answers after it."""

    def __init__(self, trainer: TimedTrainer, replies: TextIO) -> None:
        self.trainer = trainer
        self.replies = replies

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Wait until it is this side's turn."""
        if not sys.stdin.readline():
            sys.exit(0)
        self.trainer.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Report the step."""
        reply(self.replies, self.trainer.end())


def reply(replies: TextIO, row: dict[str, Any]) -> None:
    """One line of JSON."""
    replies.write(json.dumps(row) + "\n")
    replies.flush()


def arguments(spec: dict[str, Any], directory: str) -> GRPOConfig:
    """TRL's settings; what differs from its defaults for speed (no gradient checkpointing) is in its favour."""
    return GRPOConfig(
        output_dir=directory,
        use_cpu=True,
        bf16=spec["precision"] == "bf16",
        gradient_checkpointing=False,
        max_steps=spec["steps"],
        per_device_train_batch_size=spec["rows"],
        gradient_accumulation_steps=spec["batch_rows"] // spec["rows"],
        num_generations=spec["generations"],
        max_completion_length=spec["max_new_tokens"],
        temperature=spec["temperature"],
        beta=spec["beta"],
        epsilon=spec["epsilon"],
        learning_rate=spec["learning_rate"],
        lr_scheduler_type="constant",
        max_grad_norm=spec["grad_clip"],
        loss_type="grpo",
        shuffle_dataset=False,
        model_init_kwargs={"dtype": "float32"},
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def main() -> None:
    """Build the trainer, say that it is ready, take steps."""
    spec = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    # What TRL prints goes to standard error; standard output carries the replies alone.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(spec["threads"])
    tokenizer = AutoTokenizer.from_pretrained(spec["model"], padding_side="left")
    with tempfile.TemporaryDirectory() as directory:
        trainer = TimedTrainer(
            model=spec["model"],
            reward_funcs=reward,
            args=arguments(spec, directory),
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in spec["prompts"]]),
            processing_class=tokenizer,
        )
        trainer.add_callback(Turns(trainer, replies))
        versions = {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
        reply(replies, versions | {"threads": torch.get_num_threads()})
        trainer.train()


if __name__ == "__main__":
    main()

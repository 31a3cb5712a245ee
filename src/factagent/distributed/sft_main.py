"""One rank of verl's SFT trainer, as torchrun starts it; its arguments are verl's overrides. Imports verl."""

from __future__ import annotations

import sys

import torch.distributed
from hydra import compose, initialize_config_module
from verl.trainer.sft_trainer import SFTTrainer, run_sft


def main(overrides: list[str]) -> None:
    """Train to the end, or on from the last checkpoint."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("sft_trainer_engine", overrides=overrides)
    if config.trainer.device != "cpu":
        run_sft(config)
        return
    # verl would name one backend for the CPU and one for the device, which here is the same.
    torch.distributed.init_process_group("gloo")
    SFTTrainer(config=config).fit()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])

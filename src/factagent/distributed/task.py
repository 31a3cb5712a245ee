"""The Ray actor that holds the trainer: verl's task runner, with our trainer and manager in it. Imports verl."""

from __future__ import annotations

from typing import Any

import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from verl.utils.logging_utils import configure_verl_logging

from factagent.distributed.trainer import ClusterTrainer
from factagent.distributed.worker import GroupManager


class TrainingTask:
    """Runs one training from start to end, on whichever node Ray puts it."""

    def run(self, config: DictConfig) -> None:
        """Train; the run directory has the summary when this returns."""
        configure_verl_logging()
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        tq.init(config.transfer_queue)
        trainer: ClusterTrainer | None = None
        done = False
        try:
            trainer = ClusterTrainer(config)
            trainer.init()
            trainer.fit(self._manager(config, trainer))
            trainer.finish()
            done = True
        finally:
            if trainer is not None:
                tracking: Any = getattr(trainer, "logger", None)
                if tracking is not None:
                    tracking.finish(exit_code=0 if done else 1)
                trainer.close()
            tq.close()

    def _manager(self, config: DictConfig, trainer: ClusterTrainer) -> GroupManager:
        manager: GroupManager = GroupManager.create(
            config=config,
            llm_client=trainer.get_llm_client(),
            teacher_client=trainer.get_teacher_client(),
            reward_loop_worker_handles=trainer.get_reward_handles(),
        )
        return manager

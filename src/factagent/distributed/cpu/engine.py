"""verl's FSDP2 engine, registered for the CPU. Imports verl."""

from __future__ import annotations

from typing import Any

from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead


@EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cpu")
class CpuEngine(FSDPEngineWithLMHead):  # type: ignore[misc]
    """The engine as it is, but for a reference model that is not sent to pinned host memory (it is there already)."""

    def _build_fsdp_module(self, module: Any) -> Any:
        config, forward_only = self.engine_config, self.engine_config.forward_only
        object.__setattr__(config, "forward_only", False)
        try:
            return super()._build_fsdp_module(module)
        finally:
            object.__setattr__(config, "forward_only", forward_only)

"""The samples of a cold start as the data set of verl's SFT trainer: tokens as they are, nothing encoded again.

Each row of the file is a JSON object with `prompt_ids`, `response_ids` and `loss_mask`. Knows torch, not verl.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from factagent.records import dumps, loads
from factagent.run_files import replace
from factagent.train.samples import Sample


def write_rows(path: Path, samples: Sequence[Sample]) -> None:
    """Write the file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = (
        {
            "prompt_ids": sample.prompt_ids.tolist(),
            "response_ids": sample.response_ids.tolist(),
            "loss_mask": sample.loss_mask.astype(np.int64).tolist(),
        }
        for sample in samples
    )
    replace(path, b"".join(dumps(row) + b"\n" for row in rows))


class SampleRows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """What verl's SFT trainer loads by name (`data.custom_cls`); its further arguments have nothing left to decide."""

    def __init__(self, parquet_files: Any, tokenizer: Any, config: Any, **_: object) -> None:
        path = Path(parquet_files if isinstance(parquet_files, str) else parquet_files[0])
        self._rows = [loads(line) for line in path.read_bytes().splitlines()]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self._rows[index]
        prompt, response = row["prompt_ids"], row["response_ids"]
        return {
            "input_ids": torch.tensor(prompt + response),
            "position_ids": torch.arange(len(prompt) + len(response)),
            "loss_mask": torch.tensor([0] * len(prompt) + row["loss_mask"]),
        }

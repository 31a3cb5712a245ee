"""The objective of `train.loss` as a loss function of verl's workers: the same arithmetic on the same weights.

verl's own losses know token means and row means. The method's objective is a mean over the steps of a group, so each
token brings its weight (`rows`), and the loss is a plain weighted sum over all micro-batches and ranks. verl averages
gradients over ranks, hence the factor `dp_size`. Imports verl.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from factagent.train.loss import LossConfig, LossStats, policy_loss

PREFIX = "factagent/"
"""Of the metrics that carry the sums of `LossStats` from the workers to the trainer."""


def weighted_loss(
    config: LossConfig, model_output: dict[str, Any], data: Any, dp_group: object = None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """A micro-batch's part of the objective, times the number of ranks.

    Args:
        config: settings of the objective.
        model_output: `log_probs` (and `entropy`, where asked for) of all tokens, packed.
        data: the micro-batch with the fields of `rows.fields_of`, `old_log_probs`, and `ref_log_prob` under a KL term.
        dp_group: unused; part of verl's contract.

    Returns:
        The loss, and sums of its statistics that verl adds up over micro-batches and averages over ranks.
    """
    ranks = int(data["dp_size"])
    logprobs = no_padding_2_padding(model_output["log_probs"], data)
    entropy = model_output.get("entropy")
    names = ["response_mask", "old_log_probs", "advantages", "token_weights", "step_ids"]
    has_reference = "ref_log_prob" in data and config.kl_coef > 0
    padded = data.select(*names, *(["ref_log_prob"] if has_reference else [])).to_padded_tensor()
    mask = padded["response_mask"].bool()
    rows = torch.arange(len(mask), device=mask.device)[:, None].expand_as(mask)
    loss, stats = policy_loss(
        logprobs,
        padded["old_log_probs"],
        padded["ref_log_prob"] if has_reference else None,
        padded["advantages"],
        mask,
        padded["token_weights"],
        # Unique in the micro-batch: steps are counted from 0 in each row.
        padded["step_ids"] + rows * mask.shape[1],
        config,
        sample_ids=rows,
        entropy=None if entropy is None else no_padding_2_padding(entropy, data),
        n_loss_tokens=int(data["batch_num_tokens"]),
    )
    return loss * ranks, _metrics(stats, ranks)


def _metrics(stats: LossStats, ranks: int) -> dict[str, Metric]:
    sums = {
        f"{PREFIX}{name}": Metric(AggregationType.SUM, getattr(stats, name) * ranks)
        for name in LossStats.__dataclass_fields__
        if name != "ratio_max"
    }
    return {**sums, f"{PREFIX}ratio_max": Metric(AggregationType.MAX, stats.ratio_max)}


def stats_of(metrics: dict[str, Any]) -> list[LossStats]:
    """The statistics of each optimiser step of a call, from the metrics that verl's worker returned."""
    columns = {name: metrics[f"{PREFIX}{name}"] for name in LossStats.__dataclass_fields__}
    steps = max(len(column) for column in columns.values())
    return [LossStats(**{name: float(column[i]) for name, column in columns.items()}) for i in range(steps)]

"""Bar: how well each credit option separates gold steps from others, on rollouts of the cold-started policy.

One training step's rollouts are sampled (no evaluation; what the update does to the weights is not looked at), then
`factagent credit-quality` recomputes every option on them, as they are and rewritten by adversaries.

    python benchmarks/credit_quality.py --out runs/credit-quality --questions 240
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Sample once, then judge; the rollouts are kept and used again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/learning.toml")
    parser.add_argument("--out", type=Path, default=Path("runs/credit-quality"))
    parser.add_argument("--questions", type=int, default=240)
    parser.add_argument("--encoder", default="minilm")
    arguments = parser.parse_args()
    factagent = [sys.executable, "-m", "factagent.cli"]
    if not (arguments.out / "summary.json").exists():
        settings = (f"questions_per_step={arguments.questions}", "eval_every=0", "save_trajectories_every=1")
        overrides = [part for setting in settings for part in ("--set", f"schedule.{setting}")]
        run = ["train", "--config", arguments.config, "--out", str(arguments.out), "--steps", "1", *overrides]
        subprocess.run([*factagent, *run], check=True, stdout=subprocess.DEVNULL)
    with (arguments.out / "credit-quality.jsonl").open("wb") as table:
        judge = ["credit-quality", str(arguments.out), "--encoder", arguments.encoder]
        subprocess.run([*factagent, *judge], check=True, stdout=table)


if __name__ == "__main__":
    main()

"""Checkpoints under `kill -9` and failing disks (reliability.md R3): never an unreadable latest, at most one stale tmp.

`FACTAGENT_KILLS` sets the number of kills (default 30; the target is 200).
"""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from factagent.train import checkpoint as module
from factagent.train.checkpoint import checkpoint_steps, latest, load_checkpoint, save_checkpoint

KILLS = int(os.environ.get("FACTAGENT_KILLS", "30"))

# One process imports torch; its forks save as fast as they can until killed, and tell the step after each save.
FORKER = textwrap.dedent(
    """
    import os, sys, pathlib, torch
    from factagent.train.checkpoint import save_checkpoint, latest
    torch.set_num_threads(1)
    directory = pathlib.Path(sys.argv[1])
    for command in sys.stdin:
        child = os.fork()
        if child == 0:
            newest = latest(directory)
            step = int(newest.name[5:]) + 1 if newest else 1
            weights = {"w": torch.arange(200_000.0)}
            parameter = torch.nn.Parameter(torch.ones(50_000))
            optimizer = torch.optim.AdamW([parameter])
            parameter.sum().backward()
            optimizer.step()
            while True:
                save_checkpoint(directory, step, weights=weights, optimizer=optimizer, state={"step": step})
                os.write(1, f"saved {step}\\n".encode())
                step += 1
        os.write(1, f"child {child}\\n".encode())
        os.waitpid(child, 0)
        os.write(1, b"dead\\n")
    """
)


def test_kill_9_at_random_instants_never_loses_a_finished_checkpoint(tmp_path):
    rng = random.Random(20)
    forker = subprocess.Popen(
        [sys.executable, "-c", FORKER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    acknowledged, stale = 0, 0
    try:
        for _ in range(KILLS):
            forker.stdin.write("go\n")
            forker.stdin.flush()
            child, saved = 0, 0
            wanted, pause = rng.randrange(3), rng.random() * 0.03
            while not child or saved < wanted:
                word, number = forker.stdout.readline().split()
                child, saved = (int(number), saved) if word == "child" else (child, saved + 1)
                acknowledged = max(acknowledged, int(number) if word == "saved" else 0)
            signal.sigtimedwait([], pause)
            os.kill(child, signal.SIGKILL)
            while (line := forker.stdout.readline()) != "dead\n":
                acknowledged = max(acknowledged, int(line.split()[1]))
            temporaries = [entry.name for entry in tmp_path.iterdir() if entry.name.endswith(".tmp")]
            assert len(temporaries) <= 1, temporaries
            stale += len(temporaries)
            newest = latest(tmp_path)
            if acknowledged or newest:
                checkpoint = load_checkpoint(newest)
                assert checkpoint.step >= acknowledged
                assert checkpoint.state == {"step": checkpoint.step}
            for step in checkpoint_steps(tmp_path):
                load_checkpoint(tmp_path / f"step-{step}")
    finally:
        forker.stdin.close()
        forker.wait(10)
        forker.stdout.close()
    assert acknowledged >= KILLS // 3, "the loop must have finished saves, else it proves nothing"
    assert stale >= 1, "no kill hit a save in progress, so the test proved nothing"


def save(directory: Path, step: int) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter])
    parameter.sum().backward()
    optimizer.step()
    save_checkpoint(
        directory, step, weights={"w": torch.full((4,), float(step))}, optimizer=optimizer,
        state={"step": step}, extra_files={"config.json": b"{}"}, keep_last=1,
    )  # fmt: skip


CALLS = ("open", "write", "fsync", "rename", "close")


def count_calls(monkeypatch, directory: Path) -> dict[str, int]:
    counts = dict.fromkeys(CALLS, 0)
    with monkeypatch.context() as patch:
        for name in CALLS:
            real = getattr(os, name)

            def counted(*args, _name=name, _real=real, **kwargs):
                counts[_name] += 1
                return _real(*args, **kwargs)

            patch.setattr(module.os, name, counted)
        save(directory, 2)
    return counts


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_an_error_at_any_call_leaves_the_latest_whole(tmp_path, monkeypatch, code):
    save(tmp_path / "count", 1)
    counts = count_calls(monkeypatch, tmp_path / "count")
    assert counts["write"] >= 5
    assert counts["rename"] == 2
    assert counts["fsync"] >= counts["write"] + 2
    outcomes = set()
    for name in ("open", "write", "fsync", "rename"):
        for nth in range(counts[name]):
            directory = tmp_path / f"{name}-{nth}"
            save(directory, 1)
            left = [nth]
            real = getattr(os, name)

            def failing(*args, _real=real, _left=left, _name=name, **kwargs):
                _left[0] -= 1
                if _left[0] == -1:
                    raise OSError(code, f"injected at {_name}")
                return _real(*args, **kwargs)

            with monkeypatch.context() as patch:
                patch.setattr(module.os, name, failing)
                with pytest.raises(OSError, match="injected"):
                    save(directory, 2)
            assert left[0] < 0
            newest = load_checkpoint(latest(directory))
            assert newest.state == {"step": newest.step}
            assert newest.weights()["w"].tolist() == [float(newest.step)] * 4
            outcomes.add(newest.step)
            assert sum(entry.name.endswith(".tmp") for entry in directory.iterdir()) <= 1
            save(directory, 3)
            assert load_checkpoint(latest(directory)).step == 3
            assert not [entry.name for entry in directory.iterdir() if entry.name.endswith(".tmp")]
    assert outcomes == {1, 2}, "errors before the rename keep step 1, errors after it keep step 2"


def test_short_writes_are_completed(tmp_path, monkeypatch):
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "write", lambda handle, view: real(handle, view[:7]))
        save(tmp_path, 1)
    assert load_checkpoint(latest(tmp_path)).weights()["w"].tolist() == [1.0] * 4


def test_everything_is_synced_before_the_rename_and_the_parent_after(tmp_path, monkeypatch):
    events: list[tuple[str, str]] = []
    real_sync, real_rename = os.fsync, os.rename

    def sync(handle):
        events.append(("sync", str(Path(f"/proc/self/fd/{handle}").readlink())))
        real_sync(handle)

    def rename(source, target):
        events.append(("rename", str(source)))
        real_rename(source, target)

    monkeypatch.setattr(module.os, "fsync", sync)
    monkeypatch.setattr(module.os, "rename", rename)
    save(tmp_path, 1)
    temporary = tmp_path / "step-1.tmp"
    position = events.index(("rename", str(temporary)))
    before = {name for kind, name in events[:position] if kind == "sync"}
    files = (
        "model.safetensors",
        "optimizer.safetensors",
        "optimizer.json",
        "state.json",
        "config.json",
        "manifest.json",
    )
    assert {str(temporary / name) for name in files} | {str(temporary)} == before
    assert events[position + 1] == ("sync", str(tmp_path))
    written = [Path(name).name for kind, name in events[:position] if kind == "sync" and name != str(temporary)]
    assert written[-1] == "manifest.json"


def test_files_of_a_callable_are_synced_too(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(
        module.os, "fsync", lambda handle: synced.append(Path(f"/proc/self/fd/{handle}").readlink().name)
    )

    def write_model(directory):
        (directory / "model.safetensors").write_bytes(b"weights")

    save_checkpoint(tmp_path, 1, weights=write_model)
    assert "model.safetensors" in synced
    assert synced.index("model.safetensors") < synced.index("manifest.json")


def test_a_full_disk_is_reported_by_the_system_itself(tmp_path):
    """No injection: a file-size limit makes the kernel refuse the write."""
    save(tmp_path, 1)
    code = textwrap.dedent(
        """
        import pathlib, resource, sys, torch
        from factagent.train.checkpoint import save_checkpoint
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        try:
            save_checkpoint(pathlib.Path(sys.argv[1]), 2, weights={"w": torch.ones(100_000)})
        except OSError as error:
            print("refused", error.errno)
        """
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert result.stdout == f"refused {errno.EFBIG}\n"
    assert load_checkpoint(latest(tmp_path)).step == 1

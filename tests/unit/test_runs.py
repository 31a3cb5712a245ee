"""The run directory: growing files, torn tails, cutting back, the lock."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
import zstandard

from factagent import runs as module
from factagent.errors import DataError, UsageError
from factagent.records import dumps, group_to_record
from factagent.runs import RunDirectory, TornTailWarning, group_steps, metrics_digest, read_groups, read_metrics
from factagent.types import Answer, Generation, Group, Question, Step, Trajectory


def group(name, size=3):
    steps = (Step(Answer(name), Generation(name * size, (1, 2), (3, 4), (-0.25, -1e-7))),)
    return Group(Question(name, "?", ("a",)), (Trajectory(steps), Trajectory(steps, member=1)))


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "run", "seed = 1\n")


def fill(run, first, last):
    for step in range(first, last + 1):
        for name in ("a", "b"):
            run.log_group(step, group(f"{name}{step}"), {"baseline": step / 3})
        run.log_metrics({"step": step, "reward": step / 3, "seconds": {"all": os.urandom(1)[0] / 7}})


def test_create_and_open(tmp_path):
    run = RunDirectory.create(tmp_path / "run", "seed = 1\n")
    assert run.config_path.read_text() == "seed = 1\n"
    assert sorted(entry.name for entry in run.path.iterdir()) == ["checkpoints", "config.toml", "trajectories"]
    with pytest.raises(UsageError, match="holds a run already; resume it"):
        RunDirectory.create(run.path, "seed = 2\n")
    assert RunDirectory.open(run.path).config_path.read_text() == "seed = 1\n"
    with pytest.raises(UsageError, match=r"is no run directory: it has no config\.toml"):
        RunDirectory.open(tmp_path)


def test_a_file_in_the_way_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_text("kept")
    for wanted, reason in ((path, "it is a file"), (path / "below", "Not a directory")):
        with pytest.raises(UsageError, match=f"{wanted} cannot be a directory for output: {reason}"):
            RunDirectory.create(wanted, "seed = 1\n")
    with pytest.raises(UsageError, match="it is a file; choose another one"), RunDirectory(path).lock():
        pass
    assert path.read_text() == "kept"


def test_what_is_written_is_read(run):
    fill(run, 0, 2)
    rows = list(read_groups(run.path))
    assert [(step, one.question.id, credit) for step, one, credit in rows] == [
        (step, f"{name}{step}", {"baseline": step / 3}) for step in range(3) for name in ("a", "b")
    ]
    assert rows[3][1] == group("b1")
    assert [one.question.id for _, one, _ in read_groups(run.path, 1)] == ["a1", "b1"]
    assert list(read_groups(run.path, 9)) == []
    assert group_steps(run.path) == [0, 1, 2]
    assert [(row["step"], row["reward"]) for row in read_metrics(run.path)] == [(0, 0.0), (1, 1 / 3), (2, 2 / 3)]
    assert read_metrics(run.path.parent) == []


def test_the_standard_tool_reads_the_same_lines(run):
    fill(run, 1, 1)
    with (run.trajectories / "step-000001.jsonl.zst").open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
    assert text.count(b"\n") == 2
    assert text.startswith(b'{"schema":1,"step":1,"question":{"id":"a1"')


def test_metrics_are_exact_and_non_finite_becomes_null(run):
    run.log_metrics(
        {"step": 1, "x": np.float32(0.1), "y": float("nan"), "z": [float("inf"), np.int64(3)], "w": np.float32("nan")}
    )
    assert run.metrics_path.read_bytes() == b'{"step":1,"x":0.10000000149011612,"y":null,"z":[null,3],"w":null}\n'


def test_steps_must_grow(run):
    run.log_metrics({"step": 3})
    for again in (run, RunDirectory.open(run.path)):
        with pytest.raises(UsageError, match="holds step 3; truncate_to a step before 3 first"):
            again.log_metrics({"step": 3})
    with pytest.raises(UsageError, match="integer 'step', not None"):
        run.log_metrics({"reward": 1})


@pytest.mark.parametrize("k", range(6))
def test_a_resumed_run_ends_with_the_files_of_an_uninterrupted_one(tmp_path, k):
    whole = RunDirectory.create(tmp_path / "whole", "")
    fill(whole, 1, 5)
    stopped = RunDirectory.create(tmp_path / "stopped", "")
    fill(stopped, 1, 5)
    stopped.write_summary({"em": 1})
    stopped.write_dev([b"{}\n", b"{}\n"])
    assert stopped.dev_path.read_bytes() == b"{}\n{}\n"
    with stopped.metrics_path.open("ab") as file:
        file.write(b'{"step":6,"rew')
    resumed = RunDirectory.open(stopped.path)
    resumed.truncate_to(k)
    assert [row["step"] for row in read_metrics(resumed.path)] == list(range(1, k + 1))
    assert group_steps(resumed.path) == list(range(1, k + 1))
    assert not resumed.summary_path.exists()
    assert not resumed.dev_path.exists()
    fill(resumed, k + 1, 5)
    assert metrics_digest(resumed.path) == metrics_digest(whole.path)
    for path in sorted(whole.trajectories.iterdir()):
        assert path.read_bytes() == (resumed.trajectories / path.name).read_bytes()


def test_the_digest_ignores_seconds_and_nothing_else(tmp_path):
    digests = []
    for index, row in enumerate(
        ({"a": 1, "seconds": {"t": 1}}, {"a": 1, "seconds": {"t": 2}}, {"a": 2, "seconds": {"t": 1}})
    ):
        run = RunDirectory.create(tmp_path / str(index), "")
        run.log_metrics({"step": 1, **row})
        digests.append(metrics_digest(run.path))
    assert digests[0] == digests[1] != digests[2]


def only(record):
    return [str(one.message) for one in record if one.category is TornTailWarning]


def test_every_torn_tail_loses_only_the_tail_with_one_warning(run):
    fill(run, 1, 1)
    path = run.trajectories / "step-000001.jsonl.zst"
    content = path.read_bytes()
    first = len(content) // 2  # both lines are of equal length but for the name
    ends = [after for _, after in module._frames(path)]
    assert ends[1] == len(content)
    assert abs(ends[0] - first) < 5
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            names = [one.question.id for _, one, _ in read_groups(run.path)]
        assert names == ["a1", "b1"][: sum(end <= cut for end in ends)]
        assert len(only(caught)) == (cut not in (0, *ends)), cut


@pytest.mark.parametrize("zeros", [1, 5000, 3_000_000])
def test_zeros_after_a_power_failure_are_a_torn_tail(run, zeros):
    fill(run, 1, 1)
    path = run.trajectories / "step-000001.jsonl.zst"
    with path.open("ab") as file:
        file.write(bytes(zeros))
    with pytest.warns(TornTailWarning) as caught:
        assert len(list(read_groups(run.path))) == 2
    assert len(caught) == 1


def test_appending_after_a_torn_tail_first_cuts_it(run):
    fill(run, 1, 1)
    path = run.trajectories / "step-000001.jsonl.zst"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    again = RunDirectory.open(run.path)
    again.log_group(1, group("b1"), {"baseline": 1 / 3})
    assert path.read_bytes() == whole
    with run.metrics_path.open("ab") as file:
        file.write(b'{"step":2')
    with pytest.warns(TornTailWarning):
        assert len(read_metrics(run.path)) == 1
    again.log_metrics({"step": 2})
    assert [row["step"] for row in read_metrics(run.path)] == [1, 2]


def test_damage_before_the_tail_is_an_error_with_its_place(run):
    fill(run, 1, 2)
    path = run.trajectories / "step-000001.jsonl.zst"
    content = path.read_bytes()
    middle = len(content) // 4
    path.write_bytes(content[:middle] + bytes([content[middle] ^ 0x10]) + content[middle + 1 :])
    with pytest.raises(DataError, match=r"step-000001\.jsonl\.zst:1: "):
        list(read_groups(run.path))
    path.write_bytes(content + bytes(3_000_000) + b"garbage")
    with pytest.raises(DataError, match=r":3: damaged zstd frame at byte"):
        list(read_groups(run.path))
    lean = {key: value for key, value in group_to_record(group("a1")).items() if key != "credit"}
    path.write_bytes(zstandard.compress(dumps(lean)))
    with pytest.raises(DataError, match=r":1: field 'credit': missing"):
        list(read_groups(run.path))
    path.write_bytes(content + b"garbage")
    with pytest.raises(DataError, match=r":3: damaged zstd frame at byte"):
        list(read_groups(run.path))
    path.write_bytes(content + zstandard.compress(b'{"schema":1,"step":1,"credit":null}\n'))
    with pytest.raises(DataError, match=r":3: field 'question': missing"):
        list(read_groups(run.path))
    run.metrics_path.write_bytes(b'{"step":1}\nnonsense\n{"step":3}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: not JSON"):
        read_metrics(run.path)
    run.metrics_path.write_bytes(b'{"step":1}\n{"reward":3}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: field 'step'"):
        read_metrics(run.path)


def test_frames_larger_than_a_read_are_whole(run):
    big = group("x", 2_000_000)
    noise = group(os.urandom(1_500_000).hex(), 1)
    for one in (big, noise, big):
        run.log_group(4, one)
    assert [one for _, one, _ in read_groups(run.path)] == [big, noise, big]


class FullDisk:
    """A disk with room for a few bytes more."""

    def __init__(self):
        self.room = 10
        self.write = os.write

    def __call__(self, handle, view):
        if self.room == 0:
            raise OSError(errno.ENOSPC, "full")
        written = self.write(handle, view[: self.room])
        self.room -= written
        return written


def test_a_full_disk_leaves_no_half_line(run, monkeypatch):
    fill(run, 1, 1)
    before = {path: path.read_bytes() for path in (run.metrics_path, *run.trajectories.iterdir())}
    for log in (lambda: run.log_metrics({"step": 2, "reward": 0.123456789}), lambda: run.log_group(1, group("c1"))):
        with monkeypatch.context() as patch:
            patch.setattr(module.os, "write", FullDisk())
            with pytest.raises(OSError, match="full"):
                log()
    assert before == {path: path.read_bytes() for path in before}
    fill(run, 2, 2)
    assert [row["step"] for row in read_metrics(run.path)] == [1, 2]


def test_summary_is_replaced_whole(run):
    run.write_summary({"em_after": np.float64(0.5), "bad": float("nan")})
    run.write_summary({"em_after": 0.75})
    assert run.summary_path.read_text() == '{\n  "em_after": 0.75\n}\n'
    assert not list(run.path.glob("*.tmp"))


def test_sync_flushes_metrics_and_the_newest_trajectories(run, monkeypatch):
    synced = []
    monkeypatch.setattr(
        module.os, "fsync", lambda handle: synced.append(Path(f"/proc/self/fd/{handle}").readlink().name)
    )
    run.sync()
    assert synced == []
    fill(run, 1, 3)
    run.sync()
    assert synced == ["metrics.jsonl", "step-000003.jsonl.zst"]


HOLD = textwrap.dedent(
    """
    import pathlib, sys, time
    from factagent.runs import RunDirectory
    with RunDirectory(pathlib.Path(sys.argv[1])).lock():
        print("held", flush=True)
        time.sleep(60)
    """
)


def test_a_second_trainer_is_refused_and_a_dead_one_replaced(run):
    with run.lock():
        pass
    assert run.lock_path.read_text() == ""
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(run.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(UsageError, match=f"in use by process {holder.pid} on {socket.gethostname()}") as caught,
            run.lock(),
        ):
            pass
        assert caught.value.exit_code == 2
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    assert run.lock_path.read_text() == f"process {holder.pid} on {socket.gethostname()}\n"
    with run.lock():
        assert run.lock_path.read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"


def test_a_lock_of_another_host_is_respected(run):
    run.lock_path.write_text("process 7 on elsewhere\n")
    with (
        pytest.raises(UsageError, match=r"locked by process 7 on elsewhere; if it is dead, delete .*run\.lock"),
        run.lock(),
    ):
        pass
    assert run.lock_path.read_text() == "process 7 on elsewhere\n"


def test_the_lock_is_freed_after_an_error(run):
    with pytest.raises(RuntimeError, match="boom"), run.lock():
        raise RuntimeError("boom")
    with run.lock():
        assert run.lock_path.read_text()
    assert run.lock_path.read_text() == ""


def test_kill_9_while_logging_loses_nothing_acknowledged(tmp_path):
    code = textwrap.dedent(
        """
        import os, pathlib, sys
        from factagent.runs import RunDirectory
        from factagent.types import Answer, Generation, Group, Question, Step, Trajectory
        run = RunDirectory.create(pathlib.Path(sys.argv[1]), "")
        step = 0
        while True:
            text = os.urandom(20_000).hex()
            run.log_group(1, Group(Question(str(step), "?", ()), (Trajectory((Step(Answer(text)),)),)))
            run.log_metrics({"step": step})
            os.write(1, b"%d\\n" % step)
            step += 1
        """
    )
    for attempt in range(4):
        path = tmp_path / str(attempt)
        writer = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(10 + 7 * attempt):
            last = writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
        last = (writer.stdout.read().splitlines() or [last])[-1]
        writer.wait()
        writer.stdout.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TornTailWarning)
            names = [one.question.id for _, one, _ in read_groups(path)]
            steps = [row["step"] for row in read_metrics(path)]
        assert names[: int(last) + 1] == [str(step) for step in range(int(last) + 1)]
        assert steps[: int(last) + 1] == list(range(int(last) + 1))
        assert len(names) <= int(last) + 2


def test_the_batch_of_a_skipped_update_is_kept_whole_and_cut_with_the_rest(run):
    fill(run, 1, 2)
    run.write_skipped(2, [group("x"), group("y")], [{"baseline": 0.5}, None])
    kept = list(read_groups(run.path, folder="skipped"))
    assert kept == [(2, group("x"), {"baseline": 0.5}), (2, group("y"), None)]
    assert [one.question.id for _, one, _ in read_groups(run.path, step=2)] == ["a2", "b2"]
    run.truncate_to(1)
    assert not list(run.skipped.iterdir())
    assert group_steps(run.path) == [1]

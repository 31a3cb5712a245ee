"""Memory plans: sizes, suggestions, refusals, and what a control group leaves."""

import json
from pathlib import Path

import pytest

from factagent.cli import main
from factagent.errors import ServiceError, UsageError
from factagent.retrieval.dense.approximate_build import ApproximateSettings, build_approximate
from factagent.retrieval.dense.vectors import VectorShards
from factagent.retrieval.free_memory import GIB, free_memory
from factagent.retrieval.plan import KINDS, PROCESS_BYTES, check_memory, commands, need, plan, suggest

WIKI = (21_015_324, 768)


def test_wikipedia_fits_24_gib() -> None:
    for kind in ("ivf-sq8", "ivf-rabitq"):
        assert need(kind, *WIKI).fits(24 * GIB)
    assert not need("exact-bf16", *WIKI).fits(24 * GIB)
    assert need("exact-fp32", *WIKI).memory == 4 * 768 * WIKI[0]
    chosen = suggest(*WIKI, 24 * GIB)
    assert chosen is not None
    assert chosen.kind == "ivf-sq8"


@pytest.mark.parametrize(
    ("memory", "gpu", "kind"),
    [(40, [], "exact-bf16"), (16, [], "ivf-rabitq"), (2, [], None), (8, [80], "exact-bf16"), (8, [24], "ivf-rabitq")],
)
def test_suggestions(memory: int, gpu: list[int], kind: str | None) -> None:
    chosen = suggest(*WIKI, memory * GIB, gpu_memory=[room * GIB for room in gpu])
    assert (chosen and chosen.kind) == kind


def test_disk_counts() -> None:
    assert suggest(*WIKI, 64 * GIB, disk=10 * GIB) is None


def test_codes_are_as_large_as_what_faiss_writes(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    import numpy as np

    rows = np.random.default_rng(0).standard_normal((2000, 64)).astype(np.float16)
    for preset in ("ivf-sq8", "ivf-rabitq"):
        settings = ApproximateSettings(preset, nprobe=1, queries=5)  # type: ignore[arg-type]
        build_approximate(VectorShards([rows]), "v", tmp_path / preset, settings)
        size = sum(path.stat().st_size for path in (tmp_path / preset).iterdir() if path.name != "manifest.json")
        rotation = 64 * 64 * 4 if preset == "ivf-rabitq" else 0
        assert need(preset, 2000, 64).memory == pytest.approx(size - rotation, abs=2500)  # type: ignore[arg-type]


def test_plans_are_ordered_and_refuse_nonsense() -> None:
    needs = plan(*WIKI)
    assert sorted(one.kind for one in needs) == sorted(KINDS)
    assert [one.memory for one in needs] == sorted((one.memory for one in needs), reverse=True)
    assert all(one.source.startswith("extrapolated") for one in needs)
    assert need("bm25", 1_000_000, 768).source == "measured"
    with pytest.raises(UsageError):
        need("bm25", 0, 768)


def test_what_does_not_fit_is_refused_with_a_plan(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ServiceError, match=r"--preset ivf-sq8 .*factagent index plan"):
        check_memory("exact-bf16", *WIKI, free=24 * GIB)
    assert "needs 30.1 GiB of memory, 24.0 GiB is free" in capsys.readouterr().err
    check_memory("ivf-sq8", *WIKI, free=8 * GIB)  # mapped: slow, not impossible
    assert "ivf-rabitq needs" in caplog.text
    with pytest.raises(ServiceError, match="Nothing dense fits"):
        check_memory("exact-fp32", *WIKI, free=PROCESS_BYTES)
    capsys.readouterr()
    check_memory("exact-bf16", 1000, 8, free=GIB)
    assert capsys.readouterr().err == ""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_control_groups_limit_what_is_free(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", "MemTotal: 9 kB\nMemAvailable:   4096 kB\n")
    assert free_memory(tmp_path) == 4096 * 1024
    write(tmp_path / "proc/self/cgroup", "0::/a/b\n")
    write(tmp_path / "sys/fs/cgroup/a/b/memory.max", "max\n")
    write(tmp_path / "sys/fs/cgroup/a/b/memory.current", "10\n")
    assert free_memory(tmp_path) == 4096 * 1024
    write(tmp_path / "sys/fs/cgroup/a/memory.max", "1000000\n")
    write(tmp_path / "sys/fs/cgroup/a/memory.current", "600000\n")
    write(tmp_path / "sys/fs/cgroup/a/memory.stat", "anon 3\ninactive_file 50000\n")
    assert free_memory(tmp_path) == 450_000
    write(tmp_path / "proc/self/cgroup", "4:memory:/job\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", "300000\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.usage_in_bytes", "400000\n")
    assert free_memory(tmp_path) == 0


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "plan", "--passages", "21000000", "--ram", "24GiB", "--vram", "1GB", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["suggestion"] == {"kind": "ivf-sq8", "commands": commands("ivf-sq8")}
    assert {row["kind"]: row["fits"] for row in shown["kinds"]}["exact-bf16"] is False
    assert main(["index", "plan", "--passages", "21000000", "--ram", "1GiB"]) == 0
    assert "no dense kind fits" in capsys.readouterr().out
    assert main(["index", "plan", "--passages", "5", "--ram", "much"]) == 2

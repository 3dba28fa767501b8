"""Every system call of a merge fails or kills it: DIR is absent or whole, and a rerun is exact.

Faults come from strace; see `test_faults_random` for kills at any moment, which need none.
"""

from __future__ import annotations

import re

import pytest
from harness import can_trace, clear, count_calls, digest, go_on, merge_argv

CALLS = (
    "write", "pwrite64", "fsync", "fdatasync", "fallocate", "ftruncate", "rename", "renameat2",
    "mkdir", "unlink", "unlinkat", "rmdir", "close",
)  # fmt: skip
ROOMY = {"pwrite64", "fallocate", "ftruncate", "fsync", "mkdir"}  # whose errors name bytes
ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EROFS")

pytestmark = pytest.mark.skipif(not can_trace(), reason="strace cannot trace here")


@pytest.fixture(scope="module")
def bench(server, models, tmp_path_factory):
    """The command, its reference output, and how often it makes each call."""
    work = tmp_path_factory.mktemp("work")
    out = work / "out"
    argv = merge_argv(models, out, "--threads=1", "--shard-size=8kB")
    assert server.run(argv).code == 0
    reference = digest(out)
    clear(out)
    counts = count_calls(server, argv, CALLS, work / "trace")
    assert digest(out) == reference
    clear(out)
    before = digest(models)
    yield server, argv, out, reference, counts
    assert digest(models) == before, "inputs are never written"


def points(counts, size):
    """(call, n): every occurrence, or in the quick bench the first, middle and last of each."""
    for call, total in sorted(counts.items()):
        if size == "full":
            yield from ((call, n) for n in range(1, total + 1))
        else:
            yield from ((call, n) for n in sorted({1, total // 2 + 1, total}))


def check_left(out, reference, result):
    """The rule: absent, or byte for byte the reference; and nothing else beside but leftovers."""
    if out.exists():
        assert digest(out) == reference, result
    beside = [p.name for p in out.parent.iterdir() if p.name.startswith("out") and p != out]
    assert all(name.startswith("out.partial-") for name in beside), beside
    return out.exists()


def check_rerun(server, argv, out, reference, *, resume):
    """Going on, or beginning anew, gives the reference."""
    if not out.exists():
        again = go_on(server, argv, resume=resume)
        assert again.code == 0, again
    assert digest(out) == reference
    clear(out)


def test_a_kill_at_any_call(bench, size, record):
    server, argv, out, reference, counts = bench
    done = whole = 0
    for call, n in points(counts, size):
        inject = f"inject={call}:signal=SIGKILL:when={n}"
        result = server.traced(argv, ["-e", f"trace={call}", "-e", inject, "-o", "/dev/null"])
        assert result.code == -9, (call, n, result)
        whole += check_left(out, reference, result)
        check_rerun(server, argv, out, reference, resume=n % 2 == 0)
        done += 1
    text = f"0 partial outputs; {whole} whole, the others absent; every rerun exact"
    if size == "full":
        record(
            "2 kill",
            "SIGKILL at every write, sync, rename, mkdir, unlink, close",
            f"{done} points",
            text,
        )


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("mode", ["once", "from then on"])
def test_an_error_at_any_call(bench, size, error, mode, record):
    server, argv, out, reference, counts = bench
    done = failed = 0
    if size == "quick" and (error, mode) not in {("ENOSPC", "from then on"), ("EIO", "once")}:
        pytest.skip("in the full bench")
    for call, n in points(counts, size):
        when = f"{n}" if mode == "once" else f"{n}+"
        inject = f"inject={call}:error={error}:when={when}"
        result = server.traced(argv, ["-e", f"trace={call}", "-e", inject, "-o", "/dev/null"])
        assert result.code in {0, 6}, (call, n, result)
        exists = check_left(out, reference, result)
        assert exists or result.code == 6, (call, n, result)
        if result.code == 6 and call in ROOMY and not exists:
            assert re.search(r"[\d,]+ bytes needed, [\d,]+ bytes are free", result.text), (
                call,
                n,
                result,
            )
        failed += result.code == 6
        check_rerun(server, argv, out, reference, resume=n % 2 == 0)
        done += 1
    text = f"{failed} × exit 6, {done - failed} × harmless; 0 partial outputs; every rerun exact"
    if size == "full":
        record("2 errors", f"{error} {mode}, at every such call", f"{done} points", text)

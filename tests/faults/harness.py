"""The bench's tools: small models, commands in forked children, faults by strace, verdicts."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

ROOT = Path(__file__).parents[2]
AGENTS = ("coder", "tools", "memory")
SHAPES = {
    "model.embed_tokens.weight": (64, 32),
    "model.layers.0.mlp.down_proj.weight": (32, 48),
    "model.layers.0.self_attn.q_proj.weight": (32, 32),
    "model.layers.1.mlp.down_proj.weight": (32, 48),
    "model.layers.1.self_attn.q_proj.weight": (32, 32),
    "model.norm.weight": (32,),
}
DTYPES = {"F32": np.float32, "BF16": ml_dtypes.bfloat16, "F16": np.float16, "F64": np.float64}


def save(path: Path, tensors: dict[str, np.ndarray], metadata: dict | None = None) -> None:
    """Write a safetensors file by hand, so that the bench shares no code with what it tests."""
    names = {np.dtype(v): k for k, v in DTYPES.items()}
    header: dict = {"__metadata__": metadata or {"format": "pt"}}
    at = 0
    for name, array in tensors.items():
        kind = names.get(array.dtype) or {"int64": "I64", "bool": "BOOL"}[array.dtype.name]
        span = [at, at + array.nbytes]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": span}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def load(path: Path) -> dict[str, np.ndarray]:
    """Read a safetensors file by hand."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    kinds = {**DTYPES, "I64": np.int64, "BOOL": np.bool_}
    return {
        name: np.frombuffer(
            data[start + e["data_offsets"][0] : start + e["data_offsets"][1]], kinds[e["dtype"]]
        ).reshape(e["shape"])
        for name, e in header.items()
    }


def model_set(root: Path, dtype: str = "BF16", scale: int = 1, agents=AGENTS, seed: int = 0):
    """A base and its agents, with side files; each agent changes about a third of the elements."""
    rng = np.random.default_rng(seed)
    kind = DTYPES[dtype]
    shapes = {n: (s[0] * scale, *s[1:]) for n, s in SHAPES.items()}
    base = {n: (rng.standard_normal(s) * 0.05).astype(kind) for n, s in shapes.items()}
    for name in ("base", *agents):
        (root / name).mkdir(parents=True)
        (root / name / "config.json").write_text('{"model_type": "llama", "torch_dtype": "x"}\n')
        (root / name / "generation_config.json").write_text('{"eos_token_id": 2}\n')
        tensors = base
        if name != "base":
            tensors = {
                n: np.where(rng.random(a.shape) < 0.35, a + rng.choice([-0.01, 0.01], a.shape), a)
                .astype(kind)
                .reshape(a.shape)
                for n, a in base.items()
            }
        save(root / name / "model.safetensors", tensors)
    return root


def merge_argv(root: Path, out: Path, *more: str, agents=AGENTS) -> list[str]:
    """A merge of the whole set from the command line."""
    names = [f"--agent={n}={root / n}" for n in agents]
    return ["merge", f"--base={root / 'base'}", *names, f"--out={out}", "--quiet", *more]


def digest(directory: Path) -> str:
    """One SHA-256 over names and content of all files."""
    total = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            total.update(path.relative_to(directory).as_posix().encode() + b"\0")
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def clear(out: Path) -> None:
    """Remove an output and everything beside it that belongs to it."""
    for path in out.parent.glob(out.name + "*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@dataclass(frozen=True)
class Result:
    """How a command ended. ``code`` is negative for a signal."""

    code: int
    text: str
    seconds: float
    rss: int  # kilobytes


class Server:
    """Runs commands in children of one warm process."""

    def __init__(self, argv: list[str], logs: Path, given: dict | None = None) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.logs, self.count = logs, 0
        reader, writer = os.pipe()
        command = [sys.executable, str(Path(__file__).with_name("server.py")), str(writer)]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
        environment |= given or {}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environment,
            pass_fds=[writer],
            text=True,
        )
        os.close(writer)
        self.answers = os.fdopen(reader)
        assert self._ask({"argv": argv}) == {"code": 0}, "the warm-up merge works"

    def _ask(self, request: dict) -> dict:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.answers.readline()
        assert line, "the server is alive"
        return json.loads(line)

    def start(self, argv: list[str], **options) -> tuple[int, Path]:
        """Fork a child for a command; its pid and its log."""
        self.count += 1
        log = self.logs / f"{self.count % 64}.log"
        return self._ask({"argv": [str(a) for a in argv], "log": str(log), **options})["pid"], log

    def wait(self, pid: int, log: Path, began: float = 0.0) -> Result:
        """Wait for a child."""
        answer = self._ask({"wait": pid})
        code = os.waitstatus_to_exitcode(answer["status"])
        text = log.read_text(errors="replace") if log.exists() else ""
        return Result(code, text, time.monotonic() - began, answer["rss"])

    def run(self, argv: list[str], **options) -> Result:
        """A command from beginning to end."""
        began = time.monotonic()
        return self.wait(*self.start(argv, **options), began)

    def traced(self, argv: list[str], strace: list[str]) -> Result:
        """A command under strace, with its faults."""
        began = time.monotonic()
        pid, log = self.start(argv, stop=True)
        while b"T" not in Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]:
            time.sleep(0.001)
        tracer = subprocess.Popen(
            ["strace", "-f", "-p", str(pid), *strace], stderr=subprocess.PIPE, text=True
        )
        line = tracer.stderr.readline()
        assert "attached" in line, line
        os.kill(pid, signal.SIGCONT)
        result = self.wait(pid, log, began)
        tracer.communicate(timeout=20)
        return result

    def close(self) -> None:
        self.process.stdin.write('{"quit": true}\n')
        self.process.stdin.close()
        self.process.wait(20)
        self.answers.close()


def go_on(server: Server, argv: list[str], *, resume: bool) -> Result:
    """The command again: with --resume, or without it until it says that finished work would be lost."""
    result = server.run([*argv, "--resume"] if resume else argv)
    if not resume and result.code == 7:
        assert "an interrupted run of this merge finished" in result.text, result
        assert "--resume" in result.text, result
        result = server.run([*argv, "--resume"])
    return result


def count_calls(server: Server, argv: list[str], calls: tuple[str, ...], trace: Path) -> Counter:
    """How often the main thread of a run makes each system call."""
    server.traced(argv, ["-e", f"trace={','.join(calls)}", "-o", str(trace)])
    main = Counter()
    first = None
    for line in trace.read_text().splitlines():
        pid, _, rest = line.partition(" ")
        first = first or pid
        if pid == first and (match := re.match(r"\s*(\w+)\(", rest)):
            main[match[1]] += 1
    return main


def can_trace() -> bool:
    """Whether strace is there and may trace."""
    if shutil.which("strace") is None:
        return False
    done = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False)
    return done.returncode == 0

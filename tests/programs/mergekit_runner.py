"""Run by mergekit's own interpreter: merge every configuration of a directory. Usage: mergekit_runner.py DIR"""

import sys
import traceback
from pathlib import Path

import yaml
from mergekit.config import MergeConfiguration
from mergekit.merge import run_merge
from mergekit.options import MergeOptions

for config in sorted(Path(sys.argv[1]).glob("*.yml")):
    try:
        parsed = MergeConfiguration.model_validate(yaml.safe_load(config.read_text()))
        run_merge(parsed, str(config.with_suffix("")), MergeOptions(copy_tokenizer=False))
    except Exception:
        config.with_suffix(".failed").write_text(traceback.format_exc())

"""Write docs/reference/merge.schema.json, the JSON schema of merge files: `python docs/make_schema.py` (`make docs`)."""

from __future__ import annotations

import json
from pathlib import Path

from ramerge.config.schema import json_schema
from ramerge.methods.registry import METHODS

PAGE = Path(__file__).parent / "reference" / "merge.schema.json"


def text() -> str:
    """The schema as the file holds it."""
    schema = json_schema({name: method.info for name, method in METHODS.items()})
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")

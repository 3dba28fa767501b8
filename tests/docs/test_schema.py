"""The published schema of merge files is the one that the code makes."""

from __future__ import annotations

import json
from pathlib import Path

from ramerge.config.schema import json_schema
from ramerge.methods.registry import METHODS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "merge.schema.json"


def test_the_published_schema_is_the_code_s():
    schema = json_schema({name: method.info for name, method in METHODS.items()})
    assert json.loads(PAGE.read_text()) == json.loads(json.dumps(schema)), "run `make docs`"

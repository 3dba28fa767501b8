"""The model card: what the Hub needs to file the model, and a reader to trust and repeat it.

All text that comes from users or inputs is escaped: the card is shown as HTML by the Hub, and its
front matter is read by machines. No time, host or path stands in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import yaml

_HUB_ID = re.compile(r"(?:hf:)?([\w.-]+/[\w.-]+)(?:@[\w.-]+)?", re.ASCII)
_PLAIN = re.compile(
    r"(?!_|www)[\w./ +-]*[^\W_]", re.ASCII
)  # means nothing in Markdown inside a line
_SPECIAL = re.compile(r"([^\w\s/,;=?%'\"^+-]|_)")
_INVISIBLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")

SCALED = ", and λ scales the agent's unique elements"
USAGE = """from transformers import AutoModelForCausalLM, AutoTokenizer

# The directory of this file, or the repository's id on the Hub.
place = "."
tokenizer = AutoTokenizer.from_pretrained(place)
model = AutoModelForCausalLM.from_pretrained(place, dtype="auto")
"""
CITATION = """## Citation

RAM and RAM+, and the study of merging agents trained by reinforcement learning:

```bibtex
@article{yuan2026behavior,
  title = {Behavior Knowledge Merge in Reinforced Agentic Models},
  author = {Yuan, Xiangchi and Shi, Dachuan and Zhang, Chunhui and Liu, Zheyuan and
            Yao, Shenglong and Vosoughi, Soroush and Lee, Wenke},
  journal = {arXiv preprint arXiv:2601.13572},
  year = {2026}
}
```
"""


class MethodLike(Protocol):
    """What the card says of a method."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def title(self) -> str: ...  # noqa: D102
    @property
    def reference(self) -> str: ...  # noqa: D102


class SummaryLike(Protocol):
    """What the card says of an agent (`summary.AgentSummary`)."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def dtype(self) -> str: ...  # noqa: D102
    @property
    def density(self) -> float: ...  # noqa: D102
    @property
    def unique(self) -> int: ...  # noqa: D102
    @property
    def shared(self) -> int: ...  # noqa: D102
    @property
    def rho(self) -> float | None: ...  # noqa: D102
    @property
    def lam(self) -> float | None: ...  # noqa: D102
    @property
    def lam_effective(self) -> float | None: ...  # noqa: D102


def model_card(facts: Mapping[str, Any]) -> str:
    """The text of README.md.

    Args:
        facts: ``base`` (source as it may be shown), ``agents`` (each with ``source`` and a
            ``summary`` like `SummaryLike`), ``method`` (like `MethodLike`), ``parameters``, and
            ``config`` (YAML text that repeats the merge); where the base has them, ``kept`` (front matter that
            stays, as `base_card.kept_metadata` reads it) and ``architectures`` of its config.json.
    """
    base, agents, method = facts["base"], facts["agents"], facts["method"]
    sources = [base, *(a["source"] for a in agents)]
    scaled = any(a["summary"].lam is not None for a in agents)
    return f"""{_front_matter(sources, method.name, facts.get("kept", {}))}
# Merge of {_count(len(agents), "agent")} into {escaped(base)}

Made with ramerge by the method {method.title} (`{method.name}`{_reference(method)}).

{_table(agents, scaled=scaled)}

Density is the share of elements that the agent changed. Unique elements were changed by this agent
alone, shared ones by others too; ρ is shared / unique{SCALED if scaled else ""}.

Parameters: {_parameters(facts["parameters"])}

{_usage(facts.get("architectures", ()))}## How to repeat it

Save this as `merge.yml`, with `base_model` and each `model` leading to the models named above, and
run `ramerge merge merge.yml --out merged`:

{_fenced(facts["config"], "yaml")}

`ramerge_manifest.json` has the digest of every input and output file; `ramerge verify` compares.

{CITATION}"""


def escaped(text: object) -> str:
    """``text`` as Markdown that shows it literally, on one line, whatever it holds."""
    if _PLAIN.fullmatch(str(text)):
        return str(text)
    visible = _INVISIBLE.sub(lambda m: f"\\u{ord(m[0]):04x}", str(text))
    return _SPECIAL.sub(lambda m: f"&#{ord(m[1])};", visible)


def _front_matter(sources: Sequence[str], method: str, kept: Mapping[str, Any]) -> str:
    """YAML for the Hub. Only what has the form of a Hub id is called a base model."""
    ids = [m[1] for s in sources if (m := _HUB_ID.fullmatch(s))]
    tags = {"tags": ["merge", "ramerge", method]}
    head: dict[str, Any] = {"library_name": "transformers", **kept, **tags}
    if ids:
        head = {"base_model": list(dict.fromkeys(ids)), "base_model_relation": "merge", **head}
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _reference(method: MethodLike) -> str:
    return f", {method.reference}" if method.reference else ""  # our own words


def _table(agents: Sequence[Mapping[str, Any]], *, scaled: bool) -> str:
    """A row per agent; the last two columns are for methods that have a λ."""
    head = ["agent", "source", "dtype", "density", "unique", "shared", "ρ", "λ", "λ after rounding"]
    rule = ["---"] * 3 + ["--:"] * 6
    rows = [head, rule, *(_cells(agent["source"], agent["summary"]) for agent in agents)]
    return "\n".join(f"| {' | '.join(row if scaled else row[:-2])} |" for row in rows)


def _cells(source: str, a: SummaryLike) -> list[str]:
    return [
        escaped(a.name),
        escaped(source),
        a.dtype,
        f"{a.density:.2%}",
        f"{a.unique:,}",
        f"{a.shared:,}",
        _number(a.rho),
        _number(a.lam),
        _number(a.lam_effective),
    ]


def _usage(architectures: Sequence[str]) -> str:
    """How to load a language model; nothing for architectures that load otherwise."""
    if not any(str(name).endswith("ForCausalLM") for name in architectures):
        return ""
    return f"## How to use it\n\n{_fenced(USAGE, 'python')}\n\n"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _parameters(values: Mapping[str, Any]) -> str:
    if not values:
        return "none"
    return ", ".join(f"{escaped(k)} = {_value(v)}" for k, v in values.items())


def _value(value: Any) -> str:
    """A parameter; numbers and lists of them need no escapes."""
    text = json.dumps(value)
    return text if re.fullmatch(r"[\[\]0-9eE.,+ -]*|true|false|null", text) else escaped(text)


def _fenced(text: str, language: str) -> str:
    """A code block whose fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"

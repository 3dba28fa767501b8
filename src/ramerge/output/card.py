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
            ``config`` (YAML text that repeats the merge).
    """
    base, agents, method = facts["base"], facts["agents"], facts["method"]
    sources = [base, *(a["source"] for a in agents)]
    return f"""{_front_matter(sources, method.name)}
# Merge of {_count(len(agents), "agent")} into {escaped(base)}

Made with [ramerge](https://pypi.org/project/ramerge/) by the method {method.title} \
(`{method.name}`{_reference(method)}).

| agent | source | dtype | density | unique | shared | ρ | λ | λ after rounding |
|---|---|---|--:|--:|--:|--:|--:|--:|
{_rows(agents)}

Density is the share of elements that the agent changed. Unique elements were changed by this agent
alone, shared ones by others too; ρ is shared / unique, and λ scales the agent's unique elements.

Parameters: {_parameters(facts["parameters"])}

## How to repeat it

Save this as `merge.yml`, with `base_model` and each `model` leading to the models named above, and
run `ramerge merge merge.yml --out merged`:

{_fenced(facts["config"], "yaml")}

`ramerge_manifest.json` has the SHA-256 of every input and output file; `ramerge verify` compares.
"""


def escaped(text: object) -> str:
    """``text`` as Markdown that shows it literally, on one line, whatever it holds."""
    if _PLAIN.fullmatch(str(text)):
        return str(text)
    visible = _INVISIBLE.sub(lambda m: f"\\u{ord(m[0]):04x}", str(text))
    return _SPECIAL.sub(lambda m: f"&#{ord(m[1])};", visible)


def _front_matter(sources: Sequence[str], method: str) -> str:
    """YAML for the Hub. Only what has the form of a Hub id is called a base model."""
    ids = [m[1] for s in sources if (m := _HUB_ID.fullmatch(s))]
    head: dict[str, Any] = {"library_name": "transformers", "tags": ["merge", "ramerge", method]}
    if ids:
        head = {"base_model": list(dict.fromkeys(ids)), "base_model_relation": "merge", **head}
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _reference(method: MethodLike) -> str:
    return f", {method.reference}" if method.reference else ""  # our own words


def _rows(agents: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(_row(agent["source"], agent["summary"]) for agent in agents)


def _row(source: str, a: SummaryLike) -> str:
    cells = (
        escaped(a.name),
        escaped(source),
        a.dtype,
        f"{a.density:.2%}",
        f"{a.unique:,}",
        f"{a.shared:,}",
        _number(a.rho),
        _number(a.lam),
        _number(a.lam_effective),
    )
    return f"| {' | '.join(cells)} |"


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

"""Write docs/reference/methods.md from the registry: `python docs/make_methods.py` (`make docs`)."""

from __future__ import annotations

from pathlib import Path

from ramerge.methods.groups import grouped
from ramerge.methods.registry import METHODS

HEAD = """# Methods

Generated from the code by `docs/make_methods.py`; `ramerge methods NAME` prints the same. θ0 is the base, τt = θt - θ0 agent
t's task vector, w_t its `weight`. All arithmetic is fp32 (fp64 where an F64 tensor is involved), rounded once at the end.
Parameters marked *agent* may differ by agent, those marked *tensor* may be gradients over layers or depend on a filter.

Where files written for mergekit leave a parameter out, two defaults differ on purpose: `ties` keeps 20 % chosen over the whole
model (`trim: tensor` and `density: 1.0` are theirs), and `dare_*`, `della*`, `breadcrumbs*` have their papers' densities.
Parity with mergekit 0.1.x in fp32 is tested (`make parity`): 1e-5 for linear, task_arithmetic, ties (`trim: tensor`), slerp,
nuslerp on a base, multislerp, karcher, model_stock, sce, nearswap, passthrough, ram and ramplus_tl. Three deviate, and why:
`nuslerp` without a base (the angle of nearly parallel tensors, theirs in fp32: up to 2e-5), `breadcrumbs` (theirs rounds what is
cut, ours what is kept: one element a tensor and agent), `arcee_fusion` (theirs computes divergences in fp32, where small ones
vanish: under 1 % of elements).
"""


def describe(name: str) -> str:
    """One method as Markdown."""
    m = METHODS[name]
    lines = [
        f"### `{name}`: {m.title}",
        "",
        m.doc.replace("``", "`"),
        "",
        f"*Reference*: {m.reference}. *Cost*: {m.cost}.",
    ]
    if m.aliases:
        names = [f"`{a}`" + (f" (preset `{p}`)" if p else "") for a, p in m.aliases.items()]
        lines += ["", "Also called " + ", ".join(names) + "."]
    if m.signature:
        lines += ["", "| parameter | default | range | meaning |", "|---|---|---|---|"]
        for p in m.signature.values():
            marks = [w for w, on in (("agent", p.per_agent), ("tensor", p.per_tensor)) if on]
            extra = f" (*{', '.join(marks)}*)" if marks else ""
            default = (
                "required"
                if p.required
                else f"`{str(p.default).lower() if isinstance(p.default, bool) else p.default}`"
            )
            meaning = f"{p.meaning}{extra}".replace("|", "\\|")
            lines.append(f"| `{p.name}` | {default} | {p.range.replace('|', '/')} | {meaning} |")
    if m.presets:
        lines += [
            "",
            "Presets: "
            + "; ".join(
                f"`{k}` " + ", ".join(f"{a} = {b}" for a, b in v.items())
                for k, v in m.presets.items()
            )
            + ".",
        ]
    return "\n".join(lines)


def main() -> None:
    """Write the page."""
    parts = [HEAD]
    for title, names in grouped(METHODS):
        parts.append(f"## {title}\n")
        parts += [describe(name) + "\n" for name in names]
    page = Path(__file__).parent / "reference" / "methods.md"
    page.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()

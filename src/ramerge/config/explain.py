"""A merge file in plain words: what it does, where values come from, what mergekit does instead."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill

from ramerge._signature import MethodInfo, Parameter, Scalar
from ramerge.config.job import Gradient, Job, Setting, SliceSource
from ramerge.config.mergekit import other_defaults
from ramerge.config.sources import without_credentials
from ramerge.config.vocabulary import TokenizerRules, TokenRule

WIDTH = 100


def explain(job: Job, info: MethodInfo) -> str:
    """The job in words, a few short sections of lines up to 100 characters.

    Args:
        job: the merge.
        info: its method.
    """
    sections = (
        ("", _what(job, info)),
        ("Parameters", _parameters(job, info)),
        ("Output", _output(job)),
        ("Notes", job.notes),
        ("Unlike mergekit", _differences(job, info)),
    )
    return "\n".join(_section(title, list(lines)) for title, lines in sections if lines)


def _section(title: str, lines: list[str]) -> str:
    if not title:
        return "\n".join(fill(line, WIDTH, subsequent_indent="  ") for line in lines) + "\n"
    body = (fill(line, WIDTH, initial_indent="  - ", subsequent_indent="    ") for line in lines)
    return "\n".join((f"{title}:", *body)) + "\n"


def _what(job: Job, info: MethodInfo) -> list[str]:
    preset = f", preset `{job.preset}`" if job.preset else ""
    method = f"method `{info.name}`{preset}"
    count = len(job.agents)
    verb = "stacks layers of" if job.slices else "merges"
    lines = [f"This {verb} {count} model{'s' * (count != 1)} with the {method}."]
    if info.summary:
        lines.append(info.summary)
    if job.base is not None:
        role = "side files come from" if info.base == "member" else "the base is"
        lines.append(f"{role[0].upper()}{role[1:]} {without_credentials(job.base)}.")
    lines += [f"Agent `{a.name}` is {without_credentials(a.source)}." for a in job.agents]
    return lines + list(_slices(job))


def _slices(job: Job) -> Iterator[str]:
    height = 0
    for piece in job.slices:
        size = piece.sources[0].stop - piece.sources[0].start
        made = " merged with ".join(_layers(source) for source in piece.sources)
        which = f"Layer{'s' * (size > 1)} {_range(height, height + size)}"
        yield f"{which} of the output: {made}."
        height += size
    if job.slices:
        yield (
            f"That makes {height} layers. Embeddings come from the first slice, the last norm and"
            " the head from the last."
        )


def _layers(source: SliceSource) -> str:
    model = "the base" if source.model == "base" else f"`{source.model}`"
    return f"{_range(source.start, source.stop)} of {model}"


def _range(start: int, stop: int) -> str:
    return f"{start}" if stop - start == 1 else f"{start} to {stop - 1}"


def _parameters(job: Job, info: MethodInfo) -> Iterator[str]:
    preset = info.presets[job.preset] if job.preset else {}
    for name, parameter in info.signature.items():
        meaning = f" ({parameter.meaning})" if parameter.meaning else ""
        value, origin = _value(job, parameter, preset.get(name), named=name in preset)
        own = [(f"agent `{a.name}`", a.parameters) for a in job.agents]
        for number, piece in enumerate(job.slices, start=1):
            own.append((f"slice {number}", piece.parameters))
            own += [(f"`{s.model}` in slice {number}", s.parameters) for s in piece.sources]
        exceptions = [f"{in_words(p[name])} for {who}" for who, p in own if name in p]
        yield "; ".join([f"{name} = {value}, {origin}{meaning}", *exceptions])


def _value(job: Job, parameter: Parameter, preset: Scalar, *, named: bool) -> tuple[str, str]:
    """The value for all agents, and who says so."""
    if parameter.name in job.parameters:
        return in_words(job.parameters[parameter.name]), "from the file"
    if named:
        return in_words(preset), f"from the preset `{job.preset}`"
    if parameter.required:
        return "not set", "needed"
    return in_words(parameter.default), "the default"


def in_words(setting: Setting) -> str:
    """A value, gradient or conditional value in one phrase."""
    if isinstance(setting, Gradient):
        if len(setting.anchors) == 1:
            return in_words(setting.anchors[0])
        steps = ", then ".join(in_words(a) for a in setting.anchors[1:-1])
        through = f" through {steps}" if steps else ""
        first, last = in_words(setting.anchors[0]), in_words(setting.anchors[-1])
        return f"{first} in the first layer{through} to {last} in the last"
    if isinstance(setting, tuple):
        arms = [
            f"{in_words(arm.value)} "
            + (f"in tensors named `…{arm.pattern}…`" if arm.pattern else "in all others")
            for arm in setting
        ]
        return ", ".join(arms)
    if setting is None or isinstance(setting, bool):
        return {None: "null", True: "true", False: "false"}[setting]
    return f"{setting:g}" if isinstance(setting, float) else str(setting)


def _output(job: Job) -> Iterator[str]:
    dtype = job.out_dtype
    yield f"every tensor as {dtype.torch_name}" if dtype else "every tensor in its type in the base"
    if job.tokenizer is not None:
        yield from _tokenizer(job.tokenizer)
    elif job.base is not None:
        yield "tokenizer and side files of the base, byte for byte"
    if job.chat_template is not None:
        name = f"`{job.chat_template}`"
        yield f"chat template {'as the file has it' if '{' in name else name}"
    if job.exclude:
        patterns = ", ".join(f"`{p}`" for p in job.exclude)
        yield f"copied from the base and not merged: tensors that fit {patterns}"
    policy = {
        "error": "NaN or infinity anywhere stops the merge",
        "keep_base": "where the result would be NaN or infinity, the base's value is kept",
        "propagate": "NaN and infinity are written like any other value",
    }
    yield policy[job.nonfinite]


def _tokenizer(rules: TokenizerRules) -> Iterator[str]:
    whose = {
        "base": "the tokenizer of the base",
        "union": "a tokenizer with the tokens of all models; the base's tokens keep their ids",
    }
    yield whose.get(rules.source, f"the tokenizer of agent `{rules.source}`")
    yield (
        "a token that a model lacks takes the base's embedding row, else that of the only model"
        " that has it, else the mean of those that do"
    )
    if rules.pad_to_multiple_of:
        yield f"embedding rows padded to a multiple of {rules.pad_to_multiple_of}"
    yield from (_token(rule) for rule in rules.tokens)


def _token(rule: TokenRule) -> str:
    model = "the base" if rule.model == "base" else f"`{rule.model}`"
    other = f"`{rule.source_token}`" if rule.source_token else f"id {rule.source_id}"
    origin = {
        "default": "the usual row",
        "model": f"the row of {model}",
        "model_token": f"the row of {other} in {model}",
        "zero": "zeros",
    }[rule.kind]
    whom = "in every model" if rule.force else "in models that lack it"
    return f"token `{rule.token}`: {origin}, {whom}"


def _differences(job: Job, info: MethodInfo) -> Iterator[str]:
    yield (
        "arithmetic is fp32 from exact inputs and rounded once; mergekit computes in the inputs'"
        " type, or in `dtype`"
    )
    yield from other_defaults(job, info)
    known = info.signature
    if "scope" in known and _in_force(job, info, "scope") == "model":
        yield "what is counted or ranked is counted over the whole model; mergekit sees one tensor"
    if "epsilon" in known:
        yield "`epsilon` meets fp32 differences; mergekit rounds both to the inputs' type"
    if "seed" in known:
        yield "random choices depend on seed, agent, tensor name and element, not on order of work"
    if "weight" in known and info.name.startswith("ram"):
        yield "`weight` of an agent is obeyed; mergekit's `ram` has none and ignores it"
    if job.tokenizer is not None:
        yield "embedding rows beyond the last token are kept; mergekit cuts them off"
    yield "tensors that are missing, unknown or of another shape are errors, never dropped"


def _in_force(job: Job, info: MethodInfo, name: str) -> Setting:
    preset = info.presets[job.preset] if job.preset else {}
    return job.parameters.get(name, preset.get(name, info.signature[name].default))

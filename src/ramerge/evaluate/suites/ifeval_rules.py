"""The 25 kinds of checkable instruction of IFEval (arXiv 2311.07911), as pure functions of the answer.

The rules are those of the published checkers, quirks included (a "bullet" is a line that starts with `*` or
`-`; a keyword is a regular expression). Two things differ, both because the published code needs NLTK's
downloaded models: sentences and capital words are counted by the regular expressions below. Languages are
told by langdetect, seeded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

from ramerge._errors import ConfigError

Rule = Callable[[str, Any], bool]

ABBREVIATION = re.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|No|Inc|Ltd|U\.S|a\.m|p\.m)\.$", re.I
)
FENCES = ("```json", "```Json", "```JSON", "```")


def follows(name: str, text: str, arguments: dict[str, Any]) -> bool:
    """Whether ``text`` follows instruction ``name`` with ``arguments``."""
    return RULES[name](text, arguments)


def check_known(names: Iterable[str]) -> None:
    """Refuse rows whose instructions cannot be checked, before anything is asked.

    Raises:
        ConfigError: an unknown instruction, or langdetect is missing though needed.
    """
    unknown = sorted(set(names) - RULES.keys())
    if unknown:
        raise ConfigError(f"IFEval has no instruction `{unknown[0]}`")
    if LANGUAGE_RULES & set(names) and find_spec("langdetect") is None:
        raise ConfigError("these IFEval rows need langdetect", hint="pip install 'ramerge[eval]'")


def language(text: str) -> str | None:
    """ISO code of the language of ``text``; None where it cannot be told."""
    import langdetect

    langdetect.DetectorFactory.seed = 0
    try:
        return str(langdetect.detect(text))
    except langdetect.LangDetectException:
        return None


def sentences(text: str) -> int:
    """Number of sentences: split after . ! ? before white space, except after common abbreviations."""
    count, begun = 0, False
    for piece in re.split(r"(?<=[.!?])[\"')\]]*\s+|\n{2,}", text):
        begun = begun or bool(re.search(r"\w", piece))
        if begun and not ABBREVIATION.search(piece):
            count, begun = count + 1, False
    return count + begun


def _related(count: int, relation: str, wanted: int) -> bool:
    return count < wanted if relation == "less than" else count >= wanted


def _parts(pieces: list[str]) -> list[str] | None:
    """Pieces without empty first and last ones; None if one inside is empty."""
    inner = [p for i, p in enumerate(pieces) if p.strip() or i not in {0, len(pieces) - 1}]
    return inner if all(p.strip() for p in inner) else None


def _keywords(text: str, a: Any) -> bool:
    return all(re.search(word, text, re.I) for word in a["keywords"])


def _frequency(text: str, a: Any) -> bool:
    return _related(len(re.findall(a["keyword"], text, re.I)), a["relation"], a["frequency"])


def _forbidden(text: str, a: Any) -> bool:
    return not any(re.search(rf"\b{word}\b", text, re.I) for word in a["forbidden_words"])


def _letters(text: str, a: Any) -> bool:
    return _related(text.lower().count(a["letter"].lower()), a["let_relation"], a["let_frequency"])


def _language(text: str, a: Any) -> bool:
    return language(text) in {a["language"], None}


def _sentences(text: str, a: Any) -> bool:
    return _related(sentences(text), a["relation"], a["num_sentences"])


def _paragraphs(text: str, a: Any) -> bool:
    parts = _parts(re.split(r"\s?\*\*\*\s?", text))
    return parts is not None and len(parts) == int(a["num_paragraphs"])


def _words(text: str, a: Any) -> bool:
    return _related(len(re.findall(r"\w+", text)), a["relation"], a["num_words"])


def _first_word(text: str, a: Any) -> bool:
    paragraphs = text.split("\n\n")
    count = sum(bool(p.strip()) for p in paragraphs)
    if count != a["num_paragraphs"] or a["nth_paragraph"] > count:
        return False
    words = paragraphs[a["nth_paragraph"] - 1].split()
    if not words:
        return False
    first = re.split(r"[.,?!'\"]", words[0].lstrip("'").lstrip('"'))[0]
    return first.lower() == str(a["first_word"]).lower()


def _placeholders(text: str, a: Any) -> bool:
    return len(re.findall(r"\[.*?\]", text)) >= int(a["num_placeholders"])


def _postscript(text: str, a: Any) -> bool:
    marker = a["postscript_marker"]
    patterns = {"P.P.S": r"\s*p\.\s?p\.\s?s.*$", "P.S.": r"\s*p\.\s?s\..*$"}
    pattern = patterns.get(marker, r"\s*" + marker.lower() + r".*$")
    return re.search(pattern, text.lower(), re.M) is not None


def _bullets(text: str, a: Any) -> bool:
    stars = re.findall(r"^\s*\*[^\*].*$", text, re.M)
    dashes = re.findall(r"^\s*-.*$", text, re.M)
    return len(stars) + len(dashes) == int(a["num_bullets"])


def _constrained(text: str, a: Any) -> bool:  # noqa: ARG001
    return any(f"My answer is {word}." in text for word in ("yes", "no", "maybe"))


def _highlights(text: str, a: Any) -> bool:
    found = re.findall(r"\*[^\n\*]*\*", text) + re.findall(r"\*\*[^\n\*]*\*\*", text)
    return sum(bool(part.strip("*").strip()) for part in found) >= int(a["num_highlights"])


def _sections(text: str, a: Any) -> bool:
    pieces = re.split(r"\s?" + a["section_spliter"] + r"\s?\d+\s?", text)
    return len(pieces) - 1 >= int(a["num_sections"])


def _json(text: str, a: Any) -> bool:  # noqa: ARG001
    body = text.strip()
    for fence in FENCES:
        body = body.removeprefix(fence)
    try:
        json.loads(body.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _title(text: str, a: Any) -> bool:  # noqa: ARG001
    return any(t.lstrip("<").rstrip(">").strip() for t in re.findall(r"<<[^\n]+>>", text))


def _two(text: str, a: Any) -> bool:  # noqa: ARG001
    parts = _parts(text.split("******"))
    return parts is not None and len(parts) == 2 and parts[0].strip() != parts[1].strip()


def _repeat(text: str, a: Any) -> bool:
    return text.strip().lower().startswith(a["prompt_to_repeat"].strip().lower())


def _ends(text: str, a: Any) -> bool:
    return text.strip().strip('"').lower().endswith(a["end_phrase"].strip().lower())


def _capital_words(text: str, a: Any) -> bool:
    capital = [word for word in re.findall(r"[\w'-]+", text) if word.isupper()]
    return _related(len(capital), a["capital_relation"], a["capital_frequency"])


def _capital(text: str, a: Any) -> bool:  # noqa: ARG001
    return text.isupper() and language(text) in {"en", None}


def _lower(text: str, a: Any) -> bool:  # noqa: ARG001
    return text.islower() and language(text) in {"en", None}


def _no_comma(text: str, a: Any) -> bool:  # noqa: ARG001
    return "," not in text


def _quoted(text: str, a: Any) -> bool:  # noqa: ARG001
    body = text.strip()
    return len(body) > 1 and body[0] == body[-1] == '"'


RULES: dict[str, Rule] = {
    "keywords:existence": _keywords,
    "keywords:frequency": _frequency,
    "keywords:forbidden_words": _forbidden,
    "keywords:letter_frequency": _letters,
    "language:response_language": _language,
    "length_constraints:number_sentences": _sentences,
    "length_constraints:number_paragraphs": _paragraphs,
    "length_constraints:number_words": _words,
    "length_constraints:nth_paragraph_first_word": _first_word,
    "detectable_content:number_placeholders": _placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:constrained_response": _constrained,
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:json_format": _json,
    "detectable_format:title": _title,
    "combination:two_responses": _two,
    "combination:repeat_prompt": _repeat,
    "startend:end_checker": _ends,
    "startend:quotation": _quoted,
    "change_case:capital_word_frequency": _capital_words,
    "change_case:english_capital": _capital,
    "change_case:english_lowercase": _lower,
    "punctuation:no_comma": _no_comma,
}
LANGUAGE_RULES = {
    "language:response_language",
    "change_case:english_capital",
    "change_case:english_lowercase",
}

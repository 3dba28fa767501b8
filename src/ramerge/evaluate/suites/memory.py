"""RULER-HotpotQA and RULER-SQuAD: one question over a context far longer than a model reads at once.

The context is built here: the documents that hold the answer, hidden among others in an order that the seed
fixes. It is read as MemAgent does: in chunks of 5,000 tokens, each with the question and a memory of at
most 1,024 tokens that the model rewrites; at the end the question is answered from the memory alone. Two
scores: ``published``, by the rule of MemAgent's code to the letter, and ``strict`` (see `matching`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from ramerge._errors import ConfigError, CorruptInputError
from ramerge._types import Json
from ramerge.evaluate import rows
from ramerge.evaluate.records import Ask, Options, Prompt, Sampling, Score, Task
from ramerge.evaluate.suites.matching import answers, substring_published, substring_strict
from ramerge.evaluate.tokens import Tokens, counter

DOMAIN = "memory"
SOURCES: dict[str, rows.Source | None] = {
    "hotpot": rows.Source("hotpotqa/hotpot_qa", "distractor", "validation"),
    "squad": rows.Source("rajpurkar/squad", None, "validation"),
    "distractors": None,
}
SETS = ("hotpot", "squad")
QUESTIONS = 128
CHUNK_TOKENS = 5000
SAMPLING = Sampling(temperature=0.7, top_p=0.95, max_tokens=1024)
EMPTY = "No previous memory"
MARKER = "the answer is"
SPECIAL = (
    "<｜Assistant｜>",
    "<｜end▁of▁sentence｜>",
)  # tokens that DeepSeek's models may leave in a reply

READ = """You are presented with a problem, a section of an article that may contain the answer to the problem, \
and a previous memory. Please read the provided section carefully and update the memory with the new information \
that helps to answer the problem. Be sure to retain all relevant details from the previous memory while adding any \
new, useful information.

<problem>\x20
{question}
</problem>

<memory>
{memory}
</memory>

<section>
{section}
</section>

Updated memory:
"""
ANSWER = """You are presented with a problem and a previous memory. Please answer the problem based on the previous \
memory and format your response as follows "Therefore, the answer is (insert answer here)".

<problem>\x20
{question}
</problem>

<memory>
{memory}
</memory>

Your answer:
"""


def load(options: Options) -> list[Task]:
    """One task a question and length, at most 128 questions as in the paper."""
    tokens = counter(options.tokenizer)
    chosen = [name for name in SETS if name in options.data] or list(SETS)
    return [task for name in chosen for task in _tasks(name, options, tokens)]


def _tasks(name: str, options: Options, tokens: Tokens) -> list[Task]:
    found = rows.load(name, options, SOURCES[name])
    others = list(dict.fromkeys(document for row in found for document in documents(row)))
    if "distractors" in options.data:
        others += [
            f"{r.get('title', '')}\n{r['text']}" for r in rows.load("distractors", options, None)
        ]
    lengths = options.hotpot_docs if name == "hotpot" else options.squad_tokens
    label = "RULER-HotpotQA {} docs" if name == "hotpot" else "RULER-SQuAD {}"
    tasks = []
    for length in lengths:
        for number, row in enumerate(found[:QUESTIONS]):
            luck = random.Random(f"{options.seed} {name} {length} {number}")  # noqa: S311
            chosen = by_count if name == "hotpot" else partial(by_tokens, tokens)
            sections = tokens.pieces(
                context(chosen(documents(row), others, length, luck)), CHUNK_TOKENS
            )
            tasks.append(
                Task(
                    column=label.format(length),
                    domain=DOMAIN,
                    item=str(row.get("id", number)),
                    requests=len(sections) + 1,
                    tokens=(len(sections) + 1) * SAMPLING.max_tokens,
                    solve=partial(solve, str(row["question"]), answers(row), sections),
                )
            )
    return tasks


async def solve(question: str, gold: Sequence[str], sections: Sequence[str], ask: Ask) -> Score:
    """Read all sections, then answer from memory."""
    memory, cut = EMPTY, False
    for section in sections:
        text = READ.format(question=question, memory=memory, section=section)
        answer = await ask(Prompt((("user", text),), SAMPLING))
        memory, cut = after_thought(answer.text), cut or answer.truncated
    answer = await ask(
        Prompt((("user", ANSWER.format(question=question, memory=memory)),), SAMPLING)
    )
    published, strict = stated(answer.text), stated_anyhow(answer.final)
    return Score(
        {
            "published": (float(bool(published) and substring_published(published, gold)), 1.0),
            "strict": (float(substring_strict(strict, gold)), 1.0),
        },
        prediction=strict,
        flags=("truncated",) * (cut or answer.truncated),
    )


def after_thought(text: str) -> str:
    """What MemAgent reads of a reply: all behind the last ``</think>``, or the whole where there is none."""
    return text.rpartition("</think>")[2].strip() if "</think>" in text else text


def stated(text: str) -> str:
    """The answer by MemAgent's rule, "" where there is none, which scores 0.

    It follows the last ``the answer is``, in these letters, once every ``*`` is gone; a reply that is empty
    behind its reasoning is searched as a whole.
    """
    text = text.strip()
    _, marker, answer = (after_thought(text) or text).replace("*", "").rpartition(MARKER)
    for special in SPECIAL:
        answer = answer.replace(special, "")
    return answer.strip().strip(".").strip() if marker else ""


def stated_anyhow(text: str) -> str:
    """What follows the last ``the answer is`` in letters of any size; the whole text where nothing does."""
    at = text.lower().rfind(MARKER)
    return text if at < 0 else text[at + len(MARKER) :].strip(" :\n")


def documents(row: Json) -> list[str]:
    """The documents of a row that hold its answer.

    Raises:
        CorruptInputError: the row has none, so its question could only be answered by heart.
    """
    given = row.get("documents") or row.get("context")
    if isinstance(given, str):
        return [f"{row.get('title', '')}\n{given}".strip()]
    if isinstance(given, list) and given:
        return [str(document) for document in given]
    if isinstance(given, dict):  # HotpotQA: {"title": [...], "sentences": [[...], ...]}
        wanted = set(row.get("supporting_facts", {}).get("title", given["title"]))
        pairs = zip(given["title"], given["sentences"], strict=True)
        return [f"{title}\n{''.join(lines)}" for title, lines in pairs if title in wanted]
    raise CorruptInputError(
        f"question `{str(row.get('question'))[:60]}` has no documents that hold its answer"
    )


def by_count(
    needed: Sequence[str], others: Sequence[str], count: int, luck: random.Random
) -> list[str]:
    """``count`` documents in random order, the needed ones among them.

    Raises:
        ConfigError: there are not enough different documents.
    """
    pool = [document for document in others if document not in set(needed)]
    short = count - len(needed) - len(pool)
    if short > 0:
        raise ConfigError(
            f"a context of {count} documents is {short} documents short",
            hint="give --data distractors=FILE.jsonl with `title` and `text`, or fewer documents",
        )
    found = [*needed, *luck.sample(pool, max(0, count - len(needed)))]
    luck.shuffle(found)
    return found


def by_tokens(
    tokens: Tokens, needed: Sequence[str], others: Sequence[str], size: int, luck: random.Random
) -> list[str]:
    """Documents of about ``size`` tokens together, never more, in random order, the needed ones among them.

    Raises:
        ConfigError: all documents together are shorter than 90 % of ``size``.
    """
    pool = [document for document in others if document not in set(needed)]
    luck.shuffle(pool)
    found, used = list(needed), sum(map(tokens.count, needed))
    for document in pool:
        length = tokens.count(document) + 8  # the heading
        if used + length <= size:
            found.append(document)
            used += length
    if used < 0.9 * size:
        raise ConfigError(
            f"all documents together have {used} tokens, a context needs {size}",
            hint="give --data distractors=FILE.jsonl with `title` and `text`, or --squad-tokens",
        )
    luck.shuffle(found)
    return found


def context(found: Sequence[str]) -> str:
    """Documents as one text."""
    return "\n\n".join(f"Document {n}:\n{document}" for n, document in enumerate(found, 1))

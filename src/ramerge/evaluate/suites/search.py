"""NQ and 2WikiMultiHopQA with a search engine in the loop, in Search-R1's format: exact match of the answer.

The model writes ``<search>query</search>``, gets the three best passages in ``<information>``, and may go
on; it ends with ``<answer>``. Over chat completions a turn's passages come as a user message; Search-R1
itself continues one text.
"""

from __future__ import annotations

import re
from functools import partial

from ramerge._errors import ConfigError
from ramerge.evaluate import rows
from ramerge.evaluate.bm25 import Index
from ramerge.evaluate.records import Ask, Options, Prompt, Sampling, Score, Task
from ramerge.evaluate.suites.matching import answers, exact

DOMAIN = "search"
SOURCES: dict[str, rows.Source | None] = {
    "nq": rows.Source("RUC-NLPIR/FlashRAG_datasets", "nq", "test"),
    "2wiki": rows.Source("RUC-NLPIR/FlashRAG_datasets", "2wikimultihopqa", "dev"),
    "corpus": None,
}
COLUMNS = {"nq": "NQ", "2wiki": "2WikiMultiHopQA"}
PASSAGES = 3
SAMPLING = Sampling(max_tokens=500, stop=("</search>", "</answer>"))
INSTRUCTION = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new "
    "information. After reasoning, if you find you lack some knowledge, you can call a search engine by <search> "
    "query </search> and it will return the top searched results between <information> and </information>. You can "
    "search as many times as your want. If you find no further external knowledge needed, you can directly provide "
    "the answer inside <answer> and </answer>, without detailed illustrations. For example, <answer> Beijing "
    "</answer>. Question: "
)
LAST = "No more searches. Give the answer inside <answer> and </answer>."


def load(options: Options) -> list[Task]:
    """One task a question.

    Raises:
        ConfigError: there is no corpus to search.
    """
    if "corpus" not in options.data:
        raise ConfigError(
            "suite `search` needs a corpus",
            hint="give --data corpus=FILE.jsonl with `title` and `text`, or `contents`",
        )
    whole = Options(data=options.data)  # --limit is for questions
    index = Index([_passage(row) for row in rows.load("corpus", whole, None)])
    return [
        Task(
            column=COLUMNS[name],
            domain=DOMAIN,
            item=str(row.get("id", number)),
            requests=options.max_turns + 1,
            tokens=(options.max_turns + 1) * SAMPLING.max_tokens,
            solve=partial(solve, str(row["question"]), answers(row), index, options.max_turns),
        )
        for name in ([n for n in COLUMNS if n in options.data] or list(COLUMNS))
        for number, row in enumerate(rows.load(name, options, SOURCES[name]))
    ]


def _passage(row: dict[str, object]) -> str:
    return str(row["contents"]) if "contents" in row else f"{row.get('title', '')}\n{row['text']}"


async def solve(question: str, gold: list[str], index: Index, turns: int, ask: Ask) -> Score:
    """Talk until an answer comes or the turns are used up."""
    asked = question.strip() + ("" if question.strip().endswith("?") else "?")
    messages = [("user", f"{INSTRUCTION}{asked}")]
    flags: set[str] = set()
    given = ""
    for turn in range(turns + 1):
        answer = await ask(Prompt(tuple(messages), SAMPLING))
        kind, text = step(answer.text)
        flags |= {"truncated"} if answer.truncated else set()
        if kind == "answer":
            given = text
            break
        if kind == "nothing" or turn == turns:
            flags.add("malformed" if kind == "nothing" else "out of turns")
            break
        found = "\n".join(f"Doc {n}: {p}" for n, p in enumerate(index.search(text, PASSAGES), 1))
        last = f"\n{LAST}" if turn + 1 == turns else ""
        messages += [
            (
                "assistant",
                f"{answer.text}</search>" if "</search>" not in answer.text else answer.text,
            ),
            ("user", f"<information>{found}</information>{last}"),
        ]
    return Score(
        {"exact match": (float(bool(given) and exact(given, gold)), 1.0)},
        prediction=given,
        flags=tuple(sorted(flags)),
    )


def step(text: str) -> tuple[str, str]:
    """What an answer asks for first after its reasoning: ("answer" | "search" | "nothing", its content)."""
    spoken = re.sub(r"<think>.*?(</think>|$)", "", text, flags=re.S)
    found = re.search(r"<(answer|search)>(.*?)(?:</\1>|$)", spoken, re.S)
    return ("nothing", "") if found is None else (found[1], found[2].strip())

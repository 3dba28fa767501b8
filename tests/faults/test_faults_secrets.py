"""What is secret stays secret, and what is text stays text."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from harness import AGENTS, load, model_set, save

from output.test_card import HOSTILE, Elements, front_matter

SECRETS = {
    "Hub token": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "OpenAI key": "sk-AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "AWS key": "AKIAIOSFODNN7EXAMPLE",
    "GitHub token": "ghp_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "URL credentials": "hunter2secret",
    "home directory": "alice-at-home",
}
URL = "https://alice:hunter2secret@example.org/model"


@pytest.fixture
def home(tmp_path):
    """A home directory with a model set, in a directory that is named by a person."""
    home = tmp_path / SECRETS["home directory"]
    model_set(home / "models")
    return home


def adapter(directory, base):
    """A LoRA adapter for one projection of the base."""
    directory.mkdir()
    rows, columns = load(base / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"].shape
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    rng = np.random.default_rng(0)
    save(
        directory / "adapter_model.safetensors",
        {
            f"{prefix}.lora_A.weight": rng.standard_normal((2, columns)).astype(np.float32),
            f"{prefix}.lora_B.weight": rng.standard_normal((rows, 2)).astype(np.float32),
        },
    )
    config = {
        "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"],
        "base_model_name_or_path": URL, "token": SECRETS["Hub token"], "task_type": "CAUSAL_LM",
    }  # fmt: skip
    (directory / "adapter_config.json").write_text(json.dumps(config))


def write_config(home, agents):
    """A merge file with secrets in its comments and absolute paths in its values."""
    comments = "".join(f"# {name}: {value}\n" for name, value in SECRETS.items())
    models = "".join(f"  - model: {home}/models/{n}  # {SECRETS['Hub token']}\n" for n in agents)
    text = f"{comments}merge_method: ram_plus\nbase_model: {home}/models/base\nmodels:\n{models}"
    (home / "merge.yml").write_text(text)


def environment(home):
    names = (
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "OPENAI_API_KEY",
        "AWS_ACCESS_KEY_ID",
        "GITHUB_TOKEN",
    )
    values = list(SECRETS.values())
    keys = dict(zip(names, [values[0], values[0], *values[1:]], strict=False))
    return {**keys, "HOME": str(home), "HTTPS_PROXY": URL}


def everything(directory, result):
    """All that a run has left: files, their names, and what it said."""
    yield "terminal", result.text
    for path in sorted(directory.rglob("*")):
        yield str(path.relative_to(directory)), path.name
        if path.is_file():
            yield str(path.relative_to(directory)), path.read_bytes().decode("latin-1")


def assert_silent(directory, result):
    count = 0
    for where, text in everything(directory, result):
        for name, secret in SECRETS.items():
            assert secret not in text, (name, where)
            count += 1
    return count


@pytest.mark.parametrize("report", ["--quiet", "--json"])
def test_a_merge_tells_no_secrets(server, home, size, report, record):
    adapter(home / "models/lora", home / "models/base")
    write_config(home, [*AGENTS, "lora"])
    env = environment(home)
    result = server.run(["merge", "merge.yml", "--out=out", report], env=env, cwd=str(home))
    assert result.code == 0, result
    checked = assert_silent(home / "out", result)
    if size == "full":
        where = "comments, paths, environment, adapter config"
        record(
            "7 secrets",
            f"{len(SECRETS)} secrets in {where}; {report}",
            f"{checked} looks",
            "0 hits",
        )


@pytest.mark.parametrize("secret", [s for s in SECRETS if s != "home directory"])
def test_a_directory_named_by_a_secret(server, home, size, secret, record):
    """As agents of CI jobs are: the path's last part is what a card would show."""
    value = SECRETS[secret]
    (home / "models/coder").rename(home / f"models/{value}")
    argv = [
        "merge",
        f"--base={home}/models/base",
        f"--agent=a={home}/models/{value}",
        "--out=out",
        "--json",
    ]
    result = server.run(argv, env=environment(home), cwd=str(home))
    assert result.code == 0, result
    if secret != "URL credentials":  # no form of its own: a word like any other
        assert_silent(home / "out", result)
    if size == "full" and secret != "URL credentials":
        record("7 secrets", f"a model directory named like a secret: {secret}", "1", "0 hits")


@pytest.mark.parametrize("place", ["base", "agent", "file"])
def test_errors_repeat_no_credentials(server, home, size, place, record):
    argv = ["plan", f"--base={home}/models/base", f"--agent=a={URL}"]
    if place == "base":
        argv = ["plan", f"--base={URL}", f"--agent=a={home}/models/coder"]
    if place == "file":
        write_config(home, AGENTS)
        text = (home / "merge.yml").read_text().replace(f"{home}/models/tools", URL)
        (home / "merge.yml").write_text(text + f"unknown: {SECRETS['Hub token']}\n")
        argv = ["plan", "merge.yml"]
    result = server.run(argv, env=environment(home), cwd=str(home))
    assert result.code != 0
    assert "hunter2secret" not in result.text, result
    assert SECRETS["Hub token"] not in result.text, result
    if size == "full":
        record("7 secrets", f"URL credentials as a model ({place}), in errors", "1", "0 hits")


# --- text that would like to be more ----------------------------------------------------------------


def prose(card):
    """A card without the merge file in it, in which markup is text, and without the fixed text below it."""
    fence = re.search(r"^(`{3,})yaml$", card, re.MULTILINE)
    before, rest = card[: fence.start()], card[fence.end() :].partition("\n## Citation\n")[0]
    assert rest.count(f"\n{fence[1]}\n") == 1
    return before + rest.partition(f"\n{fence[1]}\n")[2]


def test_names_stay_text(server, home, size, record):
    """Agents with hostile names: refused, or shown as text in card and terminal."""
    refused = shown = 0
    for i, name in enumerate(HOSTILE if size == "full" else HOSTILE[::5]):
        text = "merge_method: ram\nbase_model: models/base\nmodels:\n"
        text += f"  - model: models/coder\n    name: {json.dumps(name)}\n"
        (home / "merge.yml").write_text(text)
        result = server.run(["merge", "merge.yml", f"--out=out{i}"], cwd=str(home))
        assert result.code in {0, 2}, (name, result)
        visible = result.text.replace("\n", "")
        assert all(c.isprintable() for c in visible), (name, result)
        refused += result.code == 2
        if result.code == 0:
            shown += 1
            card = (home / f"out{i}/README.md").read_text()
            assert front_matter(card)["tags"] == ["merge", "ramerge", "ram"]
            parser = Elements()
            parser.feed(prose(card))
            assert parser.found == [], (name, parser.found)
    if size == "full":
        record("7 secrets", "agent names with markup, escapes, bidi, template syntax",
               f"{refused + shown}", f"{refused} refused, {shown} shown as text in card and terminal")  # fmt: skip


def test_a_directory_name_stays_text(server, home, size, record):
    names = [n for n in HOSTILE if "/" not in n and "\0" not in n]
    for i, name in enumerate(names if size == "full" else names[::6]):
        place = home / "models" / name
        (home / "models/coder").rename(place)
        argv = ["merge", "--base=models/base", f"--agent=a=models/{name}", f"--out=out{i}"]
        result = server.run(argv, cwd=str(home))
        place.rename(home / "models/coder")
        assert result.code in {0, 2, 3}, (name, result)
        assert all(c.isprintable() for c in result.text.replace("\n", "")), (name, result)
        if result.code == 0:
            parser = Elements()
            parser.feed(prose((home / f"out{i}/README.md").read_text()))
            assert parser.found == [], (name, parser.found)
    if size == "full":
        record("7 secrets", "directory names with markup, escapes, bidi", f"{len(names)}",
               "shown as text in card and terminal")  # fmt: skip


class Page(Elements):
    """Tags with their attributes' names, and every URL."""

    def __init__(self):
        super().__init__()
        self.tags, self.urls = set(), []

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            self.tags.add((tag, name))
            if name in {"src", "href", "action", "formaction", "data", "xlink:href"}:
                self.urls.append(value)

    handle_startendtag = handle_starttag


def report_of(server, home, argv):
    """A probe's HTML and JSON."""
    page, figures = home / "report.html", home / "report.json"
    result = server.run([*argv, "--html=report.html", "--json=report.json"], cwd=str(home))
    if result.code:
        return result, None, None
    return result, page.read_text(), figures.read_text()


def test_the_report_of_a_probe(server, home, size, record):
    """Hostile names make no element, attribute or address that a plain report has not."""
    pytest.importorskip("ramerge.report.html")
    argv = ["probe", f"--base={home}/models/base", f"--agent={home}/models/tools"]
    result, html, figures = report_of(server, home, [*argv, f"--agent={home}/models/coder"])
    assert result.code == 0, result
    assert SECRETS["home directory"] not in html + figures
    plain = Page()
    plain.feed(html)
    names = [n for n in HOSTILE if "/" not in n and "\0" not in n]
    shown = refused = 0
    for name in names if size == "full" else names[::6]:
        place = home / "models" / name
        (home / "models/coder").rename(place)
        result, html, figures = report_of(server, home, [*argv, f"--agent=models/{name}"])
        place.rename(home / "models/coder")
        assert result.code in {0, 2}, (name, result)
        assert all(c.isprintable() for c in result.text.replace("\n", "")), (name, result)
        refused += result.code == 2
        if html is None:
            continue
        shown += 1
        hostile = Page()
        hostile.feed(html)
        assert hostile.tags <= plain.tags, (name, hostile.tags - plain.tags)
        assert set(hostile.urls) <= set(plain.urls), name
        assert not any(a.startswith("on") for _, a in hostile.tags)
        assert "default-src 'none'" in html
        json.loads(figures)
    assert not any(re.match(r"\s*(?!#|data:)", u or "#") for u in plain.urls), plain.urls
    if size == "full":
        text = (
            f"{shown} shown as text, {refused} refused; no element, attribute or address of theirs"
        )
        record("7 secrets", "directory names with markup in the HTML report", f"{len(names)}", text)

"""A scripted OpenAI-compatible server on loopback, in this process or (run as a program) in its own."""

import asyncio
import json
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Reply:
    """What the server does with one request."""

    text: str = ""
    finish: str = "stop"
    status: int = 200
    raw: bytes | None = None  # sent instead of a completion
    delay: float = 0.0
    calls: list = field(default_factory=list)
    headers: dict = field(default_factory=dict)


def completion(reply, *, raw=False):
    message = {"role": "assistant", "content": reply.text}
    if reply.calls:
        message["tool_calls"] = [
            {"id": str(i), "type": "function", "function": c} for i, c in enumerate(reply.calls)
        ]
    said = {"text": reply.text} if raw else {"message": message}
    body = {
        "choices": [{"index": 0, **said, "finish_reason": reply.finish}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3},
    }
    return json.dumps(body).encode()


class Server:
    """``script(body) -> Reply`` answers; ``bodies`` are all requests seen; ``busiest`` the most at once."""

    def __init__(self, script):
        self.script, self.bodies, self.now, self.busiest = script, [], 0, 0
        self.headers = []  # of every request, names in lower case

    async def serve(self, reader, writer):
        try:
            while line := await reader.readline():
                path, headers = line.split()[1], {}
                while (header := await reader.readline()).strip():
                    name, _, value = header.partition(b":")
                    headers[name.lower()] = value.strip()
                self.headers.append(headers)
                body = await reader.readexactly(int(headers.get(b"content-length", 0)))
                await self.respond(path, body, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def respond(self, path, body, writer):
        if path.endswith(b"/models"):
            reply, sent = Reply(), json.dumps({"data": [{"id": "scripted"}]}).encode()
        else:
            asked = json.loads(body)
            self.bodies.append(asked)
            self.now += 1
            self.busiest = max(self.busiest, self.now)
            reply = self.script(asked)
            await asyncio.sleep(reply.delay)
            self.now -= 1
            raw = not path.endswith(b"/chat/completions")
            sent = completion(reply, raw=raw) if reply.raw is None else reply.raw
        extra = "".join(f"{k}: {v}\r\n" for k, v in reply.headers.items())
        head = f"HTTP/1.1 {reply.status} X\r\nContent-Type: application/json\r\n{extra}Content-Length: {len(sent)}\r\n\r\n"
        writer.write(head.encode() + sent)
        await writer.drain()


@contextmanager
def serving(script):
    """Yields (url, server) of a server in a thread of this process."""
    server, ready, known = Server(script), threading.Event(), {}

    async def main():
        known.update(loop=asyncio.get_running_loop(), stop=asyncio.Event())
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        known["port"] = listening.sockets[0].getsockname()[1]
        ready.set()
        await known["stop"].wait()
        listening.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield f"http://127.0.0.1:{known['port']}/v1", server
    finally:
        known["loop"].call_soon_threadsafe(known["stop"].set)
        thread.join()


def question(body):
    """The last user message, or the raw text."""
    return body["prompt"] if "prompt" in body else body["messages"][-1]["content"]


def by_question(answers, otherwise="I do not know"):
    """A script that answers by the piece of text that a question contains."""

    def script(body):
        text = question(body)
        found = next((a for piece, a in answers.items() if piece in text), otherwise)
        return found if isinstance(found, Reply) else Reply(found)

    return script


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def evaluate(tmp_path, suite, script, data, **options):
    """Run a suite for a scripted model: (column, metric) -> (score, n, flags, errors), and the server."""
    from ramerge.evaluate.asking import Pace
    from ramerge.evaluate.records import Options
    from ramerge.evaluate.runner import run

    paths = {
        name: found if isinstance(found, str) else write_rows(tmp_path / f"{name}.jsonl", found)
        for name, found in data.items()
    }
    with serving(script) as (url, server):
        report = run(
            {"m": url},
            [suite],
            out=tmp_path / "out",
            options=Options(data=paths, **options),
            pace=Pace(attempts=1),
        )
    return {
        key: (cell.score.mean, cell.score.n, cell.flags, cell.errors)
        for key, cell in report.cells["m"].items()
    }, server


def scores(found):
    return {key: values[0] for key, values in found.items()}


if (
    __name__ == "__main__"
):  # delay_s log_file: logs each question when it comes and when it is answered
    delay, log = float(sys.argv[1]), open(sys.argv[2], "a", buffering=1)  # noqa: SIM115

    def script(body):
        log.write(json.dumps(question(body)) + "\n")
        return Reply("so \\boxed{7}", delay=delay)

    async def main():
        listening = await asyncio.start_server(Server(script).serve, "127.0.0.1", 0)
        print(listening.sockets[0].getsockname()[1], flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())

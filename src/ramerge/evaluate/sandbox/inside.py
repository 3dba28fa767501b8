"""The two small programs that run inside boxes: the solution, which answers calls, and the checker, which makes them.

They are text: neither is ever run in our own process. They talk in lines of JSON in which only built-in
values exist, so a solution can return wrong values, but no object that lies about being equal, and it
shares no process with the code that decides. Tuples, sets, bytes, complex numbers and dictionaries with
other than text keys are tagged.
"""

from __future__ import annotations

CODEC = """
def pack(v, depth=0):
    if depth > 60: raise TypeError("nested too deeply")
    t = type(v)
    if t in (bool, float, str) or v is None: return v
    if t is int: return v if -2**53 < v < 2**53 else {"i": hex(v)}
    if t in (list, tuple, set, frozenset):
        items = [pack(x, depth + 1) for x in v]
        return items if t is list else {{tuple: "t", set: "s", frozenset: "f"}[t]: items}
    if t is dict: return {"d": [[pack(k, depth + 1), pack(x, depth + 1)] for k, x in v.items()]}
    if t is complex: return {"c": [v.real, v.imag]}
    if t in (bytes, bytearray): return {"b": v.hex()}
    for plain in (bool, int, float, str, list, tuple, dict, set, bytes):
        if issubclass(t, plain): return pack(plain(v), depth + 1)  # Counter, defaultdict, IntEnum, namedtuple ...
    if hasattr(v, "__next__") or t.__name__ in ("dict_keys", "dict_values", "dict_items", "range", "deque"):
        import itertools
        return pack(list(itertools.islice(v, 100000)), depth + 1)
    raise TypeError(t.__name__)

def unpack(v):
    if type(v) is list: return [unpack(x) for x in v]
    if type(v) is not dict: return v
    (kind, x), = v.items()
    if kind == "i": return int(x, 16)
    if kind == "d": return {unpack(k): unpack(y) for k, y in x}
    if kind == "c": return complex(*x)
    if kind == "b": return bytes.fromhex(x)
    return {"t": tuple, "s": set, "f": frozenset}[kind](map(unpack, x))
"""

# First line in: {"code", "nonce"}. First line out: the nonce; then "loaded" or an error; then an answer to each call.
SOLUTION = (
    """
import json, os, sys
sys.set_int_max_str_digits(0)
line = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the solution prints is not an answer
first = json.loads(sys.stdin.readline())
calls, sys.stdin = sys.stdin, open(os.devnull)
"""
    + CODEC
    + """
def say(**what): line.write(json.dumps(what) + "\\n")
say(nonce=first["nonce"])
space = {"__name__": "solution"}
try:
    exec(compile(first["code"], "solution", "exec"), space)
except BaseException as e:
    say(error=type(e).__name__); raise SystemExit
say(loaded=[n for n, v in space.items() if callable(v)])
for call in calls:
    call = json.loads(call)
    try:
        value = space[call["name"]](*map(unpack, call["args"]), **{k: unpack(v) for k, v in call["named"]})
        say(value=pack(value))
    except BaseException as e:
        say(raised=type(e).__name__, text=str(e)[:200])
"""
)

# First line in: {"tests", "names", "nonce"}. Then calls out and answers in; last the verdict with the nonce.
CHECKER = (
    """
import builtins, json, os, sys
sys.set_int_max_str_digits(0)
first = json.loads(sys.stdin.readline())
"""
    + CODEC
    + """
def say(**what): sys.__stdout__.write(json.dumps(what) + "\\n"); sys.__stdout__.flush()
sys.stdout = sys.stderr
def proxy(name):
    def call(*args, **named):
        say(name=name, args=[pack(a) for a in args], named=[[k, pack(v)] for k, v in named.items()])
        answer = json.loads(sys.stdin.readline() or "{}")
        if "value" in answer: return unpack(answer["value"])
        kind = getattr(builtins, str(answer.get("raised")), RuntimeError)
        if not (isinstance(kind, type) and issubclass(kind, Exception)): kind = RuntimeError
        raise kind(answer.get("text", "no answer"))
    return call
verdict, why = "pass", ""
try:
    space = {"__name__": "tests", **{name: proxy(name) for name in first["names"]}}
    exec(compile(first["tests"], "tests", "exec"), space)
except BaseException as e:
    verdict, why = "fail", type(e).__name__ + ": " + str(e)[:200]
say(verdict=verdict, why=why, nonce=first["nonce"])
"""
)

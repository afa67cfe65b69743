"""Makes keys.jsonl, once: 10,000 lines [id, types, key space, values, key]. It refuses to replace the file.

types:  a letter a value: i integer, t text, n null.
values: a list, one element a part of a cross; integers as decimal text, text as it stands, null as null.
key:    16 hexadecimal digits. Made with mmh3 and the formula of docs/keys.md, not with the native code.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import mmh3

PATH = Path(__file__).with_name("keys.jsonl")
M = (1 << 64) - 1
SPACES = ["user", "item", "ad/creative", "c17", "Ünïcode", "a", "x" * 33]
TEXTS = [
    "",
    "nan",
    "None",
    "null",
    "NA",
    "0",
    "inf",
    "5",
    "05",
    "+5",
    " 5",
    "5 ",
    "foo",
    "abc",
    "café",
    "cafe\u0301",
    "\U0001f680",
    "a\x00b",
    "\x00",
    "Action",
    "Action|Comedy",
    "true",
    "1e5",
    "-5",
    "中文",
    "\ufeffbom",
    "a" * 15,
    "a" * 16,
    "a" * 17,
    "a" * 31,
    "a" * 32,
    "a" * 33,
    "a" * 500,
]
EDGES = [0, 1, -1, 5, 2**24 + 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), -(2**53) - 1]
UNSIGNED = [0, 5, 2**63 - 1, 2**63, 2**63 + 1, 2**63 + 5, 2**64 - 1]


def mix64(h: int) -> int:
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD & M
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 & M
    return h ^ h >> 33


def h_of(value: int | str | None) -> int:
    if value is None:
        value = "embershard/missing"
    return value & M if isinstance(value, int) else mmh3.hash64(value.encode(), signed=False)[0]


def key(space: str, values: list[int | str | None]) -> int:
    k = mmh3.hash64(space.encode(), signed=False)[0]
    for value in values:
        k = mix64(k ^ h_of(value))
    return k


def main() -> None:
    draw = random.Random(20_240_229)
    alphabet = "abcdefghijklmnopqrstuvwxyzABC0123456789-_.:/|éß中\U0001f600"
    rows: list[tuple[str, str, list[int | str | None]]] = []
    for space in SPACES:
        rows += [("text", space, [t]) for t in [*TEXTS, None]]
        rows += [("int64", space, [v]) for v in [*EDGES, None]]
        rows += [("uint64", space, [v]) for v in [*UNSIGNED, None]]
    while len(rows) < 10_000:
        space = draw.choice(SPACES)
        text = "".join(draw.choices(alphabet, k=draw.randrange(0, 40)))
        signed, unsigned = draw.randrange(-(1 << 63), 1 << 63), draw.getrandbits(64)
        kind = draw.choice(["text", "text", "int64", "uint64", "cross"])
        values: dict[str, list[int | str | None]] = {
            "text": [text],
            "int64": [signed >> draw.randrange(0, 60)],
            "uint64": [unsigned >> draw.randrange(0, 60)],
            "cross": [signed, text, *([None] if draw.random() < 0.2 else [])],
        }
        rows.append((kind, space, values[kind]))
    with PATH.open("x", encoding="utf-8", newline="\n") as file:
        for kind, space, parts in rows:
            shown = [str(v) if isinstance(v, int) else v for v in parts]
            types = "".join("n" if v is None else "i" if isinstance(v, int) else "t" for v in parts)
            file.write(json.dumps([kind, types, space, shown, f"{key(space, parts):016x}"], ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()

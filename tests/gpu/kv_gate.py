"""Four requests at once to four decode nodes, through the gate and past it: whose KV arrives? Needs what up.sh starts.

Ends with 0 when the gate kept all apart and the same requests without it were not. Standard library alone.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from verdict import Handover, Verdict, verdict

NAMES = ("A", "B", "C", "D")
WORDS = ["hello", "world", "this", "is", "a", "tiny", "tokenizer", "for", "testing"]
_SECONDS = 120.0


@dataclass(frozen=True)
class Place:
    """Where everything listens."""

    vllm: str
    gate: str
    decode_host: str
    first_ctrl_port: int

    def ctrl_port(self, name: str) -> int:
        return self.first_ctrl_port + 100 * NAMES.index(name)

    def decode(self, name: str, path: str, body: dict[str, Any]) -> Any:
        """Ask a decode node."""
        return post(f"http://{self.decode_host}:{self.ctrl_port(name) + 1}{path}", body)


def post(url: str, body: dict[str, Any]) -> Any:
    """The answer's JSON; OSError when there is none or it is an error."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
        return json.load(answer)


def prompt(name: str, words: int) -> str:
    """Of each name its own, the same every time."""
    drawn = random.Random(name)
    return " ".join(drawn.choice(WORDS) for _ in range(words))


def hand_over(place: Place, url: str, name: str, words: int) -> str:
    """As pd_router does: prefill, then decode; returns the request's id at the decode node."""
    target = {"tilert_host": place.decode_host, "tilert_ctrl_port": place.ctrl_port(name)}
    body = {"model": "glm5", "prompt": prompt(name, words), "max_tokens": 1, "temperature": 0, "logprobs": 1}
    answer = post(f"{url}/v1/completions", {**body, "kv_transfer_params": target})
    rid = rid_of(answer["id"])
    place.decode(name, "/pd/decode", {"rid": rid, "first_token_id": 5, "max_tokens": 3, "timeout_s": 30})
    return rid


def rid_of(request_id: str) -> str:
    """TileRT's own derivation where the wheel is, else what it does with ids as vLLM makes them."""
    try:
        from tilert.pd_vllm.wire import derive_rid
    except ImportError:
        return request_id.removeprefix("cmpl-")
    return str(derive_rid(request_id))


def take_references(place: Place, words: int) -> None:
    """What each prompt gives alone; every decode node learns all of them."""
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            hand_over(place, place.gate, name, words)  # the first one of a process pays for its warm-up
            rid = hand_over(place, place.gate, name, words)
            place.decode(name, "/probe/ref", {"name": name, "rid": rid})
            place.decode(name, "/probe/save", {"name": name, "path": f"{folder}/{name}.pt"})
        for name in NAMES:
            for other in NAMES:
                place.decode(name, "/probe/load", {"name": other, "path": f"{folder}/{other}.pt"})


def at_once(place: Place, url: str, rounds: int, words: int) -> Verdict:
    """All four, ``rounds`` times."""
    together = threading.Barrier(len(NAMES))

    def one(name: str) -> Handover | None:
        together.wait()
        try:
            rid = hand_over(place, url, name, words)
            return Handover.of(name, place.decode(name, "/probe/compare", {"rid": rid}))
        except OSError as failure:
            print(f"{name}: {failure}", file=sys.stderr)
            return None

    with ThreadPoolExecutor(len(NAMES)) as pool:
        results = [result for _ in range(rounds) for result in pool.map(one, NAMES)]
    return verdict([r for r in results if r is not None], failed=results.count(None))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--rounds", type=int, default=60, help="through the gate, four hand-overs each")
    made.add_argument("--rounds-without", type=int, default=15, help="past it")
    made.add_argument("--words", type=int, default=150, help="of a prompt")
    made.add_argument("--vllm", default="http://127.0.0.1:8000")
    made.add_argument("--gate", default="http://127.0.0.1:8100")
    made.add_argument("--decode-host", default="127.0.0.1")
    made.add_argument("--ctrl-port", type=int, default=5556, help="of the first decode node; HTTP is one above")
    made.add_argument("--out", type=Path, help="file for the result as JSON")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    args = parser().parse_args(argv)
    place = Place(args.vllm, args.gate, args.decode_host, args.ctrl_port)
    take_references(place, args.words)
    told: dict[str, Any] = {}
    for what, url, rounds in (("gate", place.gate, args.rounds), ("without", place.vllm, args.rounds_without)):
        began = time.monotonic()
        found = at_once(place, url, rounds, args.words)
        told[what] = {**found.document(), "seconds": round(time.monotonic() - began, 1)}
        print(f"{what}: {json.dumps(told[what])}", flush=True)
        told[f"{what} ok"] = found.is_clean if what == "gate" else found.is_corrupt
    if args.out:
        args.out.write_text(json.dumps(told, indent=2) + "\n")
    return 0 if told["gate ok"] and told["without ok"] else 1


if __name__ == "__main__":
    sys.exit(main())

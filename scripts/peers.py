"""Foretoken and its peers in turn: plain decoding and a prompt of 512, medians, by threads. `--json` for machines.

Peers are timed by their own counters; Foretoken by `foretoken bench` without drafting.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys

# A file beside this one each: only a peer that is asked for is imported.
PEERS = {"llama.cpp": "peer_llama_cpp", "mlx-lm": "peer_mlx_lm"}
PROMPT = "Write a short story about a lighthouse keeper who finds a letter in a bottle."


def args():
    p = argparse.ArgumentParser()
    p.add_argument("foretoken")
    p.add_argument("gguf")
    p.add_argument("folder", help="the same weights in MLX's layout")
    p.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), help="default: those that are installed")
    p.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    p.add_argument("--tokens", type=int, default=96)
    p.add_argument("--prefill", type=int, default=512)
    p.add_argument("--repetitions", type=int, default=3)
    p.add_argument("--long", type=int, help="also a step after so many tokens over one after 512, once, beside llama.cpp")
    p.add_argument("--json", action="store_true")
    return p.parse_args()


def bench(a, threads, *more):
    out = subprocess.run(
        [a.foretoken, "bench", "starter", "--json", "--deepest", "0", "--prompts", "1", "--repetitions", "1", *more],
        env={**os.environ, "FORETOKEN_THREADS": str(threads)},
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(out.stdout.strip().splitlines()[-1])


def ours(a, threads):
    """Decoding speed over the three classes of prompts, and prefill."""
    report = bench(a, threads, "--max-tokens", str(a.tokens))
    decode = statistics.median(d["tok_s"] for d in report["decode"] if d["depth"] == 0)
    prefill = next(p["tok_s"] for p in report["prefill"] if p["tokens"] == a.prefill)
    return decode, prefill


def load(a, threads):
    peers = {}
    for name in a.peers:
        try:
            peers[name] = importlib.import_module(PEERS[name]).Peer(a, threads)
        except ImportError as e:
            print(f"peers: {name} is left out, it cannot be imported: {e}", file=sys.stderr)
    if not peers:
        sys.exit("peers: none to measure beside")
    return peers


def prompt(peer, tokens=None):
    """The prompt's ids, repeated up to so many."""
    ids = peer.tokenize(PROMPT)
    return (ids * (tokens // len(ids) + 1))[:tokens] if tokens else ids


def compare(a, peers, threads):
    """One row a peer: medians of both, and of the ratios of runs taken together."""
    runs = {name: [] for name in peers}
    for peer in peers.values():
        peer.decode(prompt(peer), 8)
    for _ in range(a.repetitions):
        # In turn, so that a slow moment of the machine meets all.
        us = ours(a, threads)
        for name, peer in peers.items():
            runs[name].append((*us, peer.decode(prompt(peer), a.tokens), peer.prefill(prompt(peer, a.prefill))))
    for name, rs in runs.items():
        decode, prefill, peer_decode, peer_prefill = (statistics.median(c) for c in zip(*rs))
        yield {
            "threads": threads,
            "peer": name,
            "version": peers[name].version,
            "note": peers[name].note,
            "decode_tok_s": decode,
            "peer_decode_tok_s": peer_decode,
            "decode_ratio": statistics.median(r[0] / r[2] for r in rs),
            "prefill_tok_s": prefill,
            "peer_prefill_tok_s": peer_prefill,
            "prefill_ratio": statistics.median(r[1] / r[3] for r in rs),
        }


def growth(a, peer, threads):
    peer_short, peer_long = (peer.step_after(prompt(peer, n)) for n in (512, a.long))
    short, long = (c["ms"] for c in bench(a, threads, "--max-tokens", "2", "--long", str(a.long))["contexts"])
    return {"short": short, "long": long, "peer_short": peer_short, "peer_long": peer_long}


def table(a, rows):
    print(f"Foretoken beside its peers, medians of {a.repetitions} runs in turn, tok/s")
    for name in dict.fromkeys(r["peer"] for r in rows):
        own = [r for r in rows if r["peer"] == name]
        print("\n" + "; ".join(filter(None, [own[-1]["version"], own[-1]["note"]])))
        print("threads   decode    peer   ratio   prefill    peer   ratio")
        for r in own:
            print(
                f"{r['threads']:7} {r['decode_tok_s']:8.1f} {r['peer_decode_tok_s']:7.1f} {r['decode_ratio']:6.2f}x"
                f" {r['prefill_tok_s']:9.0f} {r['peer_prefill_tok_s']:7.0f} {r['prefill_ratio']:6.2f}x"
            )
            if g := r.get("growth_ms"):
                print(
                    f"        ms a step after 512 and {a.long} tokens: {g['short']:.2f} {g['long']:.2f} (+{g['long'] - g['short']:.2f}),"
                    f" peer {g['peer_short']:.2f} {g['peer_long']:.2f} (+{g['peer_long'] - g['peer_short']:.2f})"
                )


def main():
    a = args()
    rows = []
    for threads in a.threads:
        peers = load(a, threads)
        for row in compare(a, peers, threads):
            if a.long and row["peer"] == "llama.cpp":
                row["growth_ms"] = growth(a, peers["llama.cpp"], threads)
            rows.append(row)
    if a.json:
        print(json.dumps({"rows": rows}))
    else:
        table(a, rows)


if __name__ == "__main__":
    main()

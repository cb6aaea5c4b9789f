"""Foretoken and llama.cpp in turn: plain decoding and a prompt of 512, medians, by threads. `--json` for machines.

llama.cpp is timed by its own performance counters; Foretoken by `foretoken bench` without drafting.
"""

import argparse
import json
import os
import statistics
import subprocess

import llama_cpp

PROMPT = "Write a short story about a lighthouse keeper who finds a letter in a bottle."


def args():
    p = argparse.ArgumentParser()
    p.add_argument("foretoken")
    p.add_argument("gguf")
    p.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    p.add_argument("--tokens", type=int, default=96)
    p.add_argument("--prefill", type=int, default=512)
    p.add_argument("--repetitions", type=int, default=5)
    p.add_argument("--long", type=int, help="also a step after so many tokens over one after 512, once")
    p.add_argument("--json", action="store_true")
    return p.parse_args()


class Peer:
    def __init__(self, a, threads):
        self.a = a
        self.llm = llama_cpp.Llama(
            a.gguf, n_threads=threads, n_threads_batch=threads, n_ctx=max(2048, (a.long or 0) + 64), n_batch=512, verbose=False
        )
        self.ids = self.llm.tokenize(PROMPT.encode())

    def counters(self):
        # They are brought up to date by whoever waits for the computation.
        llama_cpp.llama_synchronize(self.llm.ctx)
        return llama_cpp.llama_perf_context(self.llm.ctx)

    def decode(self):
        """Tokens per second after the prompt."""
        llm = self.llm
        llm.reset()
        llm.eval(self.ids)
        llama_cpp.llama_perf_context_reset(llm.ctx)
        for _ in range(self.a.tokens):
            llm.eval([llm.sample(temp=0.0)])
        c = self.counters()
        return 1e3 * c.n_eval / c.t_eval_ms

    def prefill(self):
        llm = self.llm
        ids = (self.ids * (self.a.prefill // len(self.ids) + 1))[: self.a.prefill]
        llm.reset()
        llama_cpp.llama_perf_context_reset(llm.ctx)
        llm.eval(ids)
        c = self.counters()
        return 1e3 * c.n_p_eval / c.t_p_eval_ms


    def step_after(self, tokens):
        """Milliseconds of a step after so many tokens, the median of a few."""
        llm = self.llm
        ids = (self.ids * (tokens // len(self.ids) + 1))[:tokens]
        llm.reset()
        llm.eval(ids)
        self.counters()
        ms = []
        for _ in range(16):
            llama_cpp.llama_perf_context_reset(llm.ctx)
            llm.eval([llm.sample(temp=0.0)])
            c = self.counters()
            ms.append(c.t_eval_ms / c.n_eval)
        return statistics.median(ms)


def our_growth(a, threads):
    report = bench(a, threads, "--max-tokens", "2", "--long", str(a.long))
    return [c["ms"] for c in report["contexts"]]


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


def main():
    a = args()
    rows = []
    for threads in a.threads:
        peer = Peer(a, threads)
        peer.decode()
        runs = []
        for _ in range(a.repetitions):
            # In turn, so that a slow moment of the machine meets both.
            runs.append((*ours(a, threads), peer.decode(), peer.prefill()))
        decode, prefill, peer_decode, peer_prefill = (statistics.median(c) for c in zip(*runs))
        rows.append(
            {
                "threads": threads,
                "decode_tok_s": decode,
                "peer_decode_tok_s": peer_decode,
                "decode_ratio": statistics.median(r[0] / r[2] for r in runs),
                "prefill_tok_s": prefill,
                "peer_prefill_tok_s": peer_prefill,
                "prefill_ratio": statistics.median(r[1] / r[3] for r in runs),
            }
        )
        if a.long:
            peer_short, peer_long = peer.step_after(512), peer.step_after(a.long)
            short, long = our_growth(a, threads)
            rows[-1]["growth_ms"] = {"short": short, "long": long, "peer_short": peer_short, "peer_long": peer_long}
    if a.json:
        print(json.dumps({"peer": f"llama-cpp-python {llama_cpp.__version__}", "rows": rows}))
        return
    print(f"Foretoken beside llama-cpp-python {llama_cpp.__version__}, medians of {a.repetitions} runs in turn, tok/s")
    print("threads   decode    peer   ratio   prefill    peer   ratio")
    for r in rows:
        print(
            f"{r['threads']:7} {r['decode_tok_s']:8.1f} {r['peer_decode_tok_s']:7.1f} {r['decode_ratio']:6.2f}x"
            f" {r['prefill_tok_s']:9.0f} {r['peer_prefill_tok_s']:7.0f} {r['prefill_ratio']:6.2f}x"
        )
        if g := r.get("growth_ms"):
            print(
                f"        ms a step after 512 and {a.long} tokens: {g['short']:.2f} {g['long']:.2f} (+{g['long'] - g['short']:.2f}),"
                f" peer {g['peer_short']:.2f} {g['peer_long']:.2f} (+{g['peer_long'] - g['peer_short']:.2f})"
            )


if __name__ == "__main__":
    main()

"""llama.cpp, timed by its own performance counters."""

import statistics

import llama_cpp


class Peer:
    version = f"llama-cpp-python {llama_cpp.__version__}"
    note = None

    def __init__(self, a, threads):
        self.llm = llama_cpp.Llama(
            a.gguf, n_threads=threads, n_threads_batch=threads, n_ctx=max(2048, (a.long or 0) + 64), n_batch=512, verbose=False
        )

    def tokenize(self, text):
        return self.llm.tokenize(text.encode())

    def counters(self):
        # They are brought up to date by whoever waits for the computation.
        llama_cpp.llama_synchronize(self.llm.ctx)
        return llama_cpp.llama_perf_context(self.llm.ctx)

    def decode(self, prompt, tokens):
        """Tokens per second after the prompt."""
        llm = self.llm
        llm.reset()
        llm.eval(prompt)
        llama_cpp.llama_perf_context_reset(llm.ctx)
        for _ in range(tokens):
            llm.eval([llm.sample(temp=0.0)])
        c = self.counters()
        return 1e3 * c.n_eval / c.t_eval_ms

    def prefill(self, prompt):
        """Tokens of the prompt per second."""
        llm = self.llm
        llm.reset()
        llama_cpp.llama_perf_context_reset(llm.ctx)
        llm.eval(prompt)
        c = self.counters()
        return 1e3 * c.n_p_eval / c.t_p_eval_ms

    def step_after(self, prompt):
        """Milliseconds of a step after the prompt, the median of a few."""
        llm = self.llm
        llm.reset()
        llm.eval(prompt)
        self.counters()
        ms = []
        for _ in range(16):
            llama_cpp.llama_perf_context_reset(llm.ctx)
            llm.eval([llm.sample(temp=0.0)])
            c = self.counters()
            ms.append(c.t_eval_ms / c.n_eval)
        return statistics.median(ms)

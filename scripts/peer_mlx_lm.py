"""mlx-lm on the CPU, timed by its own counters."""

import statistics
import time

import mlx.core as mx

# Before mlx_lm, which makes its stream on the default device when it is imported.
mx.set_default_device(mx.cpu)

import mlx_lm


class Peer:
    version = f"mlx-lm {mlx_lm.__version__} (mlx {mx.__version__}) on the CPU"

    def __init__(self, a, threads):
        # It reads model*.safetensors only, so the folder's head stays out of it.
        self.model, self.tokenizer = mlx_lm.load(a.folder)
        # The folder's f16 scales as f32: the same values, and no conversion at every use.
        self.model.set_dtype(mx.float32)
        # It would stop at an end of text, where the others go on.
        self.tokenizer.eos_token_ids = set()
        self.cores = []

    @property
    def note(self):
        # mlx cannot be told a number of threads, so what it took is measured.
        return f"activations in f32; it has no setting for threads and kept {statistics.median(self.cores):.1f} cores busy"

    def tokenize(self, text):
        return self.tokenizer.encode(text)

    def generate(self, prompt, tokens):
        wall, cpu = time.perf_counter(), time.process_time()
        *_, last = mlx_lm.stream_generate(self.model, self.tokenizer, prompt, max_tokens=tokens)
        self.cores.append((time.process_time() - cpu) / (time.perf_counter() - wall))
        return last

    def decode(self, prompt, tokens):
        """Tokens per second after the prompt."""
        # Its clock starts with the first token, which it counts as well.
        return self.generate(prompt, tokens).generation_tps * (tokens - 1) / tokens

    def prefill(self, prompt):
        """Tokens of the prompt per second."""
        return self.generate(prompt, 1).prompt_tps

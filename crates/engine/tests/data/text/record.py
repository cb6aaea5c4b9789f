"""Records `golden.json`: the conversations through every template here, rendered as transformers does.

    pip install jinja2 && python record.py
    pip install gguf   && python record.py smollm2 SmolLM2-135M-Instruct.Q4_1.gguf

The second form cuts the tokenizer of SmolLM2 (Apache-2.0, Hugging Face) down to its first merges and writes
`smollm2/gguf.json` and `smollm2/chat_template.jinja`.
"""

import datetime
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
N_MERGES = 1200
TIME = datetime.datetime(2025, 3, 4, 5, 6, 7)


def render(source, special, turns, prompt, extra):
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller):
            return caller()

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = TIME.strftime
    messages = []
    for turn in turns:
        message = {"role": turn["role"], "content": turn["content"]}
        if "reasoning" in turn:
            message["reasoning_content"] = turn["reasoning"]
        messages.append(message)
    values = {"tools": None, "documents": None, **special, **extra}
    try:
        text = env.from_string(source).render(messages=messages, add_generation_prompt=prompt, **values)
    except jinja2.exceptions.TemplateError as e:
        return {"refused": str(e)}
    return {"text": text}


def record():
    golden = []
    for name in ["step3p5", "hy_v3", "smollm2", "helpers"]:
        folder = HERE / ("step3p5" if name == "helpers" else name)
        source = (HERE / "helpers.jinja" if name == "helpers" else folder / "chat_template.jinja").read_text()
        special = {}
        if name == "smollm2":
            special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
            special |= {"pad_token": "<|im_end|>", "unk_token": "<|endoftext|>"}
        else:
            config = json.loads((folder / "tokenizer_config.json").read_text())
            special = {k: config[k] for k in ["bos_token", "eos_token", "pad_token", "unk_token"] if k in config}
        for c in json.loads((HERE / "conversations.json").read_text()):
            result = render(source, special, c["turns"], c["prompt"], c.get("extra", {}))
            golden.append({"template": name, "conversation": c["name"], **result})
    (HERE / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")


def cut_smollm2(file):
    from gguf import GGUFReader

    fields = {k: f.contents() for k, f in GGUFReader(file).fields.items() if k.startswith("tokenizer")}
    get = lambda key: fields.get("tokenizer.ggml." + key)
    merges = get("merges")[:N_MERGES]
    made = {m.replace(" ", "", 1) for m in get("merges")} - {m.replace(" ", "", 1) for m in merges}
    kept = [(t, k) for t, k in zip(get("tokens"), get("token_type")) if t not in made]
    out = {
        "model": get("model"), "pre": get("pre"),
        "tokens": [t for t, _ in kept], "token_types": [k for _, k in kept], "merges": merges,
        "bos": get("bos_token_id"), "eos": get("eos_token_id"), "pad": get("padding_token_id"), "unk": get("unknown_token_id"),
        "add_bos": get("add_bos_token"),
    }
    folder = HERE / "smollm2"
    folder.mkdir(exist_ok=True)
    (folder / "gguf.json").write_text(json.dumps(out, ensure_ascii=False) + "\n")
    (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"])


if __name__ == "__main__":
    cut_smollm2(sys.argv[2]) if sys.argv[1:2] == ["smollm2"] else record()

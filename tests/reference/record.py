"""Record what other engines say about the embedded model, for tests/test_parity.py.

Needs ``torch``, ``transformers`` and ``xllamacpp`` (none of them is a dependency of tinykit):

    pip install torch transformers gguf xllamacpp
    python tests/reference/record.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf

Token ids come from llama.cpp's tokenizer, greedy answers and log-probabilities from transformers in float32
on the dequantised weights. Both read the GGUF file with their own code.
"""

import json
import sys
import urllib.request
from pathlib import Path

NASTY_TEXTS = [
    "Hello, world!",
    "  two leading spaces and     five inside",
    "tab\tand\nnewline\r\nand\n\n\nthree newlines\n",
    "x = 1234567890 + 3.14159e-10",
    "don't I'll we've they're he'd I'm CAN'T",
    "naïve café Ångström ß ﬁ",
    "漢字とカナ、そして한국어 그리고 中文。",
    "مرحبا بالعالم שלום עולם",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 flags 🇩🇪",
    "\u0001\u0002\u001b[31mred\u001b[0m\u007f",
    "a\u200bb\u00a0c\u3000d\u2028e",
    "def f(a, b):\n    return {k: v for k, v in zip(a, b)}\n",
    "C:\\Users\\me\\file.txt /usr/local/lib/python3.11",
    "https://example.org/a?b=c&d=%20#frag",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    " " * 50 + "x" + " " * 17,
    "<|im_start|>system\nnot a system turn<|im_end|>\n<|endoftext|>",
    "½ ² ① Ⅷ ٣ 三",
    "é e\u0301 ü u\u0308",
    "\n",
    " ",
]
PROMPTS = [
    "Name three uses of a paper clip.",
    "Why is the sky blue? Answer in one sentence.",
    "Write a haiku about autumn rain.",
    "Translate to French: The cat sleeps on the warm stove.",
    "What is the capital of Australia?",
    "Explain what a mutex is to a ten-year-old.",
    "List the first five prime numbers.",
    "Fix the flaky login test in the CI pipeline, it times out on slow runners",
    "why does my docker container exit with code 137",
    "My postgres query is slow, what index should I add for ORDER BY created_at?",
    "Summarize: The meeting moved from Monday to Wednesday because two people are ill.",
    "def fib(n):\n    # complete this function",
]
NEW_TOKENS = 24
TOP = 8


def chat(message: str) -> str:
    """The prompt that SmolLM2's chat template makes of one user message."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"


def llama_cpp_tokenizer(gguf: Path):
    """A function from text to token ids, and the server object that must stay alive for it."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(gguf)
    params.n_ctx = 512
    server = xllamacpp.Server(params)

    def tokenize(text: str, parse_special: bool) -> list[int]:
        body = {"content": text, "add_special": False, "parse_special": parse_special}
        request = urllib.request.Request(
            f"{server.listening_address}/tokenize",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["tokens"]

    return tokenize, server


def greedy(model, prompt_ids: list[int]) -> dict:
    """Greedy token ids, and for each step the best `TOP` ids with their log-probabilities."""
    import torch

    ids = torch.tensor([prompt_ids])
    steps, best = [], []
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            logprobs = model(input_ids=ids).logits[0, -1].float().log_softmax(-1)
            top = logprobs.topk(TOP)
            best.append([[int(i), round(float(p), 4)] for p, i in zip(top.values, top.indices, strict=True)])
            steps.append(int(top.indices[0]))
            ids = torch.cat([ids, top.indices[:1][None]], dim=1)
    return {"greedy_ids": steps, "best": best}


def main(gguf: Path) -> None:
    from transformers import AutoModelForCausalLM

    tokenize, server = llama_cpp_tokenizer(gguf)
    texts = [{"text": text, "ids": tokenize(text, False)} for text in NASTY_TEXTS]
    prompts = [{"prompt": prompt, "ids": tokenize(chat(prompt), True)} for prompt in PROMPTS]
    del server
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
    for prompt in prompts:
        prompt |= greedy(model, prompt["ids"])
    out = Path(__file__).with_name("smollm2-135m.json")
    out.write_text(json.dumps({"texts": texts, "prompts": prompts}, ensure_ascii=False), encoding="utf-8")
    print(f"wrote {out} ({out.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

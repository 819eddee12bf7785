"""Whether `w8a8` pays on other models: random weights in their shapes, as q8 and as w8a8, in turn.

    python benchmarks/shapes.py [--shapes smollm2-360m …] [--layers 8] [--tokens 80] [--rounds 7]

Both precisions of a model of so many layers (the head is whole) are written from the same random weights and
opened together. Each round measures each once: a prompt after 20 kept tokens, a decode step, a step of 16
sequences at once, in milliseconds, and the medians count. `opens_s` is the first opening, `mb` the weights on
disk. `cosine` is between the logits and those of float weights, which random weights make worse than trained
ones would. The last line is JSON.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
from plain_errors import positive

from tinykit.backends.onnx import OnnxBackend
from tinykit.convert.checkpoint import Architecture, Packed, matrix_shapes
from tinykit.convert.decoder import write_decoder

# family, hidden, intermediate, heads, kv_heads, head_dim, vocab_size, from the configurations on the hub
SHAPES = {
    "smollm2-135m": ("llama", 576, 1536, 9, 3, 64, 49152),
    "smollm2-360m": ("llama", 960, 2560, 15, 5, 64, 49152),
    "qwen2.5-0.5b": ("qwen2", 896, 4864, 14, 2, 64, 151936),
    "qwen3-0.6b": ("qwen3", 1024, 3072, 16, 8, 128, 151936),
}
CONTEXT, KEPT, BATCH = 2048, 20, 16
PRECISIONS = ("q8", "w8a8")


class RandomWeights:
    """A checkpoint of random weights in the shape of a model, the same for a name each time."""

    def __init__(self, shape: str, layers: int) -> None:
        family, hidden, intermediate, heads, kv_heads, head_dim, vocab_size = SHAPES[shape]
        self.architecture = Architecture(
            family=family,
            layers=layers,
            hidden=hidden,
            intermediate=intermediate,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=vocab_size,
            context_length=CONTEXT,
            norm_eps=1e-6,
            rope_theta=10000.0,
            tied_embeddings=True,
            bos_id=0,
            eos_ids=(0,),
        )
        self.shapes = matrix_shapes(self.architecture)
        self.shapes["model.embed_tokens.weight"] = (vocab_size, hidden)

    def __contains__(self, name: str) -> bool:
        if name.endswith("bias"):
            return self.architecture.family == "qwen2" and name.endswith(
                ("q_proj.bias", "k_proj.bias", "v_proj.bias")
            )
        return "lm_head" not in name

    def floats(self, name: str) -> np.ndarray:
        arch = self.architecture
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        if "norm" in name:
            return np.ones(arch.head_dim if "q_norm" in name or "k_norm" in name else arch.hidden, np.float32)
        if name.endswith("bias"):
            return np.zeros(self.shapes[name.removesuffix("bias") + "weight"][0], np.float32)
        rows, columns = self.shapes[name]
        return rng.standard_normal((rows, columns), np.float32) / np.float32(columns**0.5)

    def packed(self, name: str) -> Packed | None:
        return None

    def rope_divisors(self) -> None:
        return None


def elapsed(call) -> tuple[float, object]:
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def opened(shape: str, layers: int, dtype: str, folder: Path) -> tuple[OnnxBackend, dict[str, float]]:
    path = folder / f"{shape}-{dtype}.onnx"
    written_s, _ = elapsed(lambda: write_decoder(RandomWeights(shape, layers), path, dtype=dtype))
    seconds, backend = elapsed(
        lambda: OnnxBackend(path, dtype=dtype, context_length=CONTEXT, is_final=dtype != "fp32")
    )
    size = sum(file.stat().st_size for file in folder.glob(f"{path.name}*"))
    return backend, {"written_s": written_s, "opens_s": seconds, "mb": size / 1e6}


def once(backend: OnnxBackend, tokens: int) -> dict[str, float]:
    """Milliseconds of one of each."""
    vocab = backend.info.vocab_size
    ids = [(7919 * n) % vocab for n in range(KEPT + tokens)]
    state = backend.new_state()
    backend.forward(ids[:KEPT], state)
    prompt_s, _ = elapsed(lambda: backend.forward(ids[KEPT:], state))
    step_s = min(elapsed(lambda: backend.forward([5], state))[0] for _ in range(5))
    batch = backend.new_batch()
    for row in range(BATCH):
        other = backend.new_state()
        backend.forward(ids[row : row + KEPT], other)
        batch.add(other)
    batch_s = min(elapsed(lambda: batch.forward([5] * BATCH))[0] for _ in range(3))
    return {"prompt_ms": 1000 * prompt_s, "step_ms": 1000 * step_s, "step_of_16_ms": 1000 * batch_s}


def logits(backend: OnnxBackend) -> np.ndarray:
    vocab = backend.info.vocab_size
    found = backend.forward([(104729 * n) % vocab for n in range(24)], backend.new_state())[-1]
    return found.astype(np.float64) - found.mean()


def measure(shape: str, layers: int, tokens: int, rounds: int) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        exact, _ = opened(shape, layers, "fp32", folder)
        wanted = logits(exact)
        exact.close()
        for file in folder.iterdir():
            file.unlink()
        both = {dtype: opened(shape, layers, dtype, folder) for dtype in PRECISIONS}
        runs: dict[str, list[dict[str, float]]] = {dtype: [] for dtype in both}
        for _ in range(rounds):
            for dtype, (backend, _) in both.items():
                runs[dtype].append(once(backend, tokens))
        rows = []
        for dtype, (backend, facts) in both.items():
            found = logits(backend)
            cosine = found @ wanted / ((found @ found) * (wanted @ wanted)) ** 0.5
            medians = {key: statistics.median(run[key] for run in runs[dtype]) for key in runs[dtype][0]}
            figures = {key: round(value, 3) for key, value in (facts | medians | {"cosine": cosine}).items()}
            rows.append({"shape": shape, "dtype": dtype, "layers": layers, **figures})
            backend.close()
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--layers", type=positive, default=8)
    parser.add_argument("--tokens", type=positive, default=80)
    parser.add_argument("--rounds", type=positive, default=7)
    options = parser.parse_args()
    rows = []
    print("shape         dtype  prompt ms  step ms   of 16  opens s    MB cosine")
    for shape in options.shapes:
        for row in measure(shape, options.layers, options.tokens, options.rounds):
            rows.append(row)
            print(
                f"{row['shape']:13} {row['dtype']:5} {row['prompt_ms']:10.0f} {row['step_ms']:8.1f} "
                f"{row['step_of_16_ms']:7.0f} {row['opens_s']:8.2f} {row['mb']:5.0f} {row['cosine']:.4f}",
                flush=True,
            )
    load = round(os.getloadavg()[0], 2)
    print(json.dumps({"rows": rows, "tokens": options.tokens, "cores": os.cpu_count(), "load_average": load}))


if __name__ == "__main__":
    main()

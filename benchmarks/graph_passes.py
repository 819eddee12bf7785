"""What each pass over a foreign graph gains: seconds a step and a prompt, and how a prepared graph loads.

    python benchmarks/graph_passes.py [--layers 30] [--bits 4 8] [--tokens 128] [--rounds 5]

A model of random weights in the shape of SmolLM2-135M is written as exports often are: MatMulNBits without
`accuracy_level`, logits for every position. Then each pass of `tinykit.convert.optimize` is applied alone,
and all together. Times are of the processor, on one thread, and the best of the rounds counts, so that a busy
machine does little harm. `similarity` is the cosine between the logits of the changed graph and the
original's: random weights amplify the rounding of activations to 8 bits, which trained ones do far less. The
last line is JSON.

On one core of an x86-64 server CPU, shared with other work, onnxruntime 1.32:

| bits | graph          | a step   | 128 tokens | similarity |
|-----:|----------------|---------:|-----------:|-----------:|
|    4 | as exported    |  40.9 ms |     616 ms |            |
|    4 | accuracy_level |  13.5 ms |     598 ms |    1.00000 |
|    4 | last_logits    |  41.6 ms |     578 ms |    1.00000 |
|    4 | all passes     |  16.0 ms |     493 ms |    1.00000 |
|    8 | as exported    | 956.5 ms |   1,580 ms |            |
|    8 | accuracy_level |  24.6 ms |     899 ms |    0.99982 |
|    8 | last_logits    | 985.0 ms |   1,490 ms |    1.00000 |
|    8 | all passes     |  29.8 ms |     749 ms |    0.99982 |

First load 1.31 s and 2.96 s (4 and 8 bits: both graphs answer a probe), warm load 0.30 s and 0.48 s; a bare
session on the original, without configuration, tokenizer and the two steps of the check, 0.21 s and 0.09 s
(the slow path for 8 bits does not repack the weights).
"""

import argparse
import json
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from shapes import CONTEXT, RandomWeights
from tokenizers import Tokenizer, models

from tinykit.backends.onnx import OnnxBackend
from tinykit.convert.checkpoint import Packed
from tinykit.convert.decoder import write_decoder
from tinykit.convert.optimize import PASSES, read_graph
from tinykit.folders import open_folder
from tinykit.optional import onnxruntime_library

SHAPE = "smollm2-135m"


class CodedWeights(RandomWeights):
    """Random weights, for 4 bits with random codes."""

    def __init__(self, layers: int, bits: int) -> None:
        super().__init__(SHAPE, layers)
        self.bits = bits
        self.rng = np.random.default_rng(1)

    def packed(self, name: str) -> Packed | None:
        if self.bits == 8 or "norm" in name:
            return None
        rows, columns = self.shapes[name]
        codes = self.rng.integers(0, 256, (rows, columns // 32, 16), np.uint8)
        scales = np.full((rows, columns // 32), 0.2 / columns**0.5, np.float32)
        return Packed(codes, scales, 4)


def as_exported(path: Path) -> None:
    """Take away what our own importer does better than many exports: in place."""
    model = onnx.load(path, load_external_data=False)
    for node in model.graph.node:
        kept = [attribute for attribute in node.attribute if attribute.name != "accuracy_level"]
        del node.attribute[:]
        node.attribute.extend(kept)
        inputs = ["all_logits" if name == "num_logits_to_keep" else name for name in node.input]
        del node.input[:]
        node.input.extend(inputs)
    inputs = [value for value in model.graph.input if value.name != "num_logits_to_keep"]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.append(numpy_helper.from_array(np.array(0), "all_logits"))  # 0 is all
    del model.graph.value_info[:]
    onnx.save(model, path)


def best(rounds: int, call) -> float:
    times = []
    for _ in range(rounds):
        started = time.process_time()
        call()
        times.append(time.process_time() - started)
    return min(times)


def measure(path: Path, tokens: int, rounds: int) -> tuple[dict, np.ndarray]:
    """Seconds of a step after `tokens` tokens and of their prefill, and the logits after them."""
    backend = OnnxBackend(path, dtype="x", context_length=CONTEXT, threads=1)
    ids = [(7919 * n) % backend.info.vocab_size for n in range(tokens)]
    state = backend.new_state()
    logits = backend.forward(ids, state)[-1].astype(np.float64)
    row = {
        "step_s": best(rounds, lambda: backend.forward([5], state)),
        "prefill_s": best(max(2, rounds // 2), lambda: backend.forward(ids, backend.new_state())),
    }
    backend.close()
    return row, logits - logits.mean()


def variants(path: Path) -> dict[str, Path]:
    """The graph as it is, with each pass alone, and with all of them; all beside one file of weights."""
    found = {"as exported": path}
    for label, names in ({name: [name] for name in PASSES} | {"all passes": list(PASSES)}).items():
        model = read_graph(path)
        if sum(PASSES[name](model) for name in names):
            found[label] = path.with_name(f"{label.replace(' ', '_')}.onnx")
            onnx.save(model, found[label])
    return found


def loads(folder: Path, rounds: int) -> dict[str, float]:
    """Seconds to open the folder: the first time, later, and without any preparation."""
    home = tempfile.mkdtemp()
    os.environ["TINYKIT_HOME"] = home

    def opened() -> None:
        open_folder(folder, "auto", key="benchmark", threads=1).backend.close()

    def plain() -> None:
        path = next((folder / "onnx").glob("model_*.onnx"))
        OnnxBackend(path, dtype="x", context_length=CONTEXT, threads=1).close()

    first = best(1, opened)
    times = {"first_load_s": first, "warm_load_s": best(rounds, opened), "plain_load_s": best(rounds, plain)}
    shutil.rmtree(home)
    return times


def write_folder(folder: Path, layers: int, bits: int) -> Path:
    (folder / "onnx").mkdir(parents=True)
    path = folder / "onnx" / f"model_q{bits}.onnx"
    write_decoder(CodedWeights(layers, bits), path, dtype="q4" if bits == 4 else "q8")
    as_exported(path)
    config = {"model_type": "llama", "max_position_embeddings": CONTEXT}
    (folder / "config.json").write_text(json.dumps(config))
    Tokenizer(models.BPE(vocab={chr(n): n for n in range(256)}, merges=[])).save(
        str(folder / "tokenizer.json")
    )
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 8], choices=[4, 8])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    result = {
        "machine": platform.machine(),
        "onnxruntime": onnxruntime_library().__version__,
        **vars(options),
        "rows": [],
    }
    print(f"{'bits':>4}  {'graph':<16} {'step ms':>9} {'prefill ms':>11} {'similarity':>11}")
    for bits in options.bits:
        with tempfile.TemporaryDirectory() as folder:
            path = write_folder(Path(folder), options.layers, bits)
            original = None
            for label, graph in variants(path).items():
                row, logits = measure(graph, options.tokens, options.rounds)
                original = logits if original is None else original
                norms = float((original @ original) * (logits @ logits)) ** 0.5
                row["similarity"] = float(original @ logits) / norms
                result["rows"].append({"bits": bits, "graph": label, **row})
                print(
                    f"{bits:>4}  {label:<16} {row['step_s'] * 1e3:>9.1f} {row['prefill_s'] * 1e3:>11.1f} "
                    f"{row['similarity']:>11.5f}"
                )
                if graph != path:
                    graph.unlink()
            times = loads(Path(folder), max(2, options.rounds // 2))
            result["rows"].append({"bits": bits, **times})
            print(f"{bits:>4}  " + ", ".join(f"{name} {value:.2f}" for name, value in times.items()))
    print(json.dumps(result))


if __name__ == "__main__":
    main()

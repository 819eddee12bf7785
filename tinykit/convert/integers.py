"""A decoder graph that multiplies integers only: 8 bits for activations and for weights.

Sums of integers are exact: a row's result does not depend on how many rows go in at once, on the number of
threads or on the processor. Each row is brought to unit size by a norm (the model's own, or one whose factor
is taken out again afterwards), so that one constant step serves all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tinykit.convert.checkpoint import BLOCK, Checkpoint, Floats, pack_int8
from tinykit.convert.decoder import DecoderGraph
from tinykit.convert.graph import GraphWriter
from tinykit.convert.rotation import SLAB, RotatedCheckpoint, hadamard, power_of_two_in, spread

# Codes of weights are unsigned: of signed ones AVX2 adds two products in 16 bits, too few for 255 times 127.
# Seven bits would fit, but prefill was quicker by a tenth only and the divergence from the float weights
# twice as large (0.022 instead of 0.012).
_LARGEST: Final = 127
_ZERO: Final = 128  # of activations
# Where activations are cut off, in standard deviations. Wider steps cost more than what lies beyond.
_READ_CLIP, _OUTPUT_CLIP, _DOWN_CLIP = 4.5, 5.0, 6.0
_LARGEST_SPREAD = 64


class IntegerDecoderGraph(DecoderGraph):
    """Writes the graph with precision ``w8a8``."""

    def __init__(self, checkpoint: Checkpoint, graph: GraphWriter) -> None:
        super().__init__(RotatedCheckpoint(checkpoint), graph, "w8a8")
        self._made: set[str] = set()

    def _lookup(self) -> str:
        packed = pack_int8(self.checkpoint.floats("model.embed_tokens.weight"))
        self.graph.constant("embed.codes", packed.codes.reshape(packed.rows, -1))
        self.graph.constant("embed.scales", packed.scales)
        return self.graph.contrib(
            "GatherBlockQuantized",
            ["embed.codes", "input_ids", "embed.scales"],
            "hidden0",
            bits=packed.bits,
            block_size=BLOCK,
            gather_axis=0,
            quantize_axis=1,
        )

    def _gate_and_up(self, normed: str, gate: str, up: str, tag: str) -> None:
        # one product of both would have to be copied apart, which takes 3 % of a prefill
        self._matmul(normed, [gate], f"{tag}.gate")
        self._matmul(normed, [up], f"{tag}.up")

    def _product(self, x: str, weights: Sequence[str], out: str) -> str:
        names = self.arch.names
        matrix = np.concatenate([self.checkpoint.floats(name) for name in weights])
        if weights[0].endswith((f"{names.down}.weight", f"{names.output}.weight", "conv.out_proj.weight")):
            clip = _OUTPUT_CLIP
            if weights[0].endswith(f"{names.down}.weight"):
                block = min(power_of_two_in(matrix.shape[1]), _LARGEST_SPREAD)
                x, matrix, clip = self._spread(x, block), spread(matrix, block), _DOWN_CLIP
            unit, inverse = self._unit(x, matrix.shape[1])
            y = self._multiply(self._round(unit, clip), clip, matrix, f"{out}.unit")
            return self.graph.node("Div", [y, inverse], out)
        return self._multiply(self._round(x, _READ_CLIP), _READ_CLIP, matrix, out)

    def _spread(self, x: str, block: int) -> str:
        """Blocks of channels, each rotated: what the feed-forward part computes has outliers."""
        graph = self.graph
        split = graph.constant(f"spread.split{block}", [0, -1, block], np.int64)
        parts = graph.node("Reshape", [x, split], f"{x}.parts")
        turned = graph.node(
            "MatMul", [parts, graph.constant(f"spread{block}", hadamard(block))], f"{x}.turned"
        )
        joined = graph.constant(
            f"spread.join{self.arch.intermediate}", [0, -1, self.arch.intermediate], np.int64
        )
        return graph.node("Reshape", [turned, joined], f"{x}.spread")

    def _unit(self, x: str, size: int) -> tuple[str, str]:
        """Each row with unit variance, and what it was multiplied by."""
        ones = self.graph.constant(f"ones{size}", np.ones(size), np.float32)
        unit, inverse = f"{x}.unit", f"{x}.inverse"
        self.graph.node(
            "SimplifiedLayerNormalization", [x, ones], [unit, inverse], axis=-1, epsilon=1e-12, stash_type=1
        )
        return unit, inverse

    def _round(self, x: str, clip: float) -> str:
        zero = self.graph.constant("zero", np.array(_ZERO), np.uint8)
        return self._once("QuantizeLinear", [x, self._step(clip), zero], f"{x}.codes")

    def _once(self, op: str, inputs: Sequence[str], out: str) -> str:
        if out not in self._made:
            self._made.add(out)
            self.graph.node(op, inputs, out)
        return out

    def _step(self, clip: float) -> str:
        return self.graph.constant(f"step{clip}", np.array(clip / 127), np.float32)

    def _multiply(self, codes: str, clip: float, matrix: Floats, out: str) -> str:
        graph, rows = self.graph, len(matrix)
        scales, rounded = _rounded(matrix)
        return graph.contrib(
            "MatMulIntegerToFloat",
            [
                codes,
                graph.constant(f"{out}.weights", rounded.T),
                self._step(clip),
                graph.constant(f"{out}.scales", scales),
                "zero",
                graph.constant(f"zeros{rows}", np.full(rows, _ZERO), np.uint8),
            ],
            out,
        )


def _rounded(matrix: Floats) -> tuple[Floats, npt.NDArray[np.uint8]]:
    """A scale for each row, and the row's codes."""
    scales, codes = np.empty(len(matrix), np.float32), np.empty(matrix.shape, np.uint8)
    for start in range(0, len(matrix), SLAB):
        part = slice(start, start + SLAB)
        largest = np.maximum(matrix[part].max(1), -matrix[part].min(1))
        scales[part] = np.maximum(largest / np.float32(_LARGEST), np.float32(1e-12))
        codes[part] = np.rint(matrix[part] / scales[part, None]) + _ZERO
    return scales, codes

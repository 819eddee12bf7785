"""What a model's configuration files say: family, context, end tokens, sizes that the graph leaves open."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinykit.errors import ModelFileError

CONFIG_FILES = ("config.json", "generation_config.json", "genai_config.json", "tokenizer_config.json")


@dataclass(frozen=True)
class ModelConfig:
    """A model's configuration, whichever of the two layouts it came in.

    Attributes:
        family: ``model_type``; empty if no file says.
        context_length: Tokens that the model can read; None if no file says.
        eos_ids: Tokens that end an answer, as far as the files name them.
        vocab_size: Tokens in the vocabulary; None if no file says.
        sizes: Size of dimensions that genai graphs leave symbolic, by name.
        window: Tokens in the ring buffers of sliding-window layers, and the numbers of those layers.
        templates: Pairs of name templates (input, output) with ``%d`` for the layer.
        layers: Decoder layers; 0 if no file says.
    """

    family: str = ""
    context_length: int | None = None
    eos_ids: tuple[int, ...] = ()
    vocab_size: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    window: tuple[int, tuple[int, ...]] | None = None
    templates: tuple[tuple[str, str], ...] = ()
    layers: int = 0

    def presents(self) -> dict[str, str]:
        """The output that carries a state on, by name of the state's input."""
        return {past % n: present % n for past, present in self.templates for n in range(self.layers)}

    def windows(self) -> dict[str, int]:
        """Tokens that a ring buffer holds, by name of the state's input."""
        if self.window is None:
            return {}
        tokens, layers = self.window
        pasts = [past for past, _ in self.templates if past.endswith((".key", ".value"))]
        return {past % layer: tokens for past in pasts for layer in layers}


def read_config(files: Mapping[str, Path]) -> ModelConfig:
    """Read the configuration of a model in transformers.js or onnxruntime-genai layout.

    Args:
        files: Where its files are, by name; those that it does not have are missing.

    Raises:
        ModelFileError: a file is not JSON, or a field has the wrong type.
    """
    config, generation, genai = (read_json(files[name]) if name in files else {} for name in CONFIG_FILES[:3])
    try:
        return _merged(config.get("text_config", config), generation, genai.get("model", {}))
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise ModelFileError(
            f"The configuration of the model has a field of the wrong kind: {error}",
            hint="Compare config.json and genai_config.json with those of the model's page.",
            path=None,
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ModelFileError: the file cannot be read, or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} cannot be read: {error}", path=path) from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} holds no JSON object.", path=path)
    return value


def _merged(
    config: Mapping[str, Any], generation: Mapping[str, Any], genai: Mapping[str, Any]
) -> ModelConfig:
    decoder = genai.get("decoder", {})
    contexts = [genai.get("context_length"), config.get("max_position_embeddings"), config.get("n_positions")]
    ends = [generation.get("eos_token_id"), genai.get("eos_token_id"), config.get("eos_token_id")]
    return ModelConfig(
        family=str(config.get("model_type") or genai.get("type") or ""),
        context_length=min((int(n) for n in contexts if n), default=None),
        eos_ids=tuple(dict.fromkeys(end for value in ends for end in _as_ids(value))),
        vocab_size=config.get("vocab_size") or genai.get("vocab_size"),
        sizes=_sizes(config, decoder),
        window=_window(decoder.get("sliding_window")),
        templates=_templates(decoder),
        layers=int(decoder.get("num_hidden_layers") or config.get("num_hidden_layers") or 0),
    )


def _as_ids(value: int | Iterable[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else [int(number) for number in value]


def _sizes(config: Mapping[str, Any], decoder: Mapping[str, Any]) -> dict[str, int]:
    head_size = decoder.get("head_size") or config.get("head_dim")
    if not head_size and config.get("num_attention_heads"):
        head_size = config["hidden_size"] // config["num_attention_heads"]
    heads = decoder.get("num_key_value_heads") or config.get("num_key_value_heads")
    found = {
        "kv_cache_dim": head_size,
        "head_size": head_size,
        "head_dim": head_size,
        "num_key_value_heads": heads,
        "conv_cache_size": decoder.get("conv_cache_size"),
    }
    return {name: int(size) for name, size in found.items() if size}


def _window(found: Mapping[str, Any] | None) -> tuple[int, tuple[int, ...]] | None:
    """The ring buffers of the genai builder: sliding-window layers whose cache never grows."""
    if not found or not found.get("window_size") or not found.get("layers"):
        return None
    return int(found["window_size"]), tuple(int(layer) for layer in found["layers"])


def _templates(decoder: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    inputs, outputs = decoder.get("inputs", {}), decoder.get("outputs", {})
    pairs = []
    for key, template in inputs.items():
        present = outputs.get(key.replace("past_", "present_", 1))
        if key.startswith("past_") and present and "%d" in template and "%d" in present:
            pairs.append((template, present))
    return tuple(pairs)

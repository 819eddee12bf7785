"""The engines that can be measured; a new one is a file here and an entry in `PEERS`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

Files = Literal["model", "gguf-q8", "gguf-q4", "openvino-int8", "genai-int8", "float", "nothing"]


@dataclass(frozen=True)
class Peer:
    """One engine with its extras.

    Attributes:
        module: Its file in this folder.
        packages: What must be importable for it.
        files: Which form of the weights it reads: see `tinykit.peers.files`.
        about: Precision and extras, for the table.
        family: The engine without the extras; the best of a family is its title latency.
        only_titles: Its extra is for titles: eight fixed tokens and batches are those of the family.
        can_batch: Whether several prompts can run at once.
        options: What its file wants to know.
    """

    module: str
    packages: tuple[str, ...]
    files: Files
    about: str
    family: str
    only_titles: bool = False
    can_batch: bool = True
    options: dict[str, object] = field(default_factory=dict)

    @property
    def dtype(self) -> str | None:
        """The precision of a build of ours; None is the default one."""
        dtype = self.options.get("dtype")
        return None if dtype is None else str(dtype)


PEERS: Final[dict[str, Peer]] = {
    "tinykit": Peer("ours", (), "model", "its default build, prefix kept", "tinykit"),
    "tinykit-draft": Peer(
        "ours", (), "model", "the same, with drafts", "tinykit", only_titles=True, options={"draft": True}
    ),
    "tinykit-q8": Peer(
        "ours", (), "model", "8 bits in blocks of 32, prefix kept", "tinykit-q8", options={"dtype": "q8"}
    ),
    "tinykit-q8-draft": Peer(
        "ours", (), "model", "the same, with drafts", "tinykit-q8", only_titles=True,
        options={"dtype": "q8", "draft": True},
    ),
    "openvino": Peer(
        "openvino", ("openvino_genai",), "openvino-int8", "int8 by channel, prefix cache", "openvino"
    ),
    "openvino-lookup": Peer(
        "openvino", ("openvino_genai",), "openvino-int8", "the same, with prompt lookup", "openvino",
        only_titles=True, options={"lookup": True},
    ),
    "llamacpp": Peer("llamacpp", ("xllamacpp",), "gguf-q8", "Q8_0, prompt cache", "llamacpp"),
    "llamacpp-q4": Peer("llamacpp", ("xllamacpp",), "gguf-q4", "Q4_1, prompt cache", "llamacpp-q4"),
    "genai": Peer(
        "genai", ("onnxruntime_genai",), "genai-int8", "int8 by 32, rewind_to", "genai", can_batch=False
    ),
    "transformers": Peer(
        "transformers", ("transformers", "torch"), "float", "fp32, prefix kept", "transformers"
    ),
    "mlx": Peer("mlx", ("mlx_lm",), "float", "float, prompt cache", "mlx", can_batch=False),
}  # fmt: skip
DEFAULT: Final = (
    "tinykit",
    "tinykit-draft",
    "tinykit-q8",
    "tinykit-q8-draft",
    "openvino",
    "openvino-lookup",
    "llamacpp",
    "llamacpp-q4",
    "genai",
)
SCRIPTED: Final = Peer("scripted", (), "nothing", "answers by rote", "scripted")  # for tests

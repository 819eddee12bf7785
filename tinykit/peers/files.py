"""The embedded model's weights as each engine reads them: written once, kept in the store.

All come from the one GGUF file, whose matrices have 4 bits. Dequantized they are the float weights that the
others are made of; to 8 bits they are rounded as each engine's own tools do it.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from tinykit import builds, sources, store
from tinykit.errors import BackendError, ModelFileError
from tinykit.fetching import fetch_model
from tinykit.peers.engines import Files, Peer
from tinykit.peers.work import MODEL
from tinykit.progress import Progress
from tinykit.registry import get_model

_VERSION: Final = 1  # raise when what is written changes
_TIMEOUT_S: Final = 1800
GgufType = Literal["Q8_0", "F16"]


def place(peer: Peer, python: str, builder: str, progress: Progress) -> str:
    """Where the weights are in an engine's form; made now if they are not there.

    Args:
        peer: The engine.
        python: The engine's interpreter, whose packages convert for OpenVINO (`nncf` is one of them).
        builder: An interpreter with torch, transformers, onnx_ir and onnxruntime-genai, for its builder.
        progress: Where to show the work.

    Raises:
        BackendError: the engine's tools failed, or are not there.
        SourceError, ModelFileError: the model cannot be fetched or read.
    """
    files = peer.files
    if files == "nothing":
        return ""
    if files == "model":
        fetch_model(get_model(MODEL), peer.dtype, progress=progress)
        return MODEL
    source = _source(progress)
    if files == "gguf-q4":
        return str(source)
    write: dict[Files, Callable[[Path], None]] = {
        "gguf-q8": lambda folder: rewrite_gguf(source, folder / "model.gguf", "Q8_0"),
        "float": lambda folder: _write_float(source, folder),
        "openvino-int8": lambda folder: _write_openvino(source, folder, python),
        "genai-int8": lambda folder: _write_genai(source, folder, builder),
    }
    folder = _stored(files, write[files], progress)
    return str(folder / "model.gguf" if files == "gguf-q8" else folder)


def rewrite_gguf(source: Path, target: Path, dtype: GgufType) -> None:
    """A copy of a GGUF file with its matrices in another type; vectors become float, the rest stays."""
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
    from gguf.quants import dequantize, quantize

    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    kinds = {"Q8_0": LlamaFileType.MOSTLY_Q8_0, "F16": LlamaFileType.MOSTLY_F16}
    writer.add_file_type(kinds[dtype])
    for name, held in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            of = held.types[-1] if held.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, held.contents(), held.types[0], sub_type=of)
    kind = GGMLQuantizationType[dtype]
    for tensor in reader.tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        values = dequantize(tensor.data, tensor.tensor_type).reshape(shape).astype(np.float32)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _source(progress: Progress) -> Path:
    spec = get_model(MODEL)
    path = sources.fetch(spec, progress=progress)
    builds.check_hash(spec, path)
    return path


def _stored(files: Files, write: Callable[[Path], None], progress: Progress) -> Path:
    entry = store.entry("peers", MODEL, f"{builds.fingerprint_of(get_model(MODEL))[:12]}-{files}-v{_VERSION}")
    if not entry.is_complete():
        info: dict[str, object] = {"model": MODEL, "dtype": files}
        with store.building(entry, info=info, on_wait=progress.note) as folder:
            if folder is not None:
                progress.note(f"{MODEL}: write {files} (once)")
                write(folder)
    return entry.path


def _write_float(source: Path, folder: Path) -> None:
    from tinykit.convert.export import export_model
    from tinykit.convert.importer import open_source

    export_model(open_source(source), folder)


def _write_openvino(source: Path, folder: Path, python: str) -> None:
    work = folder / "float"
    work.mkdir()
    rewrite_gguf(source, work / "model.gguf", "F16")
    _run([python, "-m", "tinykit.peers.convert_openvino", str(work), str(folder)], "nncf openvino-genai")
    shutil.rmtree(work)


def _write_genai(source: Path, folder: Path, builder: str) -> None:
    work = folder / "float"
    work.mkdir()
    _write_float(source, work)
    packages = "onnxruntime-genai onnx-ir torch transformers"
    _run([builder, "-m", "tinykit.peers.convert_genai", str(work), str(folder)], packages)
    shutil.rmtree(work)


def _run(command: list[str], packages: str) -> None:
    from tinykit.peers.process import environment

    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["nothing was said"]
        raise BackendError(
            f"{Path(command[0]).name} {' '.join(command[1:3])} failed: {said[-1]}",
            hint=f"It needs: pip install {packages}. Or give a folder made elsewhere: --files NAME=FOLDER.",
        )


def check_given(path: str) -> str:
    """A path of the user's that is there.

    Raises:
        ModelFileError: it is not.
    """
    if not Path(path).exists():
        raise ModelFileError(f"There is no {path}.", hint="Give a file or folder that is there.", path=path)
    return path

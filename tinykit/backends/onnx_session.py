"""Open an ONNX Runtime session and run it: errors become ours, and another thread can stop a run."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinykit.errors import BackendError, ForwardInterrupted, ModelFileError, TinykitError

if TYPE_CHECKING:
    import onnxruntime

# ONNX Runtime up to 1.27 fails on fp16 graphs of plain operators:
# https://github.com/microsoft/onnxruntime/issues/26717
_FAULTY_FUSION = "SimplifiedLayerNormFusion"


def mapped(file: Path) -> mmap.mmap:
    """The file's bytes, read only when they are touched."""
    try:
        with file.open("rb") as opened:
            return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"{file} cannot be read: {error}", hint="Fetch the model again.", path=file
        ) from error


def open_session(path: Path, threads: int, maps: Mapping[str, mmap.mmap]) -> onnxruntime.InferenceSession:
    """A session on the CPU; `maps` holds files with weights by the names that the graph has for them.

    Raises:
        ModelFileError: ONNX Runtime cannot load the file.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors reach the caller as exceptions; the log would only repeat them
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = threads
    if maps:
        sizes = [len(view) for view in maps.values()]
        options.add_external_initializers_from_files_in_memory(list(maps), list(maps.values()), sizes)
    if not path.is_file():
        raise ModelFileError(f"There is no file {path}.", path=path)

    def opened(disabled: list[str] | None = None) -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
        )

    try:
        try:
            return opened()
        except Exception as error:
            if _FAULTY_FUSION not in str(error):
                raise
            return opened([_FAULTY_FUSION])
    except Exception as error:
        raise ModelFileError(
            f"ONNX Runtime {onnxruntime.__version__} cannot load {path}: {_first_line(error)}",
            hint="The file may be damaged or need a newer onnxruntime: tinykit doctor shows both.",
            path=path,
        ) from error


class Runs:
    """Lets another thread stop the forward that is running, and no other."""

    def __init__(self) -> None:
        self._running: Any = None

    def stop(self) -> None:
        """Let the forward that is running, if any, raise `ForwardInterrupted`."""
        running = self._running
        if running is not None:
            running.terminate = True

    @contextmanager
    def running(self) -> Iterator[Any]:
        """Options for all runs of one forward.

        They are new each time: a stop that comes too late reaches only options that nobody uses any more.

        Raises:
            ForwardInterrupted: it was stopped.
            BackendError: ONNX Runtime failed.
        """
        import onnxruntime

        options = self._running = onnxruntime.RunOptions()
        options.log_severity_level = 4
        try:
            yield options
        except TinykitError:
            raise
        except Exception as error:
            # some are plain RuntimeErrors, the others share only their module
            if type(error) is not RuntimeError and not type(error).__module__.startswith("onnxruntime"):
                raise
            if options.terminate and "terminate" in str(error):
                raise ForwardInterrupted("The model was interrupted while it computed.") from None
            raise BackendError(
                f"ONNX Runtime failed while running the model: {_first_line(error)}"
            ) from error
        finally:
            self._running = None


def _first_line(error: Exception) -> str:
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", str(error)).strip().split("\n")[0]

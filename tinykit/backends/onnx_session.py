"""Open an ONNX Runtime session and run it: errors become ours, and another thread can stop a run."""

from __future__ import annotations

import math
import mmap
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinykit.backends.apart import call_apart
from tinykit.backends.base import Array
from tinykit.backends.onnx_files import LocatedGraph, locate
from tinykit.backends.onnx_providers import heavy_share, open_on
from tinykit.backends.signature import Port
from tinykit.devices import CPU, Device
from tinykit.errors import (
    BackendError,
    ClosedError,
    DeviceError,
    ForwardInterrupted,
    ModelFileError,
    TinykitError,
)
from tinykit.optional import onnxruntime_library

if TYPE_CHECKING:
    import onnxruntime

# ONNX Runtime up to 1.27 fails on fp16 graphs of plain operators:
# https://github.com/microsoft/onnxruntime/issues/26717
_FAULTY_FUSION = "SimplifiedLayerNormFusion"
_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
# How long a thread looks for more work before it sleeps. By default that is a number of pauses, 16 to 47 ms
# on PCs (https://github.com/microsoft/onnxruntime/pull/27916), in which it keeps its core from whatever else
# wants to run: docs/speed.md, "Threads". ONNX Runtime before 1.26 does not know of it.
_SPIN_US = "20"


def mapped(file: Path) -> mmap.mmap:
    """The file's bytes, read only when they are touched."""
    try:
        with file.open("rb") as opened:
            return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"{file} cannot be read: {error}", hint="Fetch the model again.", path=file
        ) from error


def open_session(
    path: Path,
    threads: int,
    device: Device = CPU,
    *,
    maps: Mapping[str, mmap.mmap] | None = None,
    located: LocatedGraph | None = None,
    is_final: bool = False,
) -> onnxruntime.InferenceSession:
    """A session on a device; the search for something to fuse or to fold is left out where it `is_final`.

    Weights that lie elsewhere than beside the graph are found by where it was `located`, or are in `maps` by
    the names that the graph has for them. ONNX Runtime copies what is in `maps`.

    Raises:
        DeviceError: the device is not there or cannot load the file.
        ModelFileError: ONNX Runtime cannot load the file on the CPU.
    """
    library = onnxruntime_library()
    options = library.SessionOptions()
    options.log_severity_level = 4  # errors reach the caller as exceptions; the log would only repeat them
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
    if is_final:
        options.graph_optimization_level = library.GraphOptimizationLevel.ORT_DISABLE_ALL
    if maps:
        sizes = [len(view) for view in maps.values()]
        options.add_external_initializers_from_files_in_memory(list(maps), list(maps.values()), sizes)
    if located is not None:
        options.add_session_config_entry(_DATA_FOLDER, str(located.folder))
    if not path.is_file():
        raise ModelFileError(f"There is no file {path}.", path=path)
    model = path if located is None else located.model

    def opened(disabled: list[str] | None = None) -> onnxruntime.InferenceSession:
        session: onnxruntime.InferenceSession = open_on(device, model, options, disabled=disabled)
        return session

    try:
        try:
            return opened()
        except Exception as error:
            if _FAULTY_FUSION not in str(error):
                raise
            return opened([_FAULTY_FUSION])
    except DeviceError:
        raise
    except Exception as error:
        if device != CPU:
            said = " ".join(str(error).split())  # all of it: the library that is missing comes last
            raise DeviceError(
                f"{device.provider} cannot load {path.name}: {said}", asked=device.name, failures=()
            ) from error
        raise ModelFileError(
            f"ONNX Runtime {library.__version__} cannot load {path}: {_first_line(error)}",
            hint="The file may be damaged or need a newer onnxruntime: tinykit doctor shows both.",
            path=path,
        ) from error


def _open_located(path: Path, threads: int, data: Mapping[str, Path], is_final: bool) -> Any:
    """A session on the CPU that maps the files with the weights itself; None if that cannot be."""
    located = locate(path, data)
    try:
        return located and open_session(path, threads, located=located, is_final=is_final)
    except (ModelFileError, RuntimeError):  # RuntimeError: the folder's path is longer than an option may be
        return None  # if it is the graph that is wrong, the other way says so


@dataclass
class _PlainPort:
    """A copy of a description, because ONNX Runtime's own keeps the session in memory."""

    name: str
    type: str
    shape: Sequence[int | str | None]


def _copied(ports: Sequence[Port]) -> tuple[Port, ...]:
    return tuple(_PlainPort(port.name, port.type, list(port.shape)) for port in ports)


class Graph:
    """An open session.

    Everything it runs, it runs inside `running`, which turns its errors into ours and lets another thread
    stop it.

    Attributes:
        long_tokens: From so many on a run takes so long that Ctrl-C has to be heard meanwhile.
    """

    long_tokens: float = math.inf

    def __init__(
        self,
        path: Path,
        threads: int,
        data: Mapping[str, Path],
        device: Device = CPU,
        *,
        is_final: bool = False,
    ) -> None:
        self._maps: Mapping[str, mmap.mmap] = {}  # the session reads these for as long as it lives
        session = _open_located(path, threads, data, is_final) if data and device == CPU else None
        if session is None:
            self._maps = {name: mapped(file) for name, file in data.items()}
            session = open_session(path, threads, device, maps=self._maps, is_final=is_final)
        self.inputs = _copied(session.get_inputs())
        self.outputs = _copied(session.get_outputs())
        self.providers = tuple(session.get_providers())
        self.device_share = 1.0 if device == CPU else heavy_share(session, device.provider)
        self.metadata: Mapping[str, str] = session.get_modelmeta().custom_metadata_map
        self._session: Any = session
        self._new_options: Callable[[], Any] = onnxruntime_library().RunOptions
        self._options: Any = None  # of the forward that is running
        self._is_long = False
        # no WeakSet: Python runs a function for each that goes, and a Ctrl-C that comes in it is lost
        self._bindings: list[weakref.ref[Binding]] = []

    def close(self) -> None:
        """Release the session, though somebody keeps a state of it; closing twice is harmless."""
        for binding in [reference() for reference in self._bindings]:
            if binding is not None:
                binding.release()
        self._session = None
        self._maps = {}

    def interrupt(self) -> None:
        """Let the forward that is running, if any, raise `ForwardInterrupted`; for any thread."""
        options = self._options
        if options is not None:
            options.terminate = True

    @contextmanager
    def running(self, tokens: int = 1) -> Iterator[None]:
        """All runs of one forward of so many tokens.

        Raises:
            ClosedError: the session was closed.
            ForwardInterrupted: another thread called `interrupt`.
            BackendError: ONNX Runtime failed.
            KeyboardInterrupt: Ctrl-C, after which nothing runs any more.
        """
        if self._session is None:
            raise ClosedError("This model was closed.", hint="Make a new TinySession.")
        # new each time, so that an interrupt that comes too late reaches options that nobody uses any more
        options = self._options = self._new_options()
        self._is_long = tokens >= self.long_tokens
        try:
            yield
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
            self._options = None

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs `names`."""
        session, options = self._session, self._options
        arrays: list[Array] = self._done(lambda: session.run(names, feeds, options))
        return arrays

    def new_binding(self) -> Binding:
        """A binding of nothing yet."""
        binding = Binding(self._session.io_binding())
        alive = [reference for reference in self._bindings if reference() is not None]
        self._bindings = [*alive, weakref.ref(binding)]
        return binding

    def run_bound(self, binding: Binding) -> None:
        """Read and write what is bound."""
        session, options = self._session, self._options
        self._done(lambda: session.run_with_iobinding(binding.raw, options))

    def _done(self, act: Callable[[], Any]) -> Any:
        return call_apart(act, self.interrupt) if self._is_long else act()


class Binding:
    """Arrays that a graph reads and writes in place, bound anew only where they have moved.

    ONNX Runtime is given addresses: the caller keeps the arrays until the run has ended.
    """

    def __init__(self, raw: Any) -> None:
        self.raw: Any = raw
        self._bound: dict[str, tuple[int, tuple[int, ...]]] = {}

    def release(self) -> None:
        """Let go of the session, which ONNX Runtime's own binding would keep in memory."""
        self.raw = None
        self._bound = {}

    def read(self, name: str, array: Array) -> None:
        """Bind an input."""
        place = (array.ctypes.data, array.shape)
        if self._bound.get(name) != place:
            self.raw.bind_input(name, "cpu", 0, array.dtype.type, array.shape, place[0])
            self._bound[name] = place

    def write(self, name: str, array: Array) -> None:
        """Bind an output."""
        place = (array.ctypes.data, array.shape)
        if self._bound.get(name) != place:
            self.raw.bind_output(name, "cpu", 0, array.dtype.type, array.shape, place[0])
            self._bound[name] = place

    def write_new(self, name: str) -> None:
        """Let the next run make an output by itself; `made` gives it if it was bound last."""
        self.raw.bind_output(name, "cpu")
        self._bound.pop(name, None)

    def made(self) -> Array:
        """The output that was bound last."""
        array: Array = self.raw.get_outputs()[-1].numpy()
        return array


def _first_line(error: Exception) -> str:
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", str(error)).strip().split("\n")[0]

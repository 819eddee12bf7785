import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests import tiny_judge as tiny
from tinykit.backends import onnx_encoder as encoder_module
from tinykit.backends.onnx_encoder import EncoderBackend
from tinykit.errors import (
    BackendError,
    ClosedError,
    ForwardInterrupted,
    ModelFileError,
    UnsupportedModelError,
)
from tinykit.generation.judging import Row


def row(length, options, kind=0, seed=0):
    """A row of so many tokens, with options of two tokens each at its second place and after."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, tiny.VOCAB_SIZE, length).tolist()
    markers = [1 + 2 * n for n in range(options)]
    for at in markers:
        ids[at] = tiny.MASK
    return Row(tuple(ids), tuple(markers), kind)


def opened(tmp_path, **options):
    onnx.save(tiny.graph(**options), tmp_path / "model.onnx")
    return EncoderBackend(tmp_path / "model.onnx", dtype="fp32", context_length=8192, threads=1)


@pytest.fixture
def backend(tmp_path):
    return opened(tmp_path)


def watch(backend, monkeypatch):
    seen, run = [], backend._run
    monkeypatch.setattr(backend, "_run", lambda feeds: seen.append(feeds) or run(feeds))
    return seen


def test_batch_gives_what_each_row_gives_alone(backend):
    rows = [row(20, 2, 0, 1), row(33, 5, 1, 2), row(8, 3, 2, 3), row(20, 4, 0, 4)]
    together = backend.option_logits(rows, tiny.PAD)
    assert [len(logits) for logits in together] == [2, 5, 3, 4]
    alone = [backend.option_logits([one], tiny.PAD)[0] for one in rows]
    for found, single, wanted in zip(together, alone, tiny.reference(rows), strict=True):
        np.testing.assert_allclose(found, single, atol=1e-5)
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_rows_are_padded_to_a_multiple_of_8_and_marked_as_such(backend, monkeypatch):
    seen = watch(backend, monkeypatch)
    short, long = row(9, 2, 2), row(17, 3, 1)
    backend.option_logits([short, long], 7)
    (feeds,) = seen
    assert {name: array.shape for name, array in feeds.items()} == {
        "input_ids": (2, 24), "attention_mask": (2, 24), "marker_pos": (2, 3), "marker_mask": (2, 3), "qtype": (2,),
    }  # fmt: skip
    assert feeds["input_ids"].tolist() == [[*long.ids, *[7] * 7], [*short.ids, *[7] * 15]]
    assert feeds["attention_mask"].tolist() == [[1] * 17 + [0] * 7, [1] * 9 + [0] * 15]
    assert feeds["marker_pos"].tolist() == [[1, 3, 5], [1, 3, 0]]
    assert feeds["marker_mask"].tolist() == [[True] * 3, [True, True, False]]
    assert feeds["qtype"].tolist() == [1, 2]


def test_length_that_is_a_multiple_of_8_is_not_padded(backend, monkeypatch):
    seen = watch(backend, monkeypatch)
    backend.option_logits([row(16, 2)], tiny.PAD)
    assert seen[0]["input_ids"].shape == (1, 16)


def test_many_rows_go_in_by_runs_of_bounded_size(backend, monkeypatch):
    monkeypatch.setattr(encoder_module, "_RUN_TOKENS", 64)
    seen = watch(backend, monkeypatch)
    rows = [row(length, 2, seed=length) for length in (10, 100, 30, 20, 12, 31, 9)]
    found = backend.option_logits(rows, tiny.PAD)
    shapes = [feeds["input_ids"].shape for feeds in seen]
    assert shapes == [(1, 104), (2, 32), (2, 24), (2, 16)]
    for logits, wanted in zip(found, tiny.reference(rows), strict=True):
        np.testing.assert_allclose(logits, wanted, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"int_type": TensorProto.INT32},
        {"markers": "marker_positions"},
        {"output": "scores"},
        {"extra_input": "token_type_ids"},
        {"extra_input": "position_ids"},
    ],
    ids=["int32", "other_name", "other_output", "types", "positions"],
)
def test_inputs_are_found_by_name_and_type(tmp_path, options):
    rows = [row(12, 3), row(20, 2)]
    for found, wanted in zip(
        opened(tmp_path, **options).option_logits(rows, tiny.PAD), tiny.reference(rows), strict=True
    ):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_unknown_input_is_named(tmp_path):
    with pytest.raises(UnsupportedModelError, match="has an input 'pixels'"):
        opened(tmp_path, extra_input="pixels")


def test_encoder_without_options_is_no_judge(tmp_path):
    model = tiny.graph()
    del model.graph.node[:]
    kept = [value for value in model.graph.input if value.name == "input_ids"]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.node.append(onnx.helper.make_node("Cast", ["input_ids"], ["logits"], to=TensorProto.FLOAT))
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(UnsupportedModelError, match="no input such as 'marker_pos': it is no judge"):
        EncoderBackend(tmp_path / "other.onnx", dtype="fp32", context_length=512)


def test_damaged_file(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"damaged")
    with pytest.raises(ModelFileError, match="cannot load"):
        EncoderBackend(tmp_path / "model.onnx", dtype="fp32", context_length=512)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (1, 3, 1), (3,)], ids=str)
def test_logits_of_another_shape(backend, monkeypatch, shape):
    monkeypatch.setattr(backend, "_run", lambda feeds: np.zeros(shape, np.float32))
    with pytest.raises(BackendError, match="gave logits of shape"):
        backend.option_logits([row(12, 3)], tiny.PAD)


def test_info_says_what_runs(backend):
    info = backend.info
    assert (info.backend, info.device, info.dtype, info.context_length) == ("onnx", "cpu", "fp32", 8192)
    assert info.providers == ("CPUExecutionProvider",)


def test_closed_backend_says_so(backend):
    backend.close()
    backend.close()
    with pytest.raises(ClosedError):
        backend.option_logits([row(12, 3)], tiny.PAD)


class SlowSession:
    """Computes until it is told to stop, as a large model would."""

    def __init__(self):
        self.started = threading.Event()

    def run(self, names, feeds, options):
        self.started.set()
        for _ in range(2000):
            if options.terminate:
                raise RuntimeError("Exiting due to terminate flag being set to true.")
            threading.Event().wait(0.005)
        raise AssertionError("nobody stopped it")


def test_interrupt_ends_a_run_and_the_next_one_works(backend):
    real, backend._graph._session = backend._graph._session, SlowSession()
    slow = backend._graph._session
    threading.Thread(target=lambda: slow.started.wait() and backend.interrupt()).start()
    with pytest.raises(ForwardInterrupted):
        backend.option_logits([row(12, 3)], tiny.PAD)
    backend._graph._session = real
    backend.interrupt()  # nothing is running
    assert len(backend.option_logits([row(12, 3)], tiny.PAD)[0]) == 3


def test_ctrl_c_ends_a_run(backend, monkeypatch):
    real, backend._graph._session = backend._graph._session, SlowSession()
    slow = backend._graph._session

    class Pressed(encoder_module.ThreadPoolExecutor):
        """Ctrl-C arrives while the caller waits."""

        def submit(self, *work):
            future = super().submit(*work)

            def result():
                slow.started.wait()
                raise KeyboardInterrupt

            monkeypatch.setattr(future, "result", result)
            return future

    monkeypatch.setattr(encoder_module, "ThreadPoolExecutor", Pressed)
    with pytest.raises(KeyboardInterrupt):
        backend.option_logits([row(12, 3)], tiny.PAD)
    monkeypatch.undo()
    backend._graph._session = real
    assert len(backend.option_logits([row(12, 3)], tiny.PAD)[0]) == 3

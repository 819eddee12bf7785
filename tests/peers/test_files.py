import sys

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from tests import tiny_models as tiny
from tinykit.errors import BackendError, ModelFileError
from tinykit.peers import files
from tinykit.peers.engines import Peer
from tinykit.peers.work import MODEL
from tinykit.progress import Progress


@pytest.fixture
def source(tmp_path, monkeypatch):
    path = tiny.write_gguf(tmp_path / "tiny.gguf", "llama", tiny.random_weights("llama"), "F32")
    monkeypatch.setattr(files, "_source", lambda progress: path)
    return path


def tensors(path):
    return {t.name: dequantize(t.data, t.tensor_type).reshape(-1) for t in GGUFReader(path).tensors}


def place(kind, python=sys.executable, **options):
    peer = Peer("scripted", (), kind, "", "", options=options)
    return files.place(peer, python, python, Progress(False))


def test_rewritten_weights_are_the_same_but_for_rounding(source, tmp_path):
    files.rewrite_gguf(source, tmp_path / "copy.gguf", "F16")
    before, after = tensors(source), tensors(tmp_path / "copy.gguf")
    assert before.keys() == after.keys()
    for name, values in before.items():
        assert np.allclose(values, after[name], atol=1e-3), name
    fields, copied = (GGUFReader(path).fields for path in (source, tmp_path / "copy.gguf"))
    for name in fields.keys() - {"general.file_type"}:
        if not name.startswith("GGUF."):
            assert copied[name].contents() == fields[name].contents(), name


def test_weights_are_written_once(source):
    path = place("gguf-q8")
    assert {t.tensor_type.name for t in GGUFReader(path).tensors} == {"Q8_0", "F32"}
    source.unlink()
    assert place("gguf-q8") == path


def test_what_needs_no_writing(source):
    assert place("gguf-q4") == str(source)
    assert place("nothing") == ""


def test_a_build_of_ours_is_made_before_it_is_measured(monkeypatch):
    fetched = []
    monkeypatch.setattr(files, "fetch_model", lambda spec, dtype, progress: fetched.append((spec.key, dtype)))
    assert place("model") == place("model", dtype="q8") == MODEL
    assert fetched == [(MODEL, None), (MODEL, "q8")]


@pytest.mark.parametrize(("kind", "packages"), [("openvino-int8", "nncf"), ("genai-int8", "onnx-ir")])
def test_tools_that_fail_say_what_they_need(source, tmp_path, kind, packages):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"No module named 'tools'\" >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(BackendError, match="No module named 'tools'") as caught:
        place(kind, str(python))
    assert packages in caught.value.hint and "--files" in caught.value.hint


def test_a_path_that_is_not_there_is_said(tmp_path):
    assert files.check_given(str(tmp_path)) == str(tmp_path)
    with pytest.raises(ModelFileError, match="nowhere"):
        files.check_given(str(tmp_path / "nowhere"))

import subprocess
import sys
import textwrap

import pytest

import tinykit
from tests import tiny_models as tiny

HEAVY = ("onnxruntime", "onnx", "numpy", "tokenizers", "transformers", "torch", "mlx", "gguf", "unearth", "httpx2",
         "huggingface_hub", "IPython", "ipywidgets", "pandas", "sacrebleu", "jinja2", "click", "tqdm")  # fmt: skip


def run(code):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    ).stdout


def test_all_is_sorted_and_leads_somewhere():
    assert tinykit.__all__ == sorted(tinykit.__all__)
    for name in tinykit.__all__:
        assert getattr(tinykit, name) is not None
    assert dir(tinykit) == tinykit.__all__


def test_a_name_is_the_thing_and_not_the_module_of_that_name():
    code = "from tinykit import doctor; print(type(doctor).__name__); import tinykit; print(callable(tinykit.doctor))"
    assert run(code).split() == ["function", "True"]


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        tinykit.nope


def test_import_loads_nothing_heavy():
    loaded = run("import sys, tinykit; print(*sys.modules)").split()
    assert not set(HEAVY) & set(loaded)
    assert [name for name in loaded if name.startswith("tinykit")] == ["tinykit"]


def test_import_touches_no_disk_and_no_network():
    code = """
        import sys
        events = []
        def hook(event, args):
            if event.startswith("socket.") or event in ("os.mkdir", "os.remove", "os.rename"):
                events.append((event, args))
            if event == "open" and not str(args[0]).endswith((".py", ".pyc")) and "python" not in str(args[0]):
                events.append((event, args))
        sys.addaudithook(hook)
        import tinykit
        print(events)
    """
    assert run(code).strip() == "[]"


def test_session_module_does_without_inference_libraries_until_it_loads():
    loaded = run(
        "import sys; from tinykit import TinySession; TinySession(lazy=True); print(*sys.modules)"
    ).split()
    assert not {"onnxruntime", "onnx", "gguf", "unearth", "httpx2", "IPython"} & set(loaded)


def test_model_that_is_no_hubs_loads_without_the_hubs_code(tmp_path):
    path = tiny.write_gguf(tmp_path / "tiny.gguf", "llama", tiny.random_weights("llama"), "Q8_0")
    code = f"""
        import sys
        from tinykit import TinySession
        TinySession({str(path)!r}, progress=False).close()
        print(*sys.modules)
    """
    loaded = set(run(code).split())
    assert "onnxruntime" in loaded
    assert not {
        name for name in loaded if name.startswith(("tinykit.hub", "huggingface_hub", "urllib.request"))
    }


# what it computes with, and what reads tokens, templates, kept states and folders
FOR_A_TITLE = {"numpy", "onnxruntime", "tokenizers", "jinja2", "markupsafe", "safetensors", "platformdirs"}


def test_title_loads_no_other_packages_than_it_needs(tmp_path):
    path = tiny.write_gguf(tmp_path / "tiny.gguf", "llama", tiny.random_weights("llama"), "Q8_0")
    code = f"""
        import sys
        before = set(sys.modules)  # an environment may import what it likes when Python starts
        from tinykit import TinySession
        with TinySession({str(path)!r}, progress=False) as session:
            session.title("Fix the flaky login test in the CI pipeline", recipe="first-words")
            session.title("Fix the flaky login test in the CI pipeline", recipe="plain")
        print(*set(sys.modules) - before)
    """
    run(code)  # imports the model, which needs more
    loaded = set(run(code).split())
    tops = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert "onnxruntime" in tops
    assert {top for top in tops if not top.startswith("_")} - FOR_A_TITLE == {"tinykit"}
    assert {name for name in loaded if name.startswith("tinykit.convert.")} == {"tinykit.convert.layout"}
    assert not {"urllib.request", "tinykit.lab", "tinykit.hub"} & loaded

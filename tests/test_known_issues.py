import pytest

from tinykit.known_issues import known_issues


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("1.32.0", []),
        ("1.30", []),
        ("1.29.1", ["Qwen 3.5"]),
        ("1.28.0", ["LFM2", "Qwen 3.5"]),
        ("1.27.0", ["half-float", "LFM2", "Qwen 3.5"]),
        ("1.24.1", ["through the links", "half-float", "LFM2", "Qwen 3.5"]),
        ("1.23.1.dev20260101", ["through the links", "LFM2", "Qwen 3.5"]),
    ],
)
def test_faults_of_onnxruntime_by_version(version, words):
    found = known_issues({"onnxruntime": version, "mlx-lm": None})
    assert [word for word, line in zip(words, found, strict=True) if word in line] == words
    assert all(f"onnxruntime {version}" in line and "pip install 'onnxruntime>=" in line for line in found)


def test_wheels_that_hide_each_other_are_named():
    (found,) = known_issues({"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.32.0"})
    assert found.startswith("onnxruntime and onnxruntime-gpu replace each other's files")
    assert "pip uninstall onnxruntime onnxruntime-gpu" in found


def test_old_mlx_is_named():
    assert known_issues({"mlx-lm": "0.30.9"}) == ["mlx-lm 0.30.9 is too old; pip install 'mlx-lm>=0.31'"]
    assert known_issues({"mlx-lm": "0.31"}) == []

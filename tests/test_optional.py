import sys

import pytest

from tinykit.errors import MissingPackageError
from tinykit.optional import installed, require


def test_require_gives_the_module():
    import json

    assert require("json", extra="", purpose="a test") is json
    assert require("os.path", extra="", purpose="a test") is sys.modules["os.path"]


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.part"])
def test_require_says_purpose_and_command(module):
    with pytest.raises(MissingPackageError, match="'no_such_package' is needed for counting sheep") as caught:
        require(module, extra="sheep", purpose="counting sheep")
    assert caught.value.hint == "Install it with: pip install 'tinykit[sheep]'"
    assert caught.value.name == module
    assert caught.value.extra == "sheep"


def test_require_passes_on_the_error_of_a_broken_package(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("import something_it_needs\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_it_needs") as caught:
        require("broken_package", extra="x", purpose="a test")
    assert not isinstance(caught.value, MissingPackageError)


@pytest.mark.parametrize(
    ("module", "expected"),
    [("json", True), ("no_such_package", False), ("no_such_package.part", False), ("json.decoder", True)],
)
def test_installed(module, expected):
    assert installed(module) is expected


def test_installed_does_not_import(tmp_path, monkeypatch):
    (tmp_path / "lazy_package.py").write_text("raise RuntimeError\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed("lazy_package")


def test_installed_copes_with_a_module_without_spec(monkeypatch):
    monkeypatch.setitem(sys.modules, "made_by_hand", type(sys)("made_by_hand"))
    assert not installed("made_by_hand")

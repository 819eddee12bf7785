"""What README.md says of files, commands, settings and recipes is what is there."""

import json
import re
from pathlib import Path

import pytest

from tinykit import RECIPES, cli, settings
from tinykit.magics import options
from tinykit.magics.commands import COMMANDS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_file_map_names_every_module_and_nothing_else():
    block = re.search(r"```text\ntinykit/\n(.*?)```", README, re.DOTALL)[1]
    words = [word for line in block.splitlines() for word in line.split()]
    named = {word for word in words if re.fullmatch(r"\w+(\.py|/)", word)}
    package = ROOT / "tinykit"
    modules = {p.name for p in package.glob("*.py")} - {"__init__.py", "__main__.py"}
    folders = {f"{p.name}/" for p in package.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert named == modules | folders


def test_output_of_make_title_is_shown_as_it_comes(capfd):
    arguments = ["title", "--stats", "--file", str(ROOT / "examples/messages.txt"), "-r", "first-words"]
    with pytest.raises(SystemExit):
        cli.main(arguments)
    printed, said = capfd.readouterr()
    block = re.search(r"What `make title` prints.*?```text\n(.*?)```", README, re.DOTALL)[1].splitlines()
    assert said.splitlines() == [line for line in block if not re.match(r" \d\.\d{3} s  ", line)]
    assert len(block) == len(printed.splitlines()) + len(said.splitlines())
    at = next(number for number, line in enumerate(block) if line.endswith("(no title)"))
    assert block[at + 1 : at + 2] == said.splitlines()


def test_every_command_is_shown():
    for name in cli.cli.commands:
        assert f"tinykit {name}" in README, name


def test_settings_table_is_the_codes_own():
    assert settings.table() in README


def test_tables_of_the_magics_are_the_codes_own():
    assert options.table() in README
    for name, command in COMMANDS.items():
        named = f"{name} [{command.metavar}]" if command.metavar else name
        assert f"| `%tiny {named}` | {command.help} |" in README
    for magic in re.findall(r"^\| `%%?tiny (\w+)", README, re.MULTILINE):
        assert magic in COMMANDS


def test_every_notebook_is_in_the_index_and_clean():
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        assert f"[{path.stem}](notebooks/{path.name})" in README
        saved = json.loads(path.read_text(encoding="utf-8"))
        assert saved["metadata"] == {}, path.name  # what differs by machine, and widgets
        for cell in saved["cells"]:
            assert set(cell["metadata"]) <= {"tags"}, path.name
        assert "/tmp/" not in path.read_text(encoding="utf-8")


def test_every_recipe_is_named():
    for name in RECIPES:
        assert f"`{name}`" in README


def test_links_to_files_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_commands_of_the_makefile_are_those_of_the_readme():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for name in re.findall(r"`make (\w+)`", README):
        assert name in targets

"""The command `tinykit lab`, its output and its exit codes."""

import io
import json
import sys

import pytest

from tests.lab.conftest import MESSAGES, short
from tinykit import cli, lab


@pytest.fixture
def command(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as exit:
            cli.main(["lab", *map(str, arguments)])
        out, err = capsys.readouterr()
        return exit.value.code, out, err

    return call


@pytest.fixture
def cases(tmp_path):
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps({"message": m, "title": m}) + "\n" for m in MESSAGES))
    short().save(tmp_path / "short.json")
    return path


@pytest.fixture
def run(command, cases, gguf, tmp_path, monkeypatch):
    monkeypatch.setenv("TINYKIT_PROGRESS", "off")
    out = tmp_path / "run"
    arguments = ("run", cases, "-r", tmp_path / "short.json", "-m", gguf, "-o", out, "--no-cache")
    code, text, err = command(*arguments)
    assert (code, str(out) in err) == (0, True) and "first-words" in text and "short" in text
    return out


def test_run_goes_on_and_takes_a_limit(command, run, cases, gguf, tmp_path):
    arguments = ("run", cases, "-r", tmp_path / "short.json", "-m", gguf)
    assert command(*arguments, "-o", run)[0] == 0
    code, _, err = command(*arguments, "-o", run, "--limit", 2)
    assert code == 2 and "another run: cases differ" in err
    assert command(*arguments, "-o", tmp_path / "two", "--limit", 2)[0] == 0
    assert len(lab.load(tmp_path / "two").cases) == 2


def test_run_says_that_titles_failed(command, cases, tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF nonsense")
    code, _, err = command(
        "run", cases, "-r", tmp_path / "short.json", "-m", tmp_path / "broken.gguf", "-o", tmp_path / "run"
    )
    assert code == 1 and "6 titles failed; the first:" in err


def test_run_interrupted_is_130(command, cases, gguf, tmp_path, monkeypatch):
    from tinykit.lab.local import LocalRunner

    def interrupted(self, jobs):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(LocalRunner, "rows", interrupted)
    assert command("run", cases, "-r", "first-words", "-o", tmp_path / "run")[0] == 130


BOUNDS = {
    "kept": (["--min", "valid=0", "--max", "words_3_7=100"], 0, ""),
    "too low": (["--min", "chrf=99", "--variant", "short"], 1, "short: chrf is"),
    "too high": (["--max", "chrf=0.1", "--variant", "first-words"], 1, "which is above 0.1"),
    "without a value": (["--min", "latency_s=1"], 1, "has no value"),
    "no bound": (["--min", "chrf"], 2, "METRIC=NUMBER"),
    "unknown": (["--metric", "chr"], 2, "No metric 'chr'"),
}


@pytest.mark.parametrize(("arguments", "code", "words"), BOUNDS.values(), ids=BOUNDS)
def test_score_and_its_bounds(command, run, arguments, code, words):
    found, _, err = command("score", run, *arguments)
    assert found == code and words in err


def test_score_as_json(command, run):
    code, out, _ = command("score", run, "--json", "--metric", "valid")
    assert code == 0 and json.loads(out)["first-words"]["valid"] == {
        "mean": pytest.approx(83.33, abs=0.01), "cases": 6, "errors": 0,
    }  # fmt: skip


def test_diff(command, run):
    code, out, _ = command("diff", f"{run}:first-words", f"{run}:short", "--changes")
    assert code == 0 and "verdict" in out and "Titles that differ" in out
    code, out, _ = command("diff", f"{run}:first-words", run, "--json")
    assert code == 0 and json.loads(out)["a"] == "first-words" and json.loads(out)["b"] == "short"
    code, _, err = command("diff", f"{run}:first", run)
    assert code == 2 and "no variant 'first'" in err


def test_diff_fails_if_something_got_worse(command, cases, tmp_path, monkeypatch):
    rows = [{"message": f"{m} number {at}", "references": [m]} for at in range(4) for m in MESSAGES[:5]]
    cases.write_text("".join(json.dumps(row) + "\n" for row in rows))
    short("short", method="first-words", max_chars=5).save(tmp_path / "short.json")
    out = tmp_path / "run"
    command("run", cases, "-r", "first-words", "-r", tmp_path / "short.json", "-o", out)
    assert command("diff", f"{out}:first-words", f"{out}:short", "--fail-if-worse")[0] == 1
    assert command("diff", f"{out}:short", f"{out}:first-words", "--fail-if-worse")[0] == 0
    assert command("diff", f"{out}:first-words", f"{out}:short")[0] == 0


def test_report_freeze_and_check(command, run, tmp_path):
    code, out, _ = command("report", run, "-o", tmp_path / "r.md")
    assert code == 0 and "## Scores" in (tmp_path / "r.md").read_text(encoding="utf-8") and "r.md" in out
    code, out, _ = command("freeze", run, "first-words", "-o", tmp_path / "frozen")
    assert code == 0 and "tinykit lab check" in out
    assert command("check", tmp_path / "frozen")[:2] == (0, "6 of 6 titles are as they were frozen.\n")
    path = tmp_path / "frozen" / "regression.json"
    path.write_text(path.read_text(encoding="utf-8").replace("Cat eats", "Dog eats"), encoding="utf-8")
    assert command("check", tmp_path / "frozen")[0] == 1


def test_a_folder_that_is_no_run_is_wrong_use(command, tmp_path):
    code, _, err = command("score", tmp_path)
    assert code == 2 and "holds no run" in err


def test_plot_as_text_and_as_a_page(command, run, tmp_path):
    code, out, _ = command("plot", run, "scores")
    assert code == 0 and "Cases by their" in out and "short (mean" in out
    code, out, _ = command("plot", run, "scores", "--metric", "words", "-o", tmp_path / "p.html")
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert code == 0 and "<svg" in page and "Cases by their words" in page and "p.html" in out
    code, _, err = command("plot", run, "--against", "latency_s")  # the run was made in batches
    assert code == 2 and "--batch-size 1" in err
    assert "completion_tokens" in command("plot", run)[1]
    assert command("plot", run, "scores", "-o", tmp_path / "p.png")[0] == 2
    assert command("plot", run, "pie")[0] == 2


def test_rate_asks_goes_on_and_tells_the_results(command, run, monkeypatch):
    def keys(text):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))

    keys("1q")
    code, out, _ = command("rate", run, "short", "first-words", "--rater", "ann")
    assert code == 0 and "1 is better" in out and "--results" in out and "prefer" not in out
    keys("2" * 9)
    code, out, _ = command("rate", run, "first-words", "short", "--rater", "ann")
    assert code == 0 and "all is rated" in out and "1 rater prefer" in out and "strength" in out
    code, out, _ = command("rate", run, "--results", "--json")
    values = json.loads(out)
    assert code == 0 and list(values["raters"]) == ["ann"] and len(values["pairs"]) == 1
    assert command("rate", run, "short")[0] == 2
    code, out, _ = command("report", run, "-o", run / "r.md")
    assert code == 0 and "## Votes" in (run / "r.md").read_text(encoding="utf-8")


@pytest.fixture
def dask(monkeypatch):
    """A Dask runner that makes the titles here, and keeps what it was told."""
    from tinykit.lab import dask_runner
    from tinykit.lab.local import LocalRunner

    made = []

    class Here(LocalRunner):
        def __init__(self, client=None, *, workers=None):
            super().__init__(False)
            self.told, self.is_closed = (client, workers), False
            made.append(self)

        def close(self):
            super().close()
            self.is_closed = True

    monkeypatch.setattr(dask_runner, "DaskRunner", Here)
    return made


@pytest.mark.parametrize(
    ("options", "told"),
    [((), (None, None)), (("--workers", 2), (None, 2)), (("--scheduler", "host:8786"), ("host:8786", None))],
    ids=["plain", "workers", "scheduler"],
)
def test_run_on_dask_is_the_same_run(command, run, cases, gguf, tmp_path, dask, options, told):
    arguments = ("-r", tmp_path / "short.json", "-m", gguf, "-o", tmp_path / "dask", "--no-cache")
    assert command("run", cases, *arguments, "--runner", "dask", *options)[0] == 0
    assert [(one.told, one.is_closed) for one in dask] == [(told, True)]
    ours, theirs = lab.load(run), lab.load(tmp_path / "dask")
    assert theirs.is_complete and {name: theirs.titles(name) for name in theirs.variants} == {
        name: ours.titles(name) for name in ours.variants
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--workers", 2), "--workers goes with --runner dask"),
        (("--scheduler", "host:1"), "--scheduler goes with --runner dask"),
        (("--runner", "dask", "--workers", 2, "--scheduler", "host:1"), "give one."),
        (("--runner", "ray"), "'ray' is not one of 'local', 'dask'"),
    ],
    ids=["workers", "scheduler", "both", "unknown"],
)
def test_run_refuses_what_does_not_go_together(command, cases, tmp_path, options, said):
    code, _, err = command("run", cases, "-o", tmp_path / "none", *options)
    assert code == 2 and said in err
    assert not (tmp_path / "none").exists()


def test_run_without_dask_says_how_to_install_it(command, cases, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    code, _, err = command("run", cases, "-o", tmp_path / "none", "--runner", "dask")
    assert code == 6 and "'distributed' is needed for runs on a Dask cluster" in err
    assert "pip install 'tinykit[dask]'" in err

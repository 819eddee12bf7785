import json
import signal
import sys

import pytest

import tinykit.tune
from tinykit import TinySession
from tinykit.errors import MissingPackageError, OptionError, UnknownModelError, UnknownRecipeError
from tinykit.recipes import RECIPES, Recipe
from tinykit.tune import TuneResult, tune
from tinykit.tune import tuning as module


def test_missing_torch_is_said_first(monkeypatch, many_pairs):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPackageError, match="'torch' is needed for training") as caught:
        tune(many_pairs)
    assert "tinykit[tune]" in caught.value.hint


def test_public_names():
    assert tinykit.tune.__all__ == sorted(tinykit.tune.__all__)
    assert all(hasattr(tinykit.tune, name) for name in tinykit.tune.__all__)
    with pytest.raises(AttributeError, match="no attribute 'tuna'"):
        tinykit.tune.tuna


class TestWithTorch:
    @pytest.fixture(autouse=True)
    def torch(self):
        return pytest.importorskip("torch", reason="torch is not installed (extra tune)")

    @pytest.fixture
    def options(self, gguf, recipe, tmp_path):
        return {
            "base": gguf,
            "recipe": recipe,
            "out": tmp_path / "mine",
            "minutes": None,
            "epochs": 1,
            "threads": 1,
            "progress": False,
        }

    def test_result_has_the_adapter_and_the_scores(self, many_pairs, options, tmp_path, gguf, recipe):
        result = tune([*many_pairs, many_pairs[0]], **options)
        assert isinstance(result, TuneResult)
        assert (result.folder, result.pairs, result.steps) == (tmp_path / "mine", 36, 5)
        assert (result.left_out, result.stopped) == ({"duplicates": 1}, False)
        assert list(result.scores) == ["first words", "base", "new"]
        assert {len(scores.rows) for scores in result.scores.values()} == {2}
        assert sorted(path.name for path in result.folder.iterdir()) == [
            "adapter_config.json",
            "adapter_model.safetensors",
            "recipe.json",
            "training",
        ]
        saved = json.loads((result.folder / "training" / "result.json").read_text(encoding="utf-8"))
        assert saved["scores"]["new"]["overall"] == result.scores["new"].overall
        assert Recipe.load(result.folder / "recipe.json") == recipe
        with TinySession(gguf, adapter=result.folder, progress=False) as session:
            assert session.recipe == recipe
            title = session.title(many_pairs[1][0])
        assert title is None or isinstance(title, str)

    def test_training_learns_pairs_by_heart_and_the_imported_model_says_them(
        self, gguf, recipe, few_pairs, tmp_path
    ):
        pairs = [(pair.message, pair.title) for pair in few_pairs]
        padding = [
            (f"{pair.message}{end}", pair.title) for pair in few_pairs for end in (" now", "!", " ...")
        ]
        result = tune(
            [*pairs, *padding],
            base=gguf,
            recipe=recipe,
            out=tmp_path / "heart",
            minutes=None,
            epochs=40,
            learning_rate=1e-2,
            first_layer=0,
            held_out=0,
            threads=1,
            progress=False,
        )
        assert result.scores == {}
        with TinySession(gguf, adapter=result.folder, dtype="fp32", progress=False) as session:
            results = [session.title_result(message) for message, _ in pairs]
        assert [found.raw or "-" for found in results] == [title or "-" for _, title in pairs]
        assert [found.text.lower() for found in results if found.text] == [
            title for _, title in pairs if title
        ]

    def test_training_starts_from_the_adapter_of_a_title_model(
        self, options, gguf, many_pairs, tmp_path, monkeypatch
    ):
        from dataclasses import replace

        from tinykit.registry import MODELS, get_model

        first = tune(many_pairs, **options, rank=3)
        spec = replace(get_model(gguf), key="tiny-titles", adapter=first.folder, chat_model=str(gguf))
        monkeypatch.setitem(MODELS, "tiny-titles", spec)
        later = tune(many_pairs, **{**options, "base": "tiny-titles", "out": tmp_path / "later", "epochs": 4})
        assert json.loads((later.folder / "adapter_config.json").read_text())["r"] == 3
        assert later.base == str(gguf)
        assert list(later.scores) == ["first words", "base", "shipped", "new"]
        assert later.history[0].train_loss < first.history[0].train_loss

    def test_interrupt_keeps_the_best_so_far_and_the_training_can_go_on(
        self, options, many_pairs, monkeypatch, capsys
    ):
        show = module._show_step

        def interrupted(trainer, stage):
            show(trainer, stage)
            if trainer.step == 2:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(module, "_show_step", interrupted)
        result = tune(many_pairs, **options)
        assert (result.stopped, result.steps, result.scores) == (True, 2, {})
        assert (result.folder / "adapter_model.safetensors").is_file()
        assert "stopped before its time" in str(result)
        assert "Not scored." in str(result)
        monkeypatch.setattr(module, "_show_step", show)
        resumed = tune(many_pairs, **options, resume=True)
        assert (resumed.stopped, resumed.steps) == (False, 5)
        assert "new" in resumed.scores

    def test_interrupted_comparison_leaves_out_the_scores(self, options, many_pairs, monkeypatch):
        def interrupted(*arguments, **more):
            raise KeyboardInterrupt

        monkeypatch.setattr(module, "compare", interrupted)
        result = tune(many_pairs, **options)
        assert (result.steps, result.stopped, result.scores) == (5, True, {})

    def test_progress_tells_the_steps_and_the_time_left(self, options, many_pairs):
        events = []
        tune(many_pairs, **{**options, "progress": events.append})
        told = [event for event in events if event.name == "tiny: tune"]
        assert [told[0].status, told[-1].status] == ["initiate", "done"]
        assert told[-1].message.startswith("tiny: tune: 5 steps in ")
        assert any("left" in (event.message or "") for event in told)
        assert any(event.name == "tiny: compare" for event in events)

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"base": "nope"}, UnknownModelError, "nope"),
            ({"recipe": "nope"}, UnknownRecipeError, "nope"),
            ({"recipe": "first-words"}, OptionError, "asks no model"),
            ({"minutes": 0}, OptionError, "minutes"),
            ({"rank": 0}, OptionError, "rank"),
            ({"held_out": 1}, OptionError, "held_out"),
            ({"first_layer": 2}, OptionError, "below 2, the number of layers"),
            ({"out": None, "resume": True}, OptionError, "needs the folder"),
            ({"resume": True}, OptionError, "holds no training to go on with"),
        ],
        ids=lambda value: str(value) if isinstance(value, dict) else "",
    )
    def test_wrong_arguments_leave_no_trace(self, options, many_pairs, change, error, message, tmp_path):
        with pytest.raises(error, match=message):
            tune(many_pairs, **{**options, **change})
        assert not (tmp_path / "mine").exists()

    def test_message_longer_than_the_context_is_refused(self, options, many_pairs):
        recipe = Recipe(name="long", template="{message}", no_task_answer="-", preparation=wide())
        cases = [*many_pairs, ("x y " * 3000, "Letters")]
        with pytest.raises(OptionError, match="Row 41 has .* tokens; the model reads"):
            tune(cases, **{**options, "recipe": recipe})

    def test_adapter_is_never_written_over(self, options, many_pairs):
        (options["out"]).mkdir()
        (options["out"] / "adapter_config.json").write_text("{}")
        with pytest.raises(OptionError, match="holds an adapter already"):
            tune(many_pairs, **options)

    def test_default_folder_is_a_new_one(self, options, many_pairs, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        folders = [tune(many_pairs, **{**options, "out": None, "held_out": 0}).folder.name for _ in range(2)]
        assert folders == ["tiny-adapter", "tiny-adapter-2"]

    def test_same_seed_gives_the_same_adapter(self, options, many_pairs, tmp_path):
        found = []
        for name in "ab":
            result = tune(many_pairs, **{**options, "out": tmp_path / name, "held_out": 0})
            found.append((result.folder / "adapter_model.safetensors").read_bytes())
        assert found[0] == found[1]

    def test_recipe_of_the_title_model_can_be_trained(self, options, many_pairs):
        result = tune(many_pairs, **{**options, "recipe": "titles", "held_out": 0})
        assert Recipe.load(result.folder / "recipe.json") == RECIPES["titles"]


def wide():
    from tinykit.recipes import Preparation

    return Preparation(max_chars=20_000)

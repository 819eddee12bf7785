import pytest

from tinykit.lab import datasets
from tinykit.language import is_english

ENGLISH = [
    "why does my docker container exit with code 137",
    "KeyError: 'bucket_name'",
    "fix login",
    "",
    "12345 !!!",
    'Traceback (most recent call last):\n  File "a.py", line 3, in <module>',
    "a naïve question about my café's menu",
    "I need this in Spanish: the shop is closed",
    "MIT license vs Apache",
    "Los Angeles itinerary",
    "docker container die unexpectedly",
    "pagination 20 per page rails",
    "Pokémon team builder",
]
OTHER = [
    "Wie entferne ich einen Rotweinfleck aus einem weißen Teppich?",
    "pourquoi mon script ne marche pas",
    "necesito un correo para mi jefa",
    "Come posso migliorare il mio CV?",
    "como faço para instalar o node",
    "почему падает сборка",
    "なぜビルドが失敗しますか",
    "构建失败怎么办",
    "لماذا يفشل البناء",
    "빌드가 실패해요",
    "mujhe ek CV banana hai",
    "Hur får jag bort fläcken?",
]


@pytest.mark.parametrize("message", ENGLISH)
def test_english_code_and_nothing_count_as_english(message):
    assert is_english(message)


@pytest.mark.parametrize("message", OTHER)
def test_other_languages_do_not(message):
    assert not is_english(message)


def test_code_in_fences_does_not_decide():
    assert not is_english("warum geht das nicht?\n```\nif this is not the one then return to the start\n```")


def test_five_megabytes_are_read_in_part():
    assert is_english("the word is " * 500_000)


def test_built_in_cases_are_told_apart():
    cases = [case for case in datasets.titles() if not case.expect_none]
    english = [is_english(case.message) for case in cases if case.language == "en"]
    others = [is_english(case.message) for case in cases if case.language != "en"]
    assert sum(english) >= 0.98 * len(english)
    assert sum(others) <= 0.1 * len(others)

"""Spelling a title as its message spells."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinykit.casing import match_casing

CASES = {
    "mixed case of the message": (
        "can you debug our OAuth login",
        "Oauth login debugging",
        "OAuth login debugging",
    ),
    "first such spelling": ("GitHub or GITHub", "github tokens", "GitHub tokens"),
    "acronym without vowel": ("Why does GRPC drop?", "Grpc drops", "GRPC drops"),
    "acronym with digit": ("s3 upload via HTTP2", "Http2 upload to S3", "HTTP2 upload to S3"),
    "already right": ("s3 upload via HTTP2", "HTTP2 upload to S3", "HTTP2 upload to S3"),
    "known acronym": ("our API is slow", "Slow Api calls", "Slow API calls"),
    "small word stays small": ("call the API and cache it", "Cache api call", "Cache api call"),
    "shouting": ("FIX THE BUILD NOW", "Fix the build", "Fix the build"),
    "shouting takes no acronym": ("FIX THE API NOW", "Fix the Api", "Fix the Api"),
    "capitals that are no acronym": ("make it SHINE please", "Shine effect", "Shine effect"),
    "odd capital inside": (
        "rename the mysqldump wrapper",
        "mySqlDump wrapper rename",
        "mysqldump wrapper rename",
    ),
    "capital inside that is unknown": ("rename it", "fooBar rename", "foobar rename"),
    "capital inside that all know": ("build fails on my phone", "iOS build failure", "iOS build failure"),
    "word of the message stays": ("the iFoo thing", "iFoo thing", "iFoo thing"),
    "parts of an identifier": ("set MAX_RETRY_count", "MAX_RETRY_count value", "MAX_RETRY_count value"),
    "Russian": ("Почему НДФЛ не сходится", "Ндфл не сходится", "НДФЛ не сходится"),
    "no case at all": ("登录测试不稳定", "登录测试", "登录测试"),
    "Latin word in Japanese": ("pandasでcsvを読む", "pandasのCSV読み込み", "pandasのCSV読み込み"),
    "no message": ("", "Fix Oauth login", "Fix Oauth login"),
}


@pytest.mark.parametrize(("source", "title", "spelled"), CASES.values(), ids=CASES)
def test_match_casing_spells_as_the_message(source, title, spelled):
    assert match_casing(title, source) == spelled


@settings(deadline=None)
@given(title=st.text(max_size=80), source=st.text(max_size=80))
def test_match_casing_twice_is_once_and_changes_capitals_only(title, source):
    once = match_casing(title, source)
    assert match_casing(once, source) == once
    assert once.casefold() == title.casefold() or once.lower() == title.lower()

"""What is kept between processes: all of it or nothing, and never at the price of an error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_kvswap import disk_cache


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_KVSWAP_CACHE_DIR", str(tmp_path / "kept"))
    return tmp_path / "kept"


@given(content=st.binary(max_size=200))
def test_what_is_stored_is_loaded(tmp_path_factory, content):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("NUMBA_KVSWAP_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        disk_cache.store("file", content)
        assert disk_cache.load("file") == content


def test_what_was_not_stored_is_none(folder):
    assert disk_cache.load("nothing") is None


@given(content=st.binary(min_size=1, max_size=60), data=st.data())
def test_a_file_changed_in_any_byte_or_cut_anywhere_is_none(tmp_path_factory, content, data):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("NUMBA_KVSWAP_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        disk_cache.store("file", content)
        file = disk_cache.cache_folder() / "file"
        whole = file.read_bytes()
        at = data.draw(st.integers(0, len(whole) - 1))
        cut = data.draw(st.booleans())
        changed = whole[at] ^ data.draw(st.integers(1, 255))
        file.write_bytes(whole[:at] if cut else whole[:at] + bytes([changed]) + whole[at + 1 :])
        assert disk_cache.load("file") is None


def test_a_later_store_takes_the_place_of_an_earlier_one(folder):
    for content in (b"old", b"new"):
        disk_cache.store("file", content)
    assert disk_cache.load("file") == b"new"
    assert [file.name for file in folder.iterdir()] == ["file"]


def test_a_store_that_fails_at_its_end_leaves_the_old_and_no_litter(folder, monkeypatch):
    disk_cache.store("file", b"old")

    def refuse(source, target):
        assert Path(source).read_bytes().endswith(b"\nnew")  # all of it is there before the name is
        raise OSError("planted")

    monkeypatch.setattr(disk_cache.os, "replace", refuse)
    disk_cache.store("file", b"new")
    assert disk_cache.load("file") == b"old"
    assert [file.name for file in folder.iterdir()] == ["file"]


def test_an_interrupted_store_leaves_no_litter_either(folder, monkeypatch):
    def interrupt(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(disk_cache.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        disk_cache.store("file", b"new")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("wrong", ["a file stands there", "it cannot be made"])
def test_a_folder_that_cannot_be_written_is_no_error(folder, wrong):
    if wrong == "a file stands there":
        folder.write_bytes(b"")
    else:
        folder.parent.joinpath("kept").symlink_to(folder.parent / "nowhere" / os.devnull.strip("/") / "x")
    disk_cache.store("file", b"content")
    assert disk_cache.load("file") is None or wrong != "a file stands there"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"NUMBA_KVSWAP_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/numba_kvswap")),
        ({"XDG_CACHE_HOME": "", "HOME": "/c"}, Path("/c/.cache/numba_kvswap")),
    ],
)
def test_where_it_is(monkeypatch, variables, expected):
    for name in ("NUMBA_KVSWAP_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert disk_cache.cache_folder() == expected


@given(
    one=st.lists(st.one_of(st.integers(), st.text(), st.binary())), other=st.lists(st.one_of(st.integers(), st.text()))
)
def test_a_key_is_that_of_its_facts_alone(one, other):
    assert disk_cache.key_of(*one) == disk_cache.key_of(*one)
    assert (disk_cache.key_of(*one) == disk_cache.key_of(*other)) == (one == other)

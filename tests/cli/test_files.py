"""Files are written whole or not at all."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from numba_kvswap.files import write_whole


def test_a_file_is_replaced_at_once(tmp_path):
    file = tmp_path / "found.json"
    file.write_text("the old one")
    held = file.open()
    write_whole(file, "the new one")
    assert file.read_text() == "the new one\n"
    assert held.read() == "the old one", "who was reading goes on reading what there was"
    held.close()
    assert list(tmp_path.iterdir()) == [file]


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "found.json"
    file.write_text("the old one")

    def fails(*_paths):
        raise OSError("planted")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="planted"):
        write_whole(file, "the new one")
    assert file.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [file]


def test_it_may_be_read_by_whoever_may_read_other_new_files(tmp_path):
    write_whole(tmp_path / "one", "")
    (tmp_path / "other").write_text("")
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


def test_a_link_goes_on_leading_to_the_file(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_whole(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "text\n"


def test_a_pipe_is_written_as_it_comes(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "text")
    reader.join()
    assert found == ["text\n"]

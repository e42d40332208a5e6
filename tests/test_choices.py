from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import time

import pytest

from leanconv._choices import Choice, Choices

CHOICE = Choice("a key", "native", {"native": 1e-3, "aten": 2e-3})


def test_what_is_put_is_found_by_another_reader(tmp_path):
    Choices(tmp_path / "deep" / "c.sqlite").put([CHOICE])
    assert Choices(tmp_path / "deep" / "c.sqlite").get("a key") == CHOICE
    assert Choices(tmp_path / "deep" / "c.sqlite").get("another") is None


def test_export_and_merge_carry_everything(tmp_path):
    one, two = Choices(tmp_path / "1"), Choices(tmp_path / "2")
    one.put([CHOICE])
    two.put([Choice("b", "aten", {})])
    one.export_to(tmp_path / "export.json")
    assert two.merge_from(tmp_path / "export.json") == 1
    assert [choice.key for choice in two.all()] == ["a key", "b"]
    two.clear()
    assert two.all() == []


def test_merging_a_foreign_file_is_refused(tmp_path):
    (tmp_path / "x.json").write_text('{"version": 99}')
    with pytest.raises(ValueError, match="has version 99"):
        Choices(tmp_path / "c").merge_from(tmp_path / "x.json")


def test_a_damaged_file_is_set_aside_with_one_warning_and_work_goes_on(tmp_path):
    file = tmp_path / "c.sqlite"
    file.write_bytes(b"this is no database, whatever it is called" * 100)
    choices = Choices(file)
    with pytest.warns(UserWarning, match="set aside"):
        assert choices.get("a key") is None
    choices.put([CHOICE])
    assert choices.get("a key") == CHOICE
    assert len(list(tmp_path.glob("*.aside-*"))) == 1


def test_a_file_of_another_version_is_set_aside(tmp_path):
    with sqlite3.connect(tmp_path / "c.sqlite") as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.warns(UserWarning, match="version 7"):
        assert Choices(tmp_path / "c.sqlite").all() == []


def test_an_unusable_place_costs_one_warning(tmp_path):
    (tmp_path / "file").write_text("in the way of a folder")
    choices = Choices(tmp_path / "file" / "c.sqlite")
    with pytest.warns(UserWarning, match="cannot be used"):
        choices.put([CHOICE])
    choices.put([CHOICE])
    assert choices.get("a key") is None


def _hammer(path, which, seconds):
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        Choices(path).put([Choice(f"{which} {count}", "aten", {"aten": 1.0})])
        count += 1
    Choices(path).put([Choice(f"count {which}", str(count), {})])


def test_many_writers_lose_nothing_though_one_is_killed(tmp_path, pytestconfig):
    path = tmp_path / "c.sqlite"
    seconds = 30.0 if pytestconfig.getoption("--long") else 3.0
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_hammer, args=(path, n, seconds)) for n in range(8)]
    for writer in writers:
        writer.start()
    while not Choices(path).get("7 3"):
        time.sleep(0.05)
    os.kill(writers[7].pid, signal.SIGKILL)
    for writer in writers:
        writer.join(seconds + 100)
    assert [writer.exitcode for writer in writers] == [0] * 7 + [-signal.SIGKILL]
    keys = {choice.key: choice.backend for choice in Choices(path).all()}
    for which in range(7):
        count = int(keys[f"count {which}"])
        assert all(f"{which} {n}" in keys for n in range(count))
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_choice_says_why():
    assert CHOICE.sentence() == "native, measured: 1 ms; aten 2 ms (2.00 times that)"
    assert Choice("k", "aten", {}).sentence() == "aten, by rule: nothing was measured"

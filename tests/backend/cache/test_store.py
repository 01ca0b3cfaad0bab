"""The cache as a store: what is kept, what is refused, what leaves, and who waits for whom."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trnx.backend.cache import cache as cache_module
from trnx.backend.cache.cache import PREDICTION, SOURCE, Cache, Codec
from trnx.backend.cache.entries import Entry, Key, Kind
from trnx.backend.cache.turns import leave, take, wait
from trnx.backend.environment import cache_settings
from trnx.backend.errors import InvalidOptionError

PLAIN = Codec(lambda value: value, lambda value: value)


def key(text: str = "1", kind: Kind = PREDICTION) -> Key:
    return Key(kind, {"part": text})


def never() -> Any:
    raise AssertionError("computed again")


def file_of(cache: Cache, one: Key) -> Path:
    return cache.folder.place(one.kind.name, one.digest)


def stored(cache: Cache, one: Key, value: Any = (1, 2)) -> Path:
    cache.get_or_make(one, lambda: value, PLAIN)
    return file_of(cache, one)


def test_a_value_is_computed_once_whatever_process_asks(cache: Cache, folder: Path) -> None:
    assert cache.get_or_make(key(), lambda: {"a": [1, 2.5, None]}, PLAIN) == {"a": [1, 2.5, None]}
    assert cache.get_or_make(key(), never, PLAIN) == {"a": [1, 2.5, None]}
    other = Cache(folder, 1 << 20)
    assert other.get_or_make(key(), never, PLAIN) == {"a": [1, 2.5, None]}
    assert cache.counts == {"miss": 1, "written": 1, "hit": 1}
    assert other.counts == {"hit": 1}
    assert not list(folder.rglob("*.lock"))
    assert not list(folder.rglob(".new-*"))


def test_none_is_a_value_and_what_has_no_json_is_not_kept(cache: Cache) -> None:
    codec = Codec(lambda value: {"v": value}, lambda given: given["v"])
    assert cache.get_or_make(key(), lambda: None, codec) is None
    assert cache.get_or_make(key(), never, codec) is None
    nothing = Codec(lambda _: None, never)
    assert cache.get_or_make(key("2"), lambda: 5, nothing) == 5
    assert not file_of(cache, key("2")).exists()


def test_keys_differ_by_every_part_and_by_kind() -> None:
    first = Key(PREDICTION, {"a": "1", "b": "2"})
    others = [
        Key(PREDICTION, {"a": "1", "b": "3"}),
        Key(PREDICTION, {"a": "1"}),
        Key(PREDICTION, {"a": "1", "b": "2", "c": ""}),
        Key(PREDICTION, {"a": "2", "b": "1"}),
        Key(SOURCE, {"a": "1", "b": "2"}),
    ]
    assert len({first.digest, *(other.digest for other in others)}) == len(others) + 1
    assert Key(PREDICTION, {"b": "2", "a": "1"}).digest == first.digest
    assert first.differs_from(others[0].parts) == ("b",)
    assert first.differs_from(others[2].parts) == ("c",)


def _changed(data: bytes, **changes: Any) -> bytes:
    return json.dumps({**json.loads(data), **changes}).encode()


TAMPERED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",  # noqa: ARG005
    "cut off": lambda data: data[: len(data) // 2],
    "one bit": lambda data: data.replace(b"[1,2]", b"[1,3]"),
    "other value": lambda data: _changed(data, value=[9]),
    "other key": lambda data: _changed(data, key={"part": "2"}),
    "other kind": lambda data: _changed(data, kind="plan"),
    "unknown kind": lambda data: _changed(data, kind="program"),
    "other version": lambda data: _changed(data, version=99),
    "other format": lambda data: _changed(data, format="x"),
    "no parts": lambda data: _changed(data, key=["part"]),
    "numbers as parts": lambda data: _changed(data, key={"part": 1}),
    "no checksum": lambda data: b'{"format":"trnx-cache","version":1}',  # noqa: ARG005
    "a list": lambda data: b"[1]",  # noqa: ARG005
    "no JSON": lambda data: b"\x80\x04\x95not json",  # noqa: ARG005
    "deep": lambda data: b"[" * 200_000,  # noqa: ARG005
    "not UTF-8": lambda data: b"\xff\xfe" + data,
    "random bytes": lambda data: bytes(range(256)) * (len(data) // 100 + 1),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_tampered_entry_is_told_and_computed_again(
    cache: Cache, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = stored(cache, key(), [1, 2])
    file.write_bytes(TAMPERED[name](file.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert cache.get_or_make(key(), lambda: [7], PLAIN) == [7]
    assert cache.counts["damaged"] == 1
    assert str(file) in caplog.text
    assert cache.get_or_make(key(), never, PLAIN) == [7]


def test_an_entry_in_the_place_of_another_is_not_taken(cache: Cache) -> None:
    first, second = stored(cache, key("1"), "first"), stored(cache, key("2"), "second")
    second.write_bytes(first.read_bytes())
    assert cache.get_or_make(key("2"), lambda: "again", PLAIN) == "again"


def test_a_value_of_another_form_is_computed_again(cache: Cache) -> None:
    stored(cache, key(), {"a": 1})
    strict = Codec(lambda value: {"b": value}, lambda given: given["b"])
    assert cache.get_or_make(key(), lambda: 4, strict) == 4
    assert cache.get_or_make(key(), never, strict) == 4


@pytest.mark.parametrize("what", ["link", "folder", "pipe"])
def test_what_is_no_file_is_not_read(cache: Cache, what: str, tmp_path: Path) -> None:
    file = stored(cache, key(), "here")
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_bytes(file.read_bytes())
    file.unlink()
    if what == "link":
        file.symlink_to(elsewhere)
    elif what == "folder":
        file.mkdir()
    else:
        os.mkfifo(file)
    assert cache.get_or_make(key(), lambda: "again", PLAIN) == "again"
    assert cache.counts["damaged"] == 1
    assert json.loads(elsewhere.read_bytes())["value"] == "here"


@pytest.mark.parametrize("place", ["file", "folder", "around"])
def test_code_is_not_read_where_others_can_write_but_data_is(
    cache: Cache, folder: Path, place: str
) -> None:
    code, data = stored(cache, key(kind=SOURCE), "x = 1"), stored(cache, key(), "data")
    assert cache.get_or_make(key(kind=SOURCE), never, PLAIN) == "x = 1"
    for file in (code, data):
        {"file": file, "folder": folder, "around": folder.parent}[place].chmod(0o777)
    assert cache.get_or_make(key(kind=SOURCE), lambda: "made", PLAIN) == "made"
    assert cache.get_or_make(key(), never, PLAIN) == "data"
    assert cache.counts["foreign"] == 1


def test_a_new_folder_is_private_and_a_shared_one_stays_shared(cache: Cache, folder: Path) -> None:
    stored(cache, key())
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    file = stored(cache, Key(SOURCE, {"a": "new"}))
    assert file.parent.stat().st_mode & 0o777 == 0o770
    assert file.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("error", [28, 30, 13], ids=["full", "read-only", "denied"])
def test_a_folder_that_takes_nothing_is_told_once(
    cache: Cache,
    error: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(cache_module.Folder, "write", refuse)
    for text in "123":
        assert cache.get_or_make(key(text), lambda text=text: text, PLAIN) == text
    assert len(caplog.records) == 1
    assert os.strerror(error) in caplog.text
    assert cache.counts["refused"] == 1


def test_a_file_in_the_place_of_the_folder_fails_nothing(folder: Path) -> None:
    folder.write_text("no folder")
    assert Cache(folder, 1 << 20).get_or_make(key(), lambda: 3, PLAIN) == 3


def test_a_read_only_folder_is_read(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(cache, key(), "here")

    def refuse(*_: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(cache_module.Folder, "write", refuse)
    assert cache.get_or_make(key(), never, PLAIN) == "here"


def test_errors_of_the_computation_are_its_own(cache: Cache, folder: Path) -> None:
    def fail() -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        cache.get_or_make(key(), fail, PLAIN)
    assert not list(folder.rglob("*.lock"))
    assert cache.get_or_make(key(), lambda: 1, PLAIN) == 1


def test_the_least_recently_used_leave_first(cache: Cache) -> None:
    files = [stored(cache, key(str(i)), "x" * 1000) for i in range(10)]
    now = time.time()
    for age, file in enumerate(files):
        os.utime(file, (now - 1000 + age, now - 1000 + age))
    cache.get_or_make(key("0"), never, PLAIN)  # used again
    size = files[0].stat().st_size
    count, freed = cache.folder.shrink(5 * size)
    assert (count, freed) == (6, 6 * size)  # down to four fifths of the bound
    assert [file.exists() for file in files] == [True, *[False] * 6, *[True] * 3]


def test_the_folder_stays_within_its_bound(folder: Path) -> None:
    cache = Cache(folder, 50_000)
    for i in range(100):
        stored(cache, key(str(i)), "x" * 2000)
    assert sum(entry.nbytes for entry in cache.folder.entries()) <= 50_000 * 17 / 16 + 3000
    assert cache.get_or_make(key("99"), never, PLAIN) == "x" * 2000


def test_all_processes_count_what_they_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    shrink = cache_module.Folder.shrink

    def counted(self: cache_module.Folder, most_bytes: int) -> tuple[int, int]:
        looks.append(most_bytes)
        return shrink(self, most_bytes)

    monkeypatch.setattr(cache_module.Folder, "shrink", counted)
    most = 16 * 10 * 4096
    for i in range(30):  # as many processes of one write each
        stored(Cache(folder, most), key(str(i)), "x")
    assert len(looks) == 2  # after 11 units each
    assert (folder / "written").stat().st_size == 30 - 2 * 11
    assert len(list(Cache(folder, most).folder.entries())) == 30


def test_what_killed_processes_left_goes_after_a_while(cache: Cache) -> None:
    parent = stored(cache, key()).parent
    old, new = [parent / ".new-abc", parent / "a.lock"], [parent / ".new-def", parent / "b.lock"]
    for file in (*old, *new):
        file.touch()
    for file in old:
        os.utime(file, (1, 1))
    cache.folder.shrink(1 << 20)
    assert not any(file.exists() for file in old)
    assert all(file.exists() for file in new)


def test_one_computes_and_the_others_wait(folder: Path) -> None:
    made: list[int] = []
    results: list[int] = []

    def make() -> int:
        time.sleep(0.3)
        made.append(1)
        return 7

    def ask() -> None:  # a cache of its own each, as processes have
        results.append(Cache(folder, 1 << 20, wait_seconds=30).get_or_make(key(), make, PLAIN))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [7] * 8
    assert made == [1]


def test_who_has_waited_long_enough_goes_on_alone(folder: Path) -> None:
    cache = Cache(folder, 1 << 20, wait_seconds=0.2)
    lock = cache.folder.lock("prediction", key().digest)
    cache.folder.make_parent(lock)
    assert take(lock)
    start = time.monotonic()
    assert cache.get_or_make(key(), lambda: 3, PLAIN) == 3
    assert 0.2 <= time.monotonic() - start < 5
    assert lock.exists()  # it is another's
    leave(lock)


def test_a_turn_of_a_process_that_is_gone_is_taken_over(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    code = (
        "import os, sys; from pathlib import Path; from trnx.backend.cache.turns import take; "
        "assert take(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(lock)]).returncode == -9
    assert lock.exists()
    start = time.monotonic()
    assert not wait(lock, lambda: False, seconds=60)
    assert time.monotonic() - start < 30
    assert take(lock)


@pytest.mark.parametrize("text", ["", "1", "x y", "99999999999999999999 other", "1 elsewhere"])
def test_an_old_turn_of_another_machine_is_taken_over(tmp_path: Path, text: str) -> None:
    lock = tmp_path / "a.lock"
    lock.write_text(text)
    os.utime(lock, (1, 1))
    assert not wait(lock, lambda: False, seconds=60)
    assert take(lock)


def test_settings_of_the_environment(tmp_path: Path) -> None:
    assert cache_settings({"TRNX_CACHE_DIR": "off"}) is None
    assert cache_settings({"TRNX_CACHE_DIR": "OFF"}) is None
    home = {"XDG_CACHE_HOME": str(tmp_path)}
    assert cache_settings(home) == (tmp_path / "trnx" / "compile", 1 << 30)
    given = {"TRNX_CACHE_DIR": str(tmp_path), "TRNX_CACHE_SIZE": "3"}
    assert cache_settings(given) == (tmp_path, 3 << 20)
    for wrong in ("0", "-1", "1G", "1.5", "many"):
        with pytest.raises(InvalidOptionError, match="TRNX_CACHE_SIZE"):
            cache_settings({"TRNX_CACHE_SIZE": wrong})


def test_a_value_that_is_no_json_is_an_error_of_ours() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        Entry(key(), float("nan")).to_bytes()

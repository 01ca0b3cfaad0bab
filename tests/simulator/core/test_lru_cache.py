"""The one bounded cache: who leaves, and who may share it."""

from __future__ import annotations

import threading

import pytest

from trnx.simulator.lru_cache import LruCache


def kept(cache: LruCache[str]) -> str:
    return "".join(cache.values())


def test_the_least_recently_used_leaves_first() -> None:
    cache: LruCache[str] = LruCache(3)
    for key in "abc":
        cache.put(key, key)
    assert cache.get("a") == "a"
    cache.put("d", "d")
    assert kept(cache) == "cad"
    assert cache.get("b") is None
    assert cache.get_or_make("c", lambda: "new") == "c"
    cache.put("e", "e")
    assert kept(cache) == "dce"
    assert len(cache) == 3


def test_a_value_that_is_put_again_takes_the_place_of_the_first() -> None:
    cache: LruCache[str] = LruCache(2)
    for value in "xyz":
        cache.put("key", value)
    assert kept(cache) == "z"


def test_bytes_bound_it_and_the_newest_stays() -> None:
    cache: LruCache[str] = LruCache(9, 4, lambda values: sum(map(len, values)))
    for value in ("aa", "bb", "c"):
        cache.put(value, value)
    assert kept(cache) == "bbc"
    cache.put("long", "ddddddddd")
    assert kept(cache) == "ddddddddd"
    cache.put("e", "e")
    assert kept(cache) == "e"


def test_trimming_leaves_the_newest() -> None:
    cache: LruCache[str] = LruCache(9)
    for key in "abcd":
        cache.put(key, key)
    assert cache.get("a") == "a"
    cache.trim(2)
    assert kept(cache) == "da"
    cache.trim(2)
    assert kept(cache) == "da"
    cache.put("e", "e")
    assert kept(cache) == "dae"
    cache.trim(0)
    assert len(cache) == 0


def test_none_is_a_value_and_is_made_once() -> None:
    cache: LruCache[None] = LruCache(2)
    made: list[int] = []
    for _ in range(2):
        cache.get_or_make("key", lambda: made.append(1))
    assert made == [1]


def test_what_fails_to_be_made_is_tried_again() -> None:
    cache: LruCache[str] = LruCache(2)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_make("key", lambda: str(1 // 0))
    assert cache.get_or_make("key", lambda: "made") == "made"


def test_clear_forgets_all() -> None:
    cache: LruCache[str] = LruCache(2)
    cache.put("a", "a")
    cache.clear()
    assert len(cache) == 0
    assert cache.get("a") is None


def test_what_leaves_may_use_the_cache_while_it_dies() -> None:
    cache: LruCache[object] = LruCache(1)
    seen: list[object] = []

    class Last:
        def __del__(self) -> None:
            seen.append(cache.get("new"))

    cache.put("old", Last())
    cache.put("new", 2)
    assert seen == [2]
    cache.put("new", Last())
    cache.clear()
    assert seen == [2, None]


def test_threads_share_it() -> None:
    cache: LruCache[int] = LruCache(8)
    wrong: list[tuple[int, int]] = []

    def work(first: int) -> None:
        for number in range(first, first + 2000):
            key = number % 13
            found = cache.get_or_make(key, lambda key=key: key)  # type: ignore[misc]
            if found != key or len(cache) > 9:
                wrong.append((key, found))
            if number % 500 == 0:
                cache.clear()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(cache) <= 8


class _Key:
    """All share a bucket of a dict; comparing and hashing may be interrupted."""

    calls_left = -1

    def __init__(self, name: str) -> None:
        self.name = name

    def _called(self) -> None:
        _Key.calls_left -= 1
        if _Key.calls_left == 0:
            raise KeyboardInterrupt

    def __hash__(self) -> int:
        self._called()
        return 7

    def __eq__(self, other: object) -> bool:
        self._called()
        return isinstance(other, _Key) and other.name == self.name


@pytest.mark.parametrize("calls", range(1, 21))
def test_an_interrupt_while_keys_are_compared_leaves_a_cache_that_works(calls: int) -> None:
    cache: LruCache[str] = LruCache(2)
    cache.put(_Key("a"), "a")
    cache.put(_Key("b"), "b")
    _Key.calls_left = calls
    try:
        cache.get(_Key("a"))
        cache.put(_Key("a"), "x")
        cache.put(_Key("c"), "c")
    except KeyboardInterrupt:
        pass
    finally:
        _Key.calls_left = -1
    for name in "def":
        cache.put(_Key(name), name)
    assert kept(cache) == "ef"
    assert cache.get(_Key("e")) == "e"

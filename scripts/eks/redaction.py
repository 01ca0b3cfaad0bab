"""The boundary that keeps secrets out of everything that `trnx eks` shows.

A secret is recognised by its form (keys of AWS, tokens of well-known services, private keys, web
tokens, passwords in URLs) or by the name in front of it. What is shown passes here three times:
findings and errors when they are made, and both output streams line by line. Needs nothing but the
standard library, as it runs in the job's container too.
"""

from __future__ import annotations

import io
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from types import TracebackType
from typing import Any, TextIO

from trnx.eks.secret_forms import HIDDEN, is_secret, is_secret_name, redact, secret_places

_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]*PRIVATE KEY-----")


def redacted(value: Any) -> Any:
    """Plain data with every text in it redacted, keys too; values of secret names are hidden."""
    if isinstance(value, dict):
        return {
            redact(str(key)): HIDDEN
            if isinstance(part, str) and is_secret(str(key), part)
            else redacted(part)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    return redact(value) if isinstance(value, str) else value


def secret_words(words: Sequence[str]) -> Iterator[int]:
    """Indices of words of a command line that hold a secret."""
    places = list(secret_places(" ".join(words)))
    begin = 0
    for index, word in enumerate(words):
        end = begin + len(word)
        before = words[index - 1] if index else ""
        named = before.startswith("-") and "=" not in before and not word.startswith("-")
        hit = any(start < end and stop > begin for start, stop in places)
        if hit or redact(word) != word or (named and is_secret(before, word)):
            yield index
        begin = end + 1


def texts_at_risk(value: Any, name: str = "") -> Iterator[str]:
    """Texts of an object that may be secrets, whatever they look like: values of variables, of
    Secrets and ConfigMaps, of keys with a secret's name."""
    if isinstance(value, dict):
        for key, part in value.items():
            variable = key == "value" and "name" in value
            open_text = variable or name in ("data", "stringData") or is_secret_name(str(key))
            if isinstance(part, str) and open_text:
                yield part
            yield from texts_at_risk(part, str(key))
    elif isinstance(value, list):
        words = [item if isinstance(item, str) else "" for item in value]
        yield from (words[index] for index in secret_words(words))
        for item in value:
            yield from texts_at_risk(item)


def without(message: str, texts: Iterator[str]) -> str:
    """The message, redacted, and without these texts."""
    for found in sorted({item for item in texts if len(item) > 2}, key=len, reverse=True):
        message = message.replace(found, HIDDEN)
    return redact(message)


class RedactedStream(io.TextIOBase):
    """Writes whole lines to a stream, redacted; lines of a private key are left out."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._rest = ""
        self._in_key = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream."""
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """How the stream treats what it cannot encode."""
        return self._stream.errors

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The stream's descriptor."""
        return self._stream.fileno()

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, text: str) -> int:
        """Take the text; what ends with a newline is written."""
        if not isinstance(text, str):
            raise TypeError("a text stream takes text")
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._line(line, "\n")
        return len(text)

    def _line(self, line: str, end: str) -> None:
        if self._in_key:
            self._in_key = not _KEY_ENDS.search(line)
            return
        begins = [found.start() for found in _KEY_BEGINS.finditer(line)]
        self._in_key = bool(begins) and not _KEY_ENDS.search(line, begins[-1])
        self._stream.write(redact(line) + end)

    def flush(self) -> None:
        """Flush whole lines; a part of a line could be a part of a secret."""
        if not self._stream.closed:
            self._stream.flush()

    def finish(self) -> None:
        """Write what is left."""
        rest, self._rest = self._rest, ""
        if rest:
            self._line(rest, "")
        self.flush()


@contextmanager
def redacted_output() -> Iterator[None]:
    """Everything printed inside, by whomever in this process, is redacted."""
    out, errors = RedactedStream(sys.stdout), RedactedStream(sys.stderr)
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            yield
        finally:
            out.finish()
            errors.finish()


def show_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """`sys.excepthook` of the command: the traceback, redacted."""
    told = "".join(traceback.format_exception(kind, error, trace))
    print(redact(told), end="", file=sys.stderr)

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

HIDDEN = "[hidden]"

# Published forms of the services' credentials.
_FORMS = re.compile(
    r"""
      (?<![A-Za-z0-9])(?:AKIA|ASIA)[0-9A-Z]{12,}               # AWS
    | (?<![A-Za-z0-9])hf_(?:(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{6,}|[A-Za-z0-9]{16,})\w*  # Hugging Face
    | (?<![A-Za-z0-9])gh[opusr]_[A-Za-z0-9]{6,}\w*             # GitHub
    | (?<![A-Za-z0-9])github_pat_\w{6,}
    | (?<![A-Za-z0-9])glpat-[\w-]{8,}                          # GitLab
    | (?<![A-Za-z0-9])sk-(?:[A-Za-z0-9]+-)*(?=[A-Za-z_]*\d)\w{8,}   # OpenAI, Anthropic
    | (?<![A-Za-z0-9])xox[a-z]-[\w-]{6,}                       # Slack
    | (?<![A-Za-z0-9])eyJ[\w-]{6,}\.[\w-]+(?:\.[\w-]*)?        # JSON web tokens
    | -----BEGIN\ [A-Z0-9 ]*PRIVATE\ KEY.*?(?:-----END\ [A-Z0-9 ]*PRIVATE\ KEY-----|\Z)
    | (?<=://)[^\s/:@'"]*:[^\s@'"]+(?=@)                       # URLs
    | (?<=[Bb]earer\ )[\w.~+/=-]{6,}
    """,
    re.VERBOSE | re.DOTALL,
)
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]*PRIVATE KEY-----")
_NAME = re.compile(
    r"(^|_)(TOKEN|PASSWORD|PASSWD|PASSPHRASE|PWD|SECRET|API_?KEY|ACCESS_KEY(_ID)?|SECRET_KEY|"
    r"PRIVATE_KEY|CREDENTIALS?|AUTHORIZATION)$"
)
# Tokens of text, and numbers of them: EOS_TOKEN, MAX_TOKEN.
_TEXT_TOKEN = re.compile(
    r"(^|_)(BOS|CLS|EOS|END|IMAGE|MASK|MAX|MIN|NEW|NUM|PAD|PER|SEP|SPECIAL|START|STOP|UNK)_TOKEN$"
)
_REFERENCE = re.compile(r"\$\(.*\)|\$\w+|\$\{.*\}|<.*>|\{\{.*\}\}|\[hidden\]")
# EMPTY and dummy are what clients of local servers are given.
_PLAIN = re.compile(
    r"\d+(\.\d+)?|true|false|null|none|yes|no|empty|dummy|placeholder|", re.IGNORECASE
)
# Words that make a sentence: longer than a passphrase.
_PROSE = 7
# NAME=value, --name value, "name": value
_ASSIGNED = re.compile(
    r"(?P<before>(?P<name>[A-Za-z_][\w.-]*)=)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s&,;\"']+)"
)
_FLAG = re.compile(
    r"(?P<before>(?<![\w-])--?(?P<name>[A-Za-z][\w-]*)(?:\s+|[\"'],\s*[\"']))"
    r"(?P<value>[^\s\"',;-][^\s\"',;]*)"
)
_ENTRY = re.compile(
    r"(?P<before>[\"']?(?<![\w.])(?<!\] )(?P<name>[A-Z][A-Z0-9_]+|[a-z][a-z_-]*)[\"']?:[ ]*)"
    r"(?P<value>\"[^\"]+\"|'[^']+'|[^\s\"',{}\[\]]+)"
)
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def is_secret_name(name: str) -> bool:
    """Whether a variable, flag or key of that name holds a secret: HF_TOKEN, --api-key."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", _WORDS.sub("_", name.strip("-"))).upper()
    return bool(_NAME.search(plain)) and not _TEXT_TOKEN.search(plain)


def has_secret_form(text: str) -> bool:
    """Whether a text holds what has the form of a credential."""
    return _FORMS.search(text) is not None


def is_secret(name: str, value: str) -> bool:
    """Whether a value is a secret, by its own form or by its name.

    A reference to a variable, a number of tokens, a sentence, true and false are none.
    """
    if has_secret_form(value):
        return True
    if _REFERENCE.fullmatch(value) or len(value.split()) >= _PROSE:
        return False
    numeric_token = is_secret_name(name) and name.upper().endswith("TOKEN")
    if _PLAIN.fullmatch(value) and (numeric_token or not value[:1].isdigit()):
        return False
    return is_secret_name(name)


def _hide(found: re.Match[str]) -> str:
    quote = found["value"][0] if found["value"][0] in "\"'" else ""
    value = found["value"].strip(quote) if quote else found["value"]
    if not is_secret(found["name"], value):
        return found[0]
    return f"{found['before']}{quote}{HIDDEN}{quote}"


def redact(text: str) -> str:
    """The text with every secret in it replaced by `[hidden]`."""
    shown = _FORMS.sub(HIDDEN, text)
    for pattern in (_ASSIGNED, _FLAG, _ENTRY):
        shown = pattern.sub(_hide, shown)
    return shown


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
    for index, word in enumerate(words):
        before = words[index - 1] if index else ""
        named = before.startswith("-") and "=" not in before and not word.startswith("-")
        if redact(word) != word or (named and is_secret(before, word)):
            yield index


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

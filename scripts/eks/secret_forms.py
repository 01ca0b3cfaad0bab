"""What a secret looks like: forms of credentials, names that stand before one, command lines.

Standard library alone, as it runs in the job's container too. A place is (start, end) of a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

HIDDEN = "[hidden]"
Place = tuple[int, int]

# Published forms of the services' credentials.
_FORMS = re.compile(
    r"""
      (?<![A-Za-z0-9])(?:AKIA|ASIA)[0-9A-Z]{12,}               # AWS
    # AWS' secret keys: 40 characters of base64 without a word or a folder's name in them.
    | (?<![\w/+=.-])(?=[A-Za-z0-9/+]{40}(?![\w/+=.-]))(?=(?:[^A-Z\s]*[A-Z]){4})
      (?=(?:[^a-z\s]*[a-z]){4})(?=[^0-9\s]*[0-9])(?!\S*[a-z]{8})[A-Za-z0-9/+]{40}
    | (?<![A-Za-z0-9])hf_(?:(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{6,}|[A-Za-z0-9]{16,})\w*  # Hugging Face
    | (?<![A-Za-z0-9])gh[opusr]_[A-Za-z0-9]{6,}\w*             # GitHub
    | (?<![A-Za-z0-9])github_pat_\w{6,}
    | (?<![A-Za-z0-9])glpat-[\w-]{8,}                          # GitLab
    | (?<![A-Za-z0-9])sk-(?:[A-Za-z0-9]+-)*(?=[A-Za-z_]*\d)\w{8,}   # OpenAI, Anthropic
    | (?<![A-Za-z0-9])xox[a-z]-[\w-]{6,}                       # Slack
    | (?<=hooks\.slack\.com/services/)[\w/-]+
    | (?<![A-Za-z0-9])AIza[\w-]{30,}                           # Google
    | (?<![A-Za-z0-9])ya29\.[\w-]{10,}
    | (?<![A-Za-z0-9])npm_[A-Za-z0-9]{30,}
    | (?<![A-Za-z0-9])pypi-(?=[\w-]*[A-Z])(?=[\w-]*\d)[\w-]{16,}
    | (?<![A-Za-z0-9])[rs]k_(?:live|test)_[A-Za-z0-9]{10,}     # Stripe
    | (?<![A-Za-z0-9])(?:nvapi-|gsk_|dckr_pat_|hvs\.|wandb_v\d_)[\w-]{16,}
    | (?<![A-Za-z0-9])dapi[0-9a-f]{32}                         # Databricks
    | (?<![A-Za-z0-9])SG\.[\w-]{16,}\.[\w-]{16,}               # SendGrid
    | (?<![A-Za-z0-9])eyJ[\w-]{6,}\.[\w-]+(?:\.[\w-]*)?        # JSON web tokens
    | -----BEGIN\ [A-Z0-9 ]*PRIVATE\ KEY.*?(?:-----END\ [A-Z0-9 ]*PRIVATE\ KEY-----|\Z)
    | (?<=://)[^\s/:@'"]*:(?!\d{1,5}/)[^\s'"]{1,300}(?=@)     # URLs: a password, or a token
    | (?<=://)(?=[^\s/:@'"]*\d)[^\s/:@'"]{16,300}(?=@)
    | (?<=[Bb]earer\ )[\w.~+/=-]{6,}
    """,
    re.VERBOSE | re.DOTALL,
)
_NAME = re.compile(
    r"(^|_)(TOKEN|PASSWORDS?|PASSWD|PASSPHRASE|PWD|SECRETS?|API_?KEYS?|ACCESS_KEY(_ID)?|"
    r"SECRET_KEY|PRIVATE_KEY|CREDENTIALS?|AUTHORIZATION|COOKIE|JWT|BEARER|SIG|SIGNATURE|"
    r"WEBHOOK(_URL)?|(ACCESS|API|AUTH|HF)_TOKENS|"
    r"(ACCOUNT|ANTHROPIC|AUTH|ENCRYPTION|LICENSE|MASTER|OPENAI|SIGNING|STORAGE|WANDB)_KEY|"
    r"(BASIC|DOCKER|HTTP|PROXY|REDIS)_AUTH|(AZURE|GH|GITHUB|GITLAB)_PAT|"
    r"(ADMIN|DATABASE|DB|MONGO|MYSQL|PG|POSTGRES|REDIS|ROOT|SMTP|USER)_PASS)$"
    r"|(PASSWORD|PASSWD|PASSPHRASE|ACCESSTOKEN|AUTHTOKEN|HFTOKEN|ACCESSKEY|APIKEY|SECRETKEY)$"
)
# Tokens of text, and numbers of them: EOS_TOKEN, MAX_TOKEN.
_TEXT_TOKEN = re.compile(
    r"(^|_)(BOS|CLS|EOS|END|IMAGE|MASK|MAX|MIN|NEW|NUM|PAD|PER|SEP|SPECIAL|START|STOP|UNK)_TOKEN$"
)
# Variables, also with a variable as their default, what a command reads, and places to fill in.
_REFERENCE = re.compile(
    r"(?:os\.environ|os\.getenv|getenv|environ|self)[.\[(].*|"
    r"\$\w+|\$\((?!\s*(?:echo|printf)\b)[^)]*\)|\$\{\w+(?::?[-=+](?:\$\w+|\$\{\w+\})?|:?\?[^}]*)?\}"
    r"|\?.*|-(?:\$.*)?"
    r"|<[A-Za-z][A-Za-z _-]*>|\{\{.*\}\}|\[hidden\]"
)
# EMPTY and dummy are what clients of local servers are given.
_PLAIN = re.compile(
    r"\d+(\.\d+)?|true|false|null|none|yes|no|empty|dummy|placeholder|", re.IGNORECASE
)
_SHORT = 200
# Words that make a sentence: longer than a passphrase.
_PROSE = 7
# A quote, as JSON inside of JSON writes it too.
_QUOTE = r"\\*[\"']"
_IN_QUOTES = r"\"[^\"]*\"|'[^']*'|\\+\"(?:(?!\\+\").)*\\+\""
_NAMED = (
    # NAME=value
    re.compile(
        r"(?<![\w.$-])-{0,2}(?P<name>[A-Za-z_][\w.-]*)(?:=|%3[Dd])"
        rf"(?P<value>{_IN_QUOTES}|\$\([^)]*\)|\$\{{[^}}]*\}}|"
        r"(?:[^\s&,;\"'\\]|\\(?![\"'])|[&,;](?!\s|\Z|[\w.-]+=))+)"
    ),
    # name = value, as in files of settings; in programs a value without a digit is another name
    re.compile(
        r"(?<![\w.$-])(?P<name>[A-Za-z_][\w.-]*)[ ]+=[ ]+"
        rf"(?P<value>{_IN_QUOTES}|(?=\S*\d)[^\s&,;\"'\\]+)"
    ),
    # ["name"] = "value", as programs set their environment
    re.compile(rf"\[{_QUOTE}(?P<name>[A-Za-z_][\w.-]*){_QUOTE}\]\s*=\s*(?P<value>{_IN_QUOTES})"),
    # <name>value</name>
    re.compile(r"<(?P<name>[A-Za-z][\w.-]*)>(?P<value>[^<>\s]+)</"),
    # --name value
    re.compile(
        rf"(?<![\w-])--?(?P<name>[A-Za-z][\w-]*)(?:(?:\s|\\\n)+|{_QUOTE},\s*{_QUOTE})"
        r"(?P<value>[^\s\"',;-][^\s\"',;]*)"
    ),
    # "name": value
    re.compile(
        rf"(?:{_QUOTE})?(?<![\w.:-])(?<!\] )(?P<name>[A-Za-z][\w-]*)(?:{_QUOTE})?:[ ]*"
        rf"(?P<value>{_IN_QUOTES}|(?:[^\s\"',{{}}\[\]\\]|\\(?![\"'])|,(?=[^\s\"'{{}}\[\]])"
        r"(?![\w.-]+:))+)"
    ),
)
# What is a secret whatever it is called: headers, files of programs, arguments of commands.
_PLACED = re.compile(
    r"""
      authorization\\*["']?\s*[:=]\s*\\*["']?(?:apikey|basic|bearer|digest|token)\s+(?P<header>[^\s"'\\]+)
    | \\*"(?:auth|identitytoken|registrytoken)\\*"\s*:\s*\\*"(?P<docker>[^"\\]+)
    | \b(?:machine|default)\b[^\n]{0,200}?\bpassword\s+(?P<netrc>[^\s"'\\]+)
    | \baws_(?:secret_access_key|session_token)\s+(?P<aws>[^\s"'\\=]+)
    | \bcurl\b[^\n|;]{0,200}?\s(?:-u|--user|--proxy-user)[ =]?["']?[^\s:"']*:(?P<curl>[^\s"']+)
    | \bsshpass\s+-p\s*["']?(?P<sshpass>[^\s"']+)
    | \blogin\b[^\n|;]{0,200}?\s-p[ =]?["']?(?P<login>[^\s"']+)
    | \bmysql(?:admin|dump)?\b[^\n|;]{0,200}?\s-p["']?(?P<mysql>[^\s"']+)
    | \becho\s+["']?(?P<piped>[^\s"'|]+)["']?\s*\|[^\n|;]{0,200}?--password-stdin\b
    | ^[^\s:#]+:(?:\d+|\*):[^\s:]+:[^\s:]+:(?P<pgpass>[^\s:]+)$
    | \bredis-cli\b[^\n|;]{0,200}?\s-a\s+["']?(?P<redis>[^\s"']+)
    | \bwandb\s+login\s+(?:--?[\w-]+\s+)*["']?(?P<wandb>[0-9a-f]{40})\b
    """,
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NUMBER = re.compile(r"_?\d+$")


def is_secret_name(name: str) -> bool:
    """Whether a variable, flag or key of that name holds a secret: HF_TOKEN, --api-key."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", _WORDS.sub("_", name.strip("-"))).upper()
    plain = _NUMBER.sub("", plain)
    return bool(_NAME.search(plain)) and not _TEXT_TOKEN.search(plain)


def has_secret_form(text: str) -> bool:
    """Whether a text holds what has the form of a credential."""
    return _FORMS.search(text) is not None


def is_secret(name: str, value: str) -> bool:
    """Whether a value is a secret, by its own form or by its name.

    A reference to a variable, a number of tokens, a sentence, true and false are none.
    """
    return has_secret_form(value) or _is_named(name, value)


def _is_named(name: str, value: str) -> bool:
    if _REFERENCE.fullmatch(value) or len(value.split()) >= _PROSE:
        return False
    numeric_token = is_secret_name(name) and name.upper().endswith("TOKEN")
    if _PLAIN.fullmatch(value) and (numeric_token or not value[:1].isdigit()):
        return False
    return is_secret_name(name)


def _inside(found: re.Match[str]) -> Place:
    """A value's place without its quotes."""
    start, end = found.span("value")
    quote = re.match(_QUOTE, found["value"])
    if quote and found["value"].endswith(quote[0]) and end - start >= 2 * len(quote[0]):
        return start + len(quote[0]), end - len(quote[0])
    return start, end


def secret_places(text: str) -> Iterator[Place]:
    """Where secrets stand in a text, in no order; places may overlap."""
    yield from (found.span() for found in _FORMS.finditer(text))
    for pattern in _NAMED:
        found = pattern.search(text)
        while found:
            start, end = _inside(found)
            hit = _is_named(found["name"], text[start:end])
            if hit:
                yield start, end
            # A value that is none may hold another name and value, as JSON in an annotation does.
            # Long ones without quotes are not looked at twice: the time would grow as the square.
            again = not hit and (found["value"][0] in "\"'\\" or len(found["value"]) < _SHORT)
            found = pattern.search(text, found.start("value") if again else found.end())
    for found in _PLACED.finditer(text):
        start, end = found.span(found.lastgroup or 0)
        if not _REFERENCE.fullmatch(text[start:end]):
            yield start, end


def redact(text: str) -> str:
    """The text with every secret in it replaced by `[hidden]`."""
    shown, done = [], 0
    for start, end in sorted(secret_places(text)):
        if start >= done:
            shown += [text[done:start], HIDDEN]
        done = max(done, end)
    return "".join([*shown, text[done:]])

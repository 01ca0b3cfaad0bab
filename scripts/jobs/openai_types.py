"""Bodies of the OpenAI-compatible paths, as its API reference names them; others are refused.

Text is greedy unless `temperature` says otherwise. Fields that this service has no use for are
taken where they hold what changes nothing, since clients write them out.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from trnx.jobs.sampling import Sampling
from trnx.jobs.service_types import Text, Texts, listed

_Positive = Annotated[StrictInt, Field(ge=1)]
_Zero = Annotated[float, Field(ge=0, le=0)]
_Empty = Annotated[dict[str, float], Field(max_length=0)]
_Stops = Annotated[list[Text], Field(max_length=4), BeforeValidator(listed)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: Text
    user: StrictStr | None = None


class StreamOptions(BaseModel):
    """What a stream ends with."""

    model_config = ConfigDict(extra="forbid")

    include_usage: StrictBool = False


class _TextBody(_Body):
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    stop: _Stops | None = None
    n: Literal[1] = 1
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)] | None = None
    frequency_penalty: _Zero | None = None
    presence_penalty: _Zero | None = None
    logit_bias: _Empty | None = None

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen; without a seed the text is another one each time."""
        seed = secrets.randbits(64) if self.seed is None else self.seed % 2**64
        return Sampling(self.temperature or 0.0, self.top_p or 1.0, seed)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the count of its tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(_TextBody):
    """The body of /v1/completions."""

    prompt: Text
    max_tokens: _Positive = 16
    best_of: Literal[1] | None = None
    echo: Literal[False] = False
    suffix: None = None
    logprobs: None = None


class Message(BaseModel):
    """One turn of a chat."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant"]
    content: Text
    name: StrictStr | None = None


class PlainText(BaseModel):
    """The only form of an answer."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]


class ChatBody(_TextBody):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: _Positive | None = None
    max_completion_tokens: _Positive | None = None
    logprobs: Literal[False] | None = None
    top_logprobs: None = None
    response_format: PlainText | None = None


class EmbeddingBody(_Body):
    """The body of /v1/embeddings. In base64 a vector is float32, little-endian."""

    input: Texts
    encoding_format: Literal["float", "base64"] = "float"

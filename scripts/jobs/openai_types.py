"""Bodies of the OpenAI-compatible paths, as its API reference names them; others are refused.

Text is greedy: `temperature` is 0, and what only shapes a draw (`top_p`, `seed`) changes nothing.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from trnx.jobs.service_types import Text, Texts

_Positive = Annotated[StrictInt, Field(ge=1)]


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
    n: Literal[1] = 1
    temperature: Annotated[float, Field(ge=0, le=0)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: StrictInt | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the count of its tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(_TextBody):
    """The body of /v1/completions."""

    prompt: Text
    max_tokens: _Positive = 16


class Message(BaseModel):
    """One turn of a chat."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant"]
    content: Text
    name: StrictStr | None = None


class ChatBody(_TextBody):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: _Positive | None = None
    max_completion_tokens: _Positive | None = None


class EmbeddingBody(_Body):
    """The body of /v1/embeddings. In base64 a vector is float32, little-endian."""

    input: Texts
    encoding_format: Literal["float", "base64"] = "float"

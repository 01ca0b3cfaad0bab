"""Bodies of /embed and /generate."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StrictStr

Text = Annotated[StrictStr, Field(min_length=1)]


def listed(value: Any) -> Any:
    """One text is a list of one."""
    return [value] if isinstance(value, str) else value


Texts = Annotated[list[Text], Field(min_length=1), BeforeValidator(listed)]


class EmbedRequest(BaseModel):
    """The body of /embed."""

    model_config = ConfigDict(extra="forbid")

    inputs: Texts


class GenerateRequest(BaseModel):
    """The body of /generate. Temperature 0 takes the most likely token."""

    model_config = ConfigDict(extra="forbid")

    prompt: Text
    max_new_tokens: Annotated[StrictInt, Field(ge=1)] = 16
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 0.0
    seed: Annotated[StrictInt, Field(ge=0, lt=2**63)] | None = None

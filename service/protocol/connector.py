"""Define how a fragment, or a relation that is read in place, reaches an external system."""

from pydantic import BaseModel, ConfigDict, Field


class Connector(BaseModel):
    """How to read or write an external system: the connector's name, and the user's options for it.

    `secrets` are the options whose values are secrets of users, with the names of these. A worker asks for a value when
    it needs it, and stores it nowhere.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    options: dict[str, str] = Field(default={}, repr=False)
    secrets: dict[str, str] = {}

"""Name the first fault of an object, as pydantic's `FailFast` does for a list (I13).

A body of many members, each of them wrong, would otherwise be answered with all of their faults: a megabyte of members
took seconds and sixteen megabytes of answer.
"""

from typing import Any, cast

from pydantic import BeforeValidator, TypeAdapter, ValidationError


def first_fault(members: TypeAdapter[Any]) -> BeforeValidator:
    """Return the annotation of an object whose members `members` validates: an object of one member and of more."""

    def reduced(given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        for name, value in cast("dict[Any, Any]", given).items():
            one = {name: value}
            try:
                members.validate_python(one)
            except ValidationError:
                return one  # Its validation names the fault and its place.
        return cast("dict[Any, Any]", given)

    return BeforeValidator(reduced)

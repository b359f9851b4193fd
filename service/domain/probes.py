"""Parse the URL of a health probe, and hide its secret parts.

Every text for users (an error, an event, a catalog, a reason) names `shown`, because the user part, the path and the
query may contain passwords and tokens.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from service.domain.errors import Invalid

LENGTH_MAX: Final = 2_000
# The path may not contain `@`. Otherwise a password with an unescaped `/` would be taken for a part of the path.
_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?:(?P<user>[^/?#\s]*)@)?(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[^?#\s@]*)?(?P<query>\?[^#\s]*)?"
)
_HIDDEN: Final = "***"


@dataclass(frozen=True, slots=True)
class ProbeUrl:
    """A URL for a GET request. `target` is the URL without `user`, which is sent as basic authentication.

    Admins, who set it, see the path (`shown_to_admins`).
    """

    target: str = field(repr=False)
    user: str | None = field(repr=False)
    shown: str
    shown_to_admins: str = field(repr=False)

    @property
    def text(self) -> str:
        """The URL as it was given."""
        scheme, separator, rest = self.target.partition("://")
        return self.target if self.user is None else f"{scheme}{separator}{self.user}@{rest}"


def parse_probe_url(text: str, *, pointer: str) -> ProbeUrl:
    """Return the parsed URL. Raises Invalid, whose message does not quote the URL."""
    found = _URL.fullmatch(text) if len(text) <= LENGTH_MAX and text.isascii() else None
    if found is None or not 0 < int(found["port"] or 80) <= 65_535:
        raise Invalid(
            f'"{pointer}" takes a URL such as http://host:port/path, in ASCII, of at most {LENGTH_MAX} characters,'
            " without a fragment",
            pointer=pointer,
        )
    place = found["host"] + ("" if found["port"] is None else f":{found['port']}")
    path = found["path"] or "/"
    head = f"{found['scheme']}://" + ("" if found["user"] is None else f"{_HIDDEN}@") + place
    query = f"?{_HIDDEN}" if found["query"] else ""
    return ProbeUrl(
        target=f"{found['scheme']}://{place}{path}{found['query'] or ''}",
        user=found["user"],
        shown=head + (path if path == "/" else f"/{_HIDDEN}") + query,
        shown_to_admins=head + path + query,
    )

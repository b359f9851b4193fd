"""Bring the files of others that pages load: `make vendor` packs each package, checks its sum, and copies the files.

`python -m tests.support.vendor` needs npm; `tests/unit/pages/test_vendored_files.py` compares the files that are
here.
"""

import base64
import hashlib
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ROOT / "service/pages/static/vendor"
TESTS: Final = ROOT / "tests/browser/vendor"


@dataclass(frozen=True, slots=True)
class Package:
    """A package: the sha512 of its tarball in base64, and the files in it, each with its place here and its sha256."""

    name: str
    version: str
    sha512: str
    files: tuple[tuple[str, Path, str], ...]


PACKAGES: Final = (
    Package(
        "htmx.org",
        "2.0.11",
        "Thx/WtpeOQqSrqBCw/A1cwGJGg4UrVa3+sW0GmrM3p4gJgO89ecH4qtbnyzDDWFvBTqjnIMCgELTNt636dtamA==",
        (
            (
                "dist/htmx.min.js",
                PAGES / "htmx.min.js",
                "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
            ),
            ("LICENSE", PAGES / "LICENSE-htmx.txt", "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38"),
        ),
    ),
    Package(
        "htmx-ext-sse",
        "2.2.4",
        "LJmxVhykyflBWgh5PvbRidcyuqMHlgfajmmzumvKctv9puvsufeH6OaejSMZTNTnEI8O2wXXn4ZZtBdpEMqmEQ==",
        (
            (
                "dist/sse.min.js",
                PAGES / "sse.min.js",
                "98a46496de0c3605fbffdce9167ba427bdd9553184f83f149c261891a92c0136",
            ),
            (
                "LICENSE",
                PAGES / "LICENSE-htmx-ext-sse.txt",
                "a17d224ce9afdc21ec9491b76a2f5d036d19aa641ac4f85ca29c21f9f7e54fdf",
            ),
        ),
    ),
    Package(
        "axe-core",
        "4.14.1",
        "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
        (
            ("axe.min.js", TESTS / "axe.min.js", "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"),
            (
                "LICENSE",
                TESTS / "LICENSE-axe-core.txt",
                "af175b9d96ee93c21a036152e1b905b0b95304d4ae8c2c921c7609100ba8df7e",
            ),
        ),
    ),
)


def digest(content: bytes) -> str:
    """Return the sha256 of a file in hex."""
    return hashlib.sha256(content).hexdigest()


def bring(package: Package, folder: Path) -> None:
    """Pack a package into `folder`, check it, and copy its files. Raises AssertionError for another content."""
    subprocess.run(
        ["npm", "pack", "--silent", "--ignore-scripts", f"{package.name}@{package.version}"],
        cwd=folder, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    (tarball,) = folder.glob(f"*{package.version}.tgz")
    found = base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
    assert found == package.sha512, f"{package.name} {package.version} has the sum {found}"
    with tarfile.open(tarball) as files:
        for inside, place, sha256 in package.files:
            member = files.extractfile(f"package/{inside}")
            assert member is not None, inside
            content = member.read()
            assert digest(content) == sha256, f"{inside} of {package.name}: {digest(content)}"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)


if __name__ == "__main__":
    for one in PACKAGES:
        with tempfile.TemporaryDirectory() as directory:
            bring(one, Path(directory))

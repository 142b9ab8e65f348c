"""Make the pictures: `python -m tests.gallery`, or of some surfaces: `python -m tests.gallery top`."""

import sys
from importlib import import_module
from pathlib import Path

from tests.reference.site import GALLERY, GALLERY_PAGE

SURFACES = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


def take_all(surfaces: list[str]) -> None:
    """Make the pictures of these surfaces, and the page with all pictures so far."""
    GALLERY.mkdir(parents=True, exist_ok=True)
    for surface in surfaces:
        parts = [f"\n## {text}\n\n![{text}](gallery/{name})\n" for name, text in _pictures(surface)]
        GALLERY.joinpath(f"{surface}.txt").write_text("".join(parts), encoding="utf-8")
        sys.stdout.write(f"{surface}: {len(parts)} pictures\n")
    parts = [path.read_text(encoding="utf-8") for each in SURFACES if (path := GALLERY / f"{each}.txt").exists()]
    GALLERY.joinpath(GALLERY_PAGE).write_text(f"# Gallery\n\nPictures from `make gallery`.\n{''.join(parts)}", "utf-8")


def _pictures(surface: str) -> list[tuple[str, str]]:
    for old in GALLERY.glob(f"{surface}-*"):
        old.unlink()
    return list(import_module(f"tests.gallery.{surface}").pictures())


if __name__ == "__main__":
    take_all(sys.argv[1:] or SURFACES)

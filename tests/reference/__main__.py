"""Write the generated pages: `python -m tests.reference`."""

from tests.reference.pages import PAGES

for path, page in PAGES.items():
    path.write_text(page(), encoding="utf-8")

"""Pictures of the operator's surfaces in every state (`make gallery`: build/gallery); one module for each surface.

A module has `pictures`, which writes files into `GALLERY` and yields each with its caption:

    tests.gallery.top    the live view and `garlicfarm up`, with a farm of real processes
    tests.gallery.page   the page for browsers, in Chromium

The repository does not contain the pictures, since each run makes different ones. A site built afterwards has them as a
page (`tests/reference/site.py`).
"""

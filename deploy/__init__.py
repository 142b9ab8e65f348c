"""The installation of the project: the Debian package, the container image, manual pages, completions.

`make dist` builds all of it into dist/. Nothing here is part of the wheel, and no other package imports it.
"""

"""Settings of all tests: hypothesis judges what is right, never how long it took on a busy machine."""

from hypothesis import settings

settings.register_profile("garlicfarm", deadline=None, print_blob=True)
settings.load_profile("garlicfarm")

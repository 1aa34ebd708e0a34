"""Every run of the suite tries the same examples: a failure in CI is a failure here."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")

"""What holds for all tests."""

import os
import signal

from hypothesis import settings

# Ordinary runs of property tests try the same examples, so that a change is judged by what it
# changes; with more effort others are looked for.
settings.register_profile("ordinary", derandomize=True, deadline=None)
if os.environ.get("KVPLANE_TEST_EFFORT", "1") == "1":
    settings.load_profile("ordinary")

# Shells start background commands with SIGINT ignored, and children inherit that: the processes
# that tests interrupt would not notice. A handler of ours is not inherited, only its absence.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

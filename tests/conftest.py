"""What holds for all tests."""

import signal

# Shells start background commands with SIGINT ignored, and children inherit that: the processes
# that tests interrupt would not notice. A handler of ours is not inherited, only its absence.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

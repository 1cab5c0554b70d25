"""How often Python looks for cycles of garbage among what a process holds.

A plane holds a dozen objects for every session, for hours. Python's own settings look through all
of them again and again while sessions come: at 100,000 sessions that is a pause of half a second
every few seconds, in which no heartbeat is answered.
"""

import gc

# New objects, less those that went, after which the newest are looked through: a millisecond.
_NEW = 10_000
# Such looks after which everything since the last one of this kind is looked through: some ten
# milliseconds.
_RECENT = 20
# Those after which all objects are looked through: when 20 million came to stay. What leaks in
# cycles takes two gigabytes by then at the most, and is found.
_ALL = 100


def look_for_garbage_seldom() -> None:
    """Sets this process up to hold many objects. Call it once everything is imported."""
    gc.collect()
    # What is there from the start stays until the end.
    gc.freeze()
    gc.set_threshold(_NEW, _RECENT, _ALL)

"""The implementations that dispatch chooses from, one file each.

Rules: a backend says in one place what it cannot do (`why_not`, sentences; empty means yes) and
what it can do only slowly (`why_slow`); `plan` prepares one direction of one call and returns the
function that runs it. Adding a backend is its file and one line in ALL.
"""

from leanconv.backends.aten import Aten
from leanconv.backends.aten_relaid import AtenRelaid
from leanconv.backends.call import DIRECTIONS, Backend, Call, Direction
from leanconv.backends.native import Native

ALL: tuple[Backend, ...] = (Native(), Aten(), AtenRelaid())

__all__ = ["ALL", "DIRECTIONS", "Backend", "Call", "Direction"]

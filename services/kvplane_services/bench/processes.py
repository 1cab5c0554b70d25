"""What the kernel says of a process: its memory and the time that it had a CPU."""

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_KIB = 1024
# Fields of /proc/PID/stat after the command's name: utime and stime.
_UTIME, _STIME = 11, 12


@dataclass(frozen=True, slots=True)
class Watched:
    """A process of this machine."""

    pid: int

    def rss(self) -> int:
        """Resident memory, bytes."""
        for line in self._read("status").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * _KIB
        return 0

    def cpu(self) -> float:
        """Seconds of CPU that it and its threads had so far."""
        fields = self._read("stat").rpartition(")")[2].split()
        return (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS

    def _read(self, name: str) -> str:
        return Path(f"/proc/{self.pid}/{name}").read_text(encoding="ascii", errors="replace")

"""What importing the client starts."""

import subprocess
import sys


def test_engine_hosts_do_not_load_grpc() -> None:
    """Importing all that an engine needs starts no gRPC, which must not exist before a fork."""
    program = (
        "import sys\n"
        "from kvplane.client import EngineLink, RetentionLog, Retention, LinkTiming\n"
        "print('grpc' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"

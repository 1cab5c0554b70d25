"""Runs under the engines' python: NIXL's agent with the backends that are named.

Prints the settings error that it ends with, or nothing.

    python chosen_backends.py BACKEND...
"""

import sys

from nixl._api import nixl_agent, nixl_agent_config

from kvplane_connector.nixl_backends import choice_of_backends, require_backends
from kvplane_connector.settings import SettingsError

backends = sys.argv[1:]
try:
    with choice_of_backends(backends):
        agent = nixl_agent("chosen", nixl_agent_config(backends=backends))
    require_backends(backends, agent)
except SettingsError as error:
    print(error)  # noqa: T201 - the answer

"""Fault injection: kills, low memory, full disks, damaged files and bad inputs.

`make test-stress` runs all of it, `make test` a small part.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub client: no run may access the network
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the suite forks

"""Torture: runs that are killed, starved and fed rubbish. `make stress` does all of it, `make test` a little."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub client: no run may reach for it
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # forks are made

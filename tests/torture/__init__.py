"""Torture: runs that are killed, starved and fed rubbish. `make torture` does all of it, `make test` a little."""

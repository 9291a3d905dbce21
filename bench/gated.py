"""Runs training that waits for a line on a pipe before every step, and writes the time of the step to another.

    gated.py GO TIMES baseline.py --model ...        transformers.Trainer
    gated.py GO TIMES tightfit train --model ...     the command line

GO and TIMES are file descriptors of pipes: each line read from GO starts a step, and its seconds are written to TIMES.
So several training runs can take their steps in turns.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, TextIO


def main() -> None:
    go, times = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
    sys.argv = sys.argv[3:]
    if sys.argv[0] == "tightfit":
        from tightfit.cli.app import main as run
        from tightfit.optional_imports import slim_process

        slim_process()
    else:
        from baseline import main as run
    gate_trainers(go, times)
    run()


def gate_trainers(go: TextIO, times: TextIO) -> None:
    """Every Trainer that is made from here on has the gate as a callback."""
    import transformers

    class Gate(transformers.TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            go.readline()
            self.start = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, *rest: Any, **kwargs: Any) -> None:
            print(time.perf_counter() - self.start, file=times, flush=True)
            if state.global_step == args.max_steps:  # evaluation and saving wait for a line too
                go.readline()

    original = transformers.Trainer.__init__

    def gated(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.add_callback(Gate())

    transformers.Trainer.__init__ = gated


if __name__ == "__main__":
    main()

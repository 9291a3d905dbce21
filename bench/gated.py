"""A training that waits before every step until it is told to go, and says how long the step took.

    gated.py GO SAID baseline.py --model ...        transformers.Trainer
    gated.py GO SAID tightfit train --model ...     the command line

GO and SAID are pipes: a line read from the one lets a step begin, a line with its seconds goes to the other.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, TextIO


def main() -> None:
    go, said = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
    sys.argv = sys.argv[3:]
    if sys.argv[0] == "tightfit":
        from tightfit.cli.app import main as run
        from tightfit.optional_imports import block_unused_imports

        block_unused_imports()
    else:
        from baseline import main as run
    gate_every_trainer(go, said)
    run()


def gate_every_trainer(go: TextIO, said: TextIO) -> None:
    import transformers

    class Gate(transformers.TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            go.readline()
            self.start = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, *rest: Any, **kwargs: Any) -> None:
            print(time.perf_counter() - self.start, file=said, flush=True)
            if state.global_step == args.max_steps:  # evaluation and saving wait too
                go.readline()

    baseline = transformers.Trainer.__init__

    def gated(self: Any, *args: Any, **kwargs: Any) -> None:
        baseline(self, *args, **kwargs)
        self.add_callback(Gate())

    transformers.Trainer.__init__ = gated


if __name__ == "__main__":
    main()

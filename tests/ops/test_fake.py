"""How a simulation counts operations: in its own context, whatever an earlier one left behind."""

from __future__ import annotations

import threading

import torch

from tightfit.compat import FakeTensorMode
from tightfit.ops.fake import context, counts_as, new_context, on_host, representative, row_lengths


def test_a_loop_of_a_simulation_that_failed_does_not_change_later_counts() -> None:
    with FakeTensorMode():
        like = torch.ones(1)
    with new_context("cpu"):
        loop = representative([1, 2], 8.0, like)
        next(loop)
        assert context().times == 8
    assert context().times == 1
    with new_context("cpu"), counts_as(4.0):
        loop.close()  # as the garbage collector does at any time
        assert context().times == 4


def test_every_thread_has_its_own_context() -> None:
    found = []
    with counts_as(3.0, "kind"), on_host(), row_lengths([4, 2]):
        thread = threading.Thread(target=lambda: found.append(context()))
        thread.start()
        thread.join()
        assert (context().times, context().kind, context().on_host) == (3, "kind", True)
        assert context().row_lengths == [4, 2]
    assert found == [context()]  # all values are the usual ones

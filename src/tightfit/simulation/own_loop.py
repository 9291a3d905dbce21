"""Memory estimate of a user's own training loop: any PyTorch step, with any library.

    def training():
        model = MyModel()
        optimizer = torch.optim.AdamW(model.parameters())
        batch = torch.ones(32, 128, dtype=torch.long)

        def step():
            model(batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    print(tightfit.estimate(training, device="RTX 3050 4GB").peak)

Everything is built inside the function, so that it is built from fake tensors. Weights are the parameters that modules
register, gradients what accumulates on them, optimizer state what optimizers store. The forward phase starts with the
step, and again when a module is called after a backward pass.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import optimizer as hooks

from tightfit.device import Device
from tightfit.engine.meter import OTHER
from tightfit.errors import BadInput, ModelError, first_line
from tightfit.messages import Message, msg
from tightfit.simulation.estimate import Estimate, phases_of
from tightfit.simulation.kernels import scratch_on, workspace_on
from tightfit.simulation.known_values import Unknowns, trace_answers
from tightfit.simulation.patches import replaced
from tightfit.simulation.process_size import process_bytes
from tightfit.simulation.scaling import constant_sizes, live_peak
from tightfit.simulation.simulate import fake_tensors, tag_gradients, tag_state
from tightfit.simulation.timeline import Timeline
from tightfit.simulation.trace import Trace
from tightfit.simulation.tracer import Tracer
from tightfit.strategies.base import MemoryKind

_torch_backward = torch.Tensor.backward


def estimate_loop(build: Callable[[], Any], device: Device) -> Estimate:
    """Build the training loop on fake tensors, trace two steps, and estimate their memory."""
    traced, notes = trace_loop(build, device)
    return Estimate(
        phases=phases_of(traced.timeline, device, []),
        overhead=process_bytes(device),
        device=device,
        parameters=traced.parameters,
        trainable_parameters=traced.trainable_parameters,
        worst=msg("the batch is the one that the step uses"),
        notes=notes,
    )


@dataclass(frozen=True)
class TracedLoop:
    """Two traced steps."""

    trace: Trace
    parameters: int
    trainable_parameters: int

    @property
    def timeline(self) -> Timeline:
        """What is allocated at every tick."""
        return Timeline.of(self.trace, constant_sizes(self.trace))


def trace_loop(build: Callable[[], Any], device: Device) -> tuple[TracedLoop, tuple[Message, ...]]:
    """Build the training loop on fake tensors and trace two steps; with notes about values that are not known."""
    return trace_answers(partial(_trace, build, device), lambda traced: live_peak(traced.trace))


def _trace(build: Callable[[], Any], device: Device, unknowns: Unknowns) -> TracedLoop:
    tracer = Tracer(Trace(), scratch_on(device), unknowns, workspace_on(device))
    weights = weakref.WeakValueDictionary[int, torch.nn.Parameter]()
    with fake_tensors(device), tracer, _recording_phases(tracer, weights):
        tracer.trace.start_phase("load")
        step = _call(build)
        if not callable(step):
            raise BadInput(
                msg("The function given to estimate() must build the training and return its step, a function.")
            )
        for _ in range(2):  # the second step runs with optimizer state
            tracer.trace.start_phase("forward")
            _call(step)
    return TracedLoop(
        tracer.trace,
        parameters=sum(p.numel() for p in weights.values()),
        trainable_parameters=sum(p.numel() for p in weights.values() if p.requires_grad),
    )


def _call(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:  # the user's own code may fail in any way on tensors without data
        reason = first_line(error).rstrip(".")
        raise ModelError(msg("This step cannot be simulated: {reason}.", reason=reason)) from error


@contextlib.contextmanager
def _recording_phases(tracer: Tracer, weights: weakref.WeakValueDictionary[int, torch.nn.Parameter]) -> Iterator[None]:
    """Record phases by hooks in torch: parameter registration, module calls, backward and optimizer steps.

    Hooks of torch are called in every thread, also in one that trains meanwhile.
    """
    register, thread = torch.nn.Module.register_parameter, threading.get_ident()

    def register_parameter(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None and id(parameter) not in weights:
            weights[id(parameter)] = parameter
            tracer.mark([parameter], MemoryKind.WEIGHTS)
            tag_gradients([parameter], tracer)

    def backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        with tracer.trace.phase("backward"):
            _torch_backward(loss, *args, **kwargs)

    def on_step(*_: Any) -> None:
        if threading.get_ident() == thread:
            tracer.trace.start_phase("step")

    def on_step_end(optimizer: torch.optim.Optimizer, *rest: Any) -> None:
        if threading.get_ident() == thread:
            tag_state(optimizer, tracer)
            tracer.trace.start_phase(OTHER)

    def on_module_call(*_: Any) -> None:
        if threading.get_ident() == thread and tracer.trace.phases[-1][1] == OTHER:
            tracer.trace.start_phase("forward")  # gradient accumulation: the next forward pass starts

    entered = register_module_forward_pre_hook(on_module_call)
    before = hooks.register_optimizer_step_pre_hook(on_step)
    after = hooks.register_optimizer_step_post_hook(on_step_end)
    try:
        with (
            replaced(torch.nn.Module, "register_parameter", register_parameter),
            replaced(torch.Tensor, "backward", backward),
        ):
            yield
    finally:
        entered.remove()
        before.remove()
        after.remove()

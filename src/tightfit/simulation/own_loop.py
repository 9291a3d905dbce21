"""A training loop of the user's own, rehearsed: any PyTorch step, whatever library it uses.

    def training():
        model = MyModel()
        optimizer = torch.optim.AdamW(model.parameters())
        batch = torch.ones(32, 128, dtype=torch.long)

        def step():
            model(batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    print(tightfit.rehearse(training, device="RTX 3050 4GB").peak)

Everything is built inside, so that it is built without data. Weights are what modules register, gradients what
arrives at them, optimizer state what optimizers keep; a step begins with its forward pass, and so does a module called
after a backward pass.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import optimizer as hooks

from tightfit.device import Device
from tightfit.engine.meter import OTHER
from tightfit.errors import BadInput, ModelError, first_line
from tightfit.simulation.estimate import Estimate, phases_of
from tightfit.simulation.kernels import scratch_on
from tightfit.simulation.process_size import process_bytes
from tightfit.simulation.scaling import constant_sizes
from tightfit.simulation.simulate import fake_tensors, tag_gradients, tag_state, take_workspaces
from tightfit.simulation.timeline import Timeline
from tightfit.simulation.trace import Trace
from tightfit.simulation.tracer import Tracer
from tightfit.strategies.base import MemoryKind

_plain_backward = torch.Tensor.backward


def estimate_loop(build: Callable[[], Any], device: Device) -> Estimate:
    """Build the training without data, take two steps, and add up."""
    tracer = Tracer(Trace(), scratch_on(device))
    weights = weakref.WeakValueDictionary[int, torch.nn.Parameter]()
    with fake_tensors(device), tracer, _moments(tracer, weights):
        tracer.trace.begin("load")
        step = _call(build)
        if not callable(step):
            raise BadInput("The function given to rehearse() must build the training and return its step, a function.")
        take_workspaces(device, tracer.trace)
        for _ in range(2):  # the second step finds the optimizer's state there
            tracer.trace.begin("forward")
            _call(step)
    trace = tracer.trace
    return Estimate(
        phases=phases_of(Timeline.of(trace, constant_sizes(trace)), device, []),
        overhead=process_bytes(device),
        device=device,
        parameters=sum(p.numel() for p in weights.values()),
        trainable_parameters=sum(p.numel() for p in weights.values() if p.requires_grad),
        worst="as large as the step makes it",
    )


def _call(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:  # the user's own code, on tensors that hold no data
        reason = first_line(error).rstrip(".")
        raise ModelError(f"This step cannot be rehearsed: {reason}.") from error


@contextlib.contextmanager
def _moments(tracer: Tracer, weights: weakref.WeakValueDictionary[int, torch.nn.Parameter]) -> Iterator[None]:
    """Listen where torch itself passes: modules register weights, losses go backward, optimizers step."""
    register = torch.nn.Module.register_parameter

    def register_parameter(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None and id(parameter) not in weights:
            weights[id(parameter)] = parameter
            tracer.mark([parameter], MemoryKind.WEIGHTS)
            tag_gradients([parameter], tracer)

    def backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        with tracer.trace.phase("backward"):
            _plain_backward(loss, *args, **kwargs)

    def stepped(optimizer: torch.optim.Optimizer, *rest: Any) -> None:
        tag_state(optimizer, tracer)
        tracer.trace.begin(OTHER)

    def called(*_: Any) -> None:
        if tracer.trace.phases[-1][1] == OTHER:  # several passes for one step: the next one begins
            tracer.trace.begin("forward")

    entered = register_module_forward_pre_hook(called)
    before = hooks.register_optimizer_step_pre_hook(lambda *_: tracer.trace.begin("step"))
    after = hooks.register_optimizer_step_post_hook(stepped)
    try:
        with (
            mock.patch.object(torch.nn.Module, "register_parameter", register_parameter),
            mock.patch.object(torch.Tensor, "backward", backward),
        ):
            yield
    finally:
        entered.remove()
        before.remove()
        after.remove()

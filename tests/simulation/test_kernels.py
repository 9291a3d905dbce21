"""Allocations of GPU kernels, simulated without a GPU."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from parts import CPU
from transformers import BertConfig, BertForSequenceClassification, BertLMHeadModel

from tightfit import Job
from tightfit.data.labels import Labels
from tightfit.device import GPUS
from tightfit.simulation.estimate import Estimate
from tightfit.simulation.job_simulation import Simulation, SimulationSetup
from tightfit.simulation.kernels import autocast, kernels_of, scratch_on
from tightfit.simulation.own_loop import estimate_loop
from tightfit.simulation.scaling import constant_sizes
from tightfit.simulation.trace import Trace
from tightfit.simulation.tracer import Tracer
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.base import MemoryKind
from tightfit.strategies.recipe import Recipe

GPU, OLD_GPU = GPUS["RTX 3060 12GB"], GPUS["T4 16GB"]
with mock.patch.dict(sys.modules, {"torch.testing._internal.common_utils": mock.Mock(TEST_WITH_ROCM=False)}):
    from torch.testing._internal.autocast_test_lists import AutocastTestLists  # without its test dependencies
TOKENIZER: Any = SimpleNamespace(pad_token_id=0)


def allocations(function: Callable[[], Any], gpu: Any = GPU) -> list[int]:
    """The sizes of all blocks, in the order of their allocation."""
    tracer = Tracer(Trace(), scratch_on(gpu))
    with torch._subclasses.FakeTensorMode(), kernels_of(gpu), tracer:
        function()
    return [block.size for block in tracer.trace.blocks]


def live_blocks(function: Callable[[], Any], gpu: Any = GPU) -> list[int]:
    """Sizes of the blocks that are live when the function returns."""
    tracer = Tracer(Trace(), scratch_on(gpu))
    with torch._subclasses.FakeTensorMode(), kernels_of(gpu), tracer:
        needs_grad = function()
        alive = [block.size for block in tracer.trace.blocks if block.free_tick is None]
        del needs_grad
    return sorted(alive)


def test_dropout_keeps_a_one_byte_mask() -> None:
    def run() -> Any:
        numbers = torch.ones(1000, requires_grad=True)
        return numbers, torch.nn.functional.dropout(numbers, 0.1, training=True)

    assert live_blocks(run) == [1000, 4000, 4000]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("gpu", [GPU, OLD_GPU], ids=["flash", "memory-efficient"])
def test_fused_attention_keeps_no_score_matrix(gpu: Any, dtype: torch.dtype) -> None:
    def run() -> Any:
        rows = torch.ones(2, 4, 512, 64, dtype=dtype, requires_grad=True)
        return rows, torch.nn.functional.scaled_dot_product_attention(rows, rows, rows, dropout_p=0.1)

    assert max(live_blocks(run, gpu)) == 2 * 4 * 512 * 64 * dtype.itemsize


def test_dropout_allocates_its_mask_first() -> None:
    """The order decides where the allocator puts them."""
    sizes = allocations(lambda: torch.nn.functional.dropout(torch.ones(1000), 0.1, training=True))
    assert sizes == [4000, 1000, 4000]


@pytest.mark.parametrize(("dtype", "buffers"), [(torch.float32, 1), (torch.float16, 0)])
def test_attention_in_fp32_multiplies_output_and_gradient_before_its_backward_pass(
    dtype: torch.dtype, buffers: int
) -> None:
    """Beside the gradients of queries, keys and values, and freed before the kernel's own buffers."""

    def run() -> None:
        rows = [torch.ones(2, 4, 96, 32, dtype=dtype, requires_grad=True) for _ in range(3)]
        mask = torch.zeros(2, 1, 96, 96, dtype=dtype)
        out = torch.nn.functional.scaled_dot_product_attention(*rows, attn_mask=mask)
        before.append(len(tracer.trace.blocks))
        torch.autograd.grad(out, rows, torch.ones_like(out))

    before: list[int] = []
    tracer = Tracer(Trace(), scratch_on(GPU))
    with torch._subclasses.FakeTensorMode(), kernels_of(GPU), tracer:
        run()
    whole = 2 * 4 * 96 * 32 * dtype.itemsize
    sizes = [block.size for block in tracer.trace.blocks[before[0] + 1 :]]
    assert sizes[: 3 + buffers] == [whole] * (3 + buffers)
    assert sizes.count(whole) == 3 + buffers


def test_a_gradient_that_is_added_in_place_keeps_its_block() -> None:
    """Freed and allocated again, it might get another one."""

    def run() -> None:
        numbers = torch.ones(8, 8, 8, requires_grad=True)
        used = numbers * 2
        (used * 3 + used * 5).sum().backward()

    tracer = Tracer(Trace(), scratch_on(GPU))
    with torch._subclasses.FakeTensorMode(), kernels_of(GPU), tracer:
        run()
    sizes = [block.size for block in tracer.trace.blocks]
    assert sizes.count(8 * 8 * 8 * 4) == 8  # numbers, four results, two gradients of `used`, one of `numbers`


def autocast_cases(*lists: str) -> list[Any]:
    """torch's own tests of CUDA's autocast: the name of an op, and arguments without data."""
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        cases = AutocastTestLists(torch.device("cpu"))
    return [
        pytest.param(module, name, args, *(options or [{}]), id=f"{name}-{number}")
        for listed in lists
        for number, (name, args, *options) in enumerate(getattr(cases, listed))
        for module in [torch._C._nn if listed.startswith("nn") else torch]
    ]


def run_in_autocast(module: Any, name: str, args: Any, options: Any) -> torch.Tensor:
    mode = next(arg.fake_mode for arg in args if isinstance(arg, torch.Tensor))
    with mode, kernels_of(GPU), torch.autocast("cpu", torch.float16):
        return getattr(module, name)(*args, **options)


@pytest.mark.parametrize(("module", "name", "args", "options"), autocast_cases("torch_fp32", "nn_fp32"))
def test_autocast_runs_in_fp32_what_cuda_runs_in_fp32(module: Any, name: str, args: Any, options: Any) -> None:
    assert run_in_autocast(module, name, args, options).dtype == torch.float32


@pytest.mark.parametrize(("module", "name", "args", "options"), autocast_cases("torch_need_autocast_promote"))
def test_autocast_runs_in_the_widest_type_what_cuda_does(module: Any, name: str, args: Any, options: Any) -> None:
    assert run_in_autocast(module, name, args, options).dtype == torch.float32


def test_autocast_knows_every_op_of_cuda() -> None:
    """The lists of ops that autocast runs in 16 bits and in the widest dtype match those in torch's header."""
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text(encoding="utf-8")
    lists = dict(re.findall(r"#define AT_FORALL_(\w+)\(_\)((?:.*\\\n)+.*)", header))
    found = {name: set(re.findall(r"_\((\w+)", text)) for name, text in lists.items()}
    only_cuda = {name.partition(".")[0] for name, *_ in autocast._kernels()}
    assert found["LOWER_PRECISION_FP"] & only_cuda == autocast._LOWER
    assert found["PROMOTE"] & only_cuda == autocast._WIDEST


def test_autocast_outside_the_simulation_is_unchanged() -> None:
    numbers = torch.ones(8, dtype=torch.bfloat16)
    types = []

    def compute() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            types.append(numbers.exp().dtype)

    with kernels_of(GPU):
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
    compute()
    assert types == [torch.bfloat16] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_runs_attention_in_16_bits(dtype: torch.dtype) -> None:
    """Also where the queries are fp32, as after rotary embeddings."""
    with torch._subclasses.FakeTensorMode(), kernels_of(GPU), torch.autocast("cpu", dtype):
        rows = torch.ones(2, 4, 8, 16)
        assert torch.nn.functional.scaled_dot_product_attention(rows, rows, rows).dtype == dtype


@pytest.mark.parametrize(
    ("rows", "columns", "multiprocessors", "capability", "size"),
    [
        (8192, 768, 16, 86, 12_582_912),
        (8192, 768, 40, 86, 31_457_280),
        (3072, 768, 40, 86, 18_874_368),
        (512, 3072, 40, 86, 0),
        (4096, 3072, 108, 80, 96 << 20),
    ],
)
def test_the_sum_of_columns_has_a_buffer(
    rows: int, columns: int, multiprocessors: int, capability: int, size: int
) -> None:
    """The predicted size equals what the CUDA build of torch allocates on the fake GPU."""
    gpu = replace(GPU, multiprocessors=multiprocessors, capability=capability)
    with torch._subclasses.FakeTensorMode():
        matrix = torch.ones(rows, columns)
    (buffer,) = scratch_on(gpu)(torch.ops.aten.sum.dim_IntList, (matrix, [0]))
    block = (trace := Trace()).alloc_buffer(buffer)
    assert constant_sizes(trace).at([]).tolist() == [size]
    assert block.size == 8 * rows * columns


def test_only_sums_over_leading_dimensions_have_a_buffer() -> None:
    buffers = scratch_on(replace(GPU, multiprocessors=28))
    with torch._subclasses.FakeTensorMode():
        states = torch.ones(8, 512, 768)
    for dims in ([-1], [2], [0, 1, 2], [1], []):
        assert buffers(torch.ops.aten.sum.dim_IntList, (states, dims)) == []
    assert len(buffers(torch.ops.aten.sum.dim_IntList, (states, [0, 1]))) == 1
    assert buffers(torch.ops.aten.sum.dim_IntList, (states.transpose(0, 1), [0, 1])) == []


def test_the_estimate_matches_a_published_measurement() -> None:
    """BERT-Base in fp16, SDPA, 8 x 512, forward and backward on an A100: 2035.4 MiB allocated."""

    def build() -> Callable[[], None]:
        model = BertLMHeadModel._from_config(BertConfig(), dtype=torch.float16, attn_implementation="sdpa").train()
        model.tie_weights()
        ids = torch.ones(8, 512, dtype=torch.long)

        def step() -> None:
            model.zero_grad()
            out = model(input_ids=ids)
            loss = out.logits.sum()
            loss.backward()

        return step

    estimate = estimate_loop(build, GPUS["A100 80GB"])
    allocated = max(sum(kinds.values()) - kinds[MemoryKind.ALLOCATOR] for kinds in estimate.phases.values())
    assert allocated / (1 << 20) == pytest.approx(2035.4, rel=0.03)


STEPS = ["", "micro-batch:size=1", "gradient-checkpointing", "adafactor", "freeze", "max-length:tokens=32"]
SHRINKS = [
    MemoryKind.ACTIVATIONS,
    MemoryKind.ACTIVATIONS,
    MemoryKind.OPTIMIZER_STATE,
    MemoryKind.GRADIENTS,
    MemoryKind.TEMPORARY,
]


@pytest.fixture(scope="module")
def estimates(tmp_path_factory: pytest.TempPathFactory) -> list[Estimate]:
    """The tutorials' steps, each added to the last; BERT-Large's width, fewer layers."""
    folder: Path = tmp_path_factory.mktemp("large")
    shape = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": 6}
    BertConfig(vocab_size=21128, architectures=[BertForSequenceClassification.__name__], **shape).save_pretrained(
        folder
    )
    job = Job(model=str(folder), data="none", batch_size=32, max_length=128)
    simulation = Simulation(SimulationSetup.of(job, GPU, Labels(("a", "b")), TOKENIZER), Lengths.uniform(32, 128))
    return [simulation.estimate(Recipe.parse(STEPS[1 : count + 1])) for count in range(len(STEPS))]


def test_each_tutorial_step_lowers_the_peak(estimates: list[Estimate]) -> None:
    peaks = [estimate.peak for estimate in estimates]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] > 2 * peaks[-1]


def test_each_tutorial_step_shrinks_its_own_memory_kind(estimates: list[Estimate]) -> None:
    def most(estimate: Estimate, kind: MemoryKind) -> int:
        return max(kinds[kind] for kinds in estimate.phases.values())

    for before, after, kind in zip(estimates, estimates[1:], SHRINKS, strict=False):
        assert most(after, kind) < 0.9 * most(before, kind), after


def test_a_boolean_mask_is_made_additive_without_another_boolean_one() -> None:
    """As torch's own attention does: one selection between 0 and minus infinity."""
    tracer = Tracer(Trace(), scratch_on(CPU))
    with torch._subclasses.FakeTensorMode(), kernels_of(CPU), tracer:
        rows, mask = torch.ones(2, 4, 48, 8), torch.ones(2, 1, 48, 48, dtype=torch.bool)
        torch.nn.functional.scaled_dot_product_attention(rows, rows, rows, attn_mask=mask)
    assert [block.size for block in tracer.trace.blocks].count(mask.numel()) == 1

"""Every private name of another library exists, behaves as tightfit relies on, and is used in compat.py only."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
from heads import build, make_batch
from parts import CPU
from pydantic.dataclasses import dataclass
from torch.nn import functional as F
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from typer.testing import CliRunner

import tightfit
from tightfit import compat
from tightfit.compat import FakeTensor, FakeTensorMode, TorchDispatchMode
from tightfit.device import GPUS
from tightfit.simulation import op_counts
from tightfit.simulation.simulate import fake_tensors
from tightfit.strategies.adamw import AdamW
from tightfit.training.trainer import Trainer
from tightfit.training.trainer_checkpoints import CheckpointTrainer

SOURCE = Path(tightfit.__file__).parent


# The module itself


def test_importing_compat_imports_no_library() -> None:
    libraries = ("torch", "transformers", "datasets", "bitsandbytes", "peft", "pydantic_core")
    script = f"import sys, tightfit.compat; print([name for name in {libraries} if name in sys.modules])"
    assert output_of(script) == ["[]"]


@pytest.mark.parametrize("name", compat._ALIASES)
def test_every_alias_resolves(name: str) -> None:
    module, _, path = compat._ALIASES[name].partition(":")
    found: Any = __import__(module, fromlist=["_"])
    for part in path.split("."):
        found = getattr(found, part)
    assert getattr(compat, name) is found


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = compat.no_such_name


def test_every_name_of_compat_is_imported_somewhere_and_no_other() -> None:
    imported = {
        alias.name
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "tightfit.compat"
        for alias in node.names
    }
    assert imported == compat_names()


def compat_names() -> set[str]:
    """The public names of compat: its aliases, functions and assignments."""
    names = set(compat._ALIASES)
    for node in ast.parse(Path(compat.__file__).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def output_of(script: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


# Python


def test_get_frame_counts_from_its_caller() -> None:
    def caller_of_callee() -> Any:
        return compat.get_frame(1).f_code

    assert caller_of_callee() is test_get_frame_counts_from_its_caller.__code__


def test_exit_functions_run_once() -> None:
    script = "import atexit\nfrom tightfit.compat import run_exit_functions\n"
    script += "atexit.register(print, 'registered')\nrun_exit_functions()\nprint('end')"
    assert output_of(script) == ["registered", "end"]


# torch: fake tensors


def test_fake_tensors_have_a_shape_and_no_data() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        made = torch.ones(2, 3)
        product = made @ torch.nn.Parameter(torch.ones(3, 4))
    assert type(made) is type(product) is FakeTensor
    assert product.shape == (2, 4)
    assert product.fake_device == torch.device("cpu")
    assert product.constant is None


def test_fake_tensors_raise_where_data_is_needed() -> None:
    with FakeTensorMode():
        made = torch.ones(3)
        with pytest.raises(compat.DataDependentOutputException) as read_error:
            made.sum().item()
        assert read_error.value.func is compat.read_scalar
        with pytest.raises(compat.DynamicOutputShapeException) as count_error:
            made.nonzero()
    assert count_error.value.func is torch.ops.aten.nonzero.default


def test_fake_tensors_log_the_traceback_of_an_operation_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    def multiply() -> None:
        with pytest.raises(RuntimeError, match="same reduction dim"):
            torch.ones(2, 3) @ torch.ones(4, 5)

    compat.FAKE_TENSOR_LOGGER.addHandler(caplog.handler)  # torch's own handler does not pass it on
    try:
        with FakeTensorMode():
            multiply()
        assert [record.exc_info is not None for record in caplog.records] == [True]
        with fake_tensors(CPU):
            multiply()
        assert len(caplog.records) == 1  # a simulation raises the error and logs nothing
    finally:
        compat.FAKE_TENSOR_LOGGER.removeHandler(caplog.handler)


def test_the_active_fake_mode_is_found() -> None:
    assert compat.current_fake_mode() is None
    with FakeTensorMode() as mode:
        assert compat.current_fake_mode() is mode


@pytest.mark.parametrize("disabled", [True, False])
def test_the_cache_of_fake_tensors_can_be_disabled(disabled: bool) -> None:
    mode = FakeTensorMode()
    if disabled:
        compat.disable_fake_cache(mode)
    before = FakeTensorMode.cache_info()
    with mode:
        torch.ones(2, 3) + torch.ones(2, 3)
    after = FakeTensorMode.cache_info()
    assert (before == after) is disabled


def test_a_fake_tensor_can_be_made_from_another_one() -> None:
    with FakeTensorMode():
        first = torch.ones(2, 3)
        with compat.DisableTorchDispatch():
            body = torch.empty_strided((2, 3), (3, 1), device="meta")
            cpu = torch.device("cpu")
            made = compat.make_subclass(FakeTensor, body, False, dispatch_device=True, device_for_backend_keys=cpu)
        made.__dict__.update(first.__dict__)
        total = made + first
    assert type(body) is torch.Tensor
    assert type(made) is type(total) is FakeTensor
    assert made.device == total.device == cpu


# torch: operations


class Recorder(TorchDispatchMode):
    """Records every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations.append(func)
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_gets_every_operation_unless_modes_are_disabled() -> None:
    ones = torch.ones(2)
    with Recorder() as recorder:
        _ = ones + ones
        with compat.disable_current_modes():
            _ = ones * ones
    assert recorder.operations == [torch.ops.aten.add.Tensor]


def test_the_uncompiled_dispatch_mode_does_not_wrap_the_method() -> None:
    class Mode(compat.uncompiled_dispatch_mode()):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            frames.append(compat.get_frame(0).f_back.f_code.co_name)
            return func(*args, **(kwargs or {}))

    frames: list[str] = []
    with Mode():
        torch.ones(2)
    assert issubclass(Mode, TorchDispatchMode)
    assert frames == ["test_the_uncompiled_dispatch_mode_does_not_wrap_the_method"]


def test_calls_from_the_autograd_engine_are_recognized() -> None:
    class Mode(compat.uncompiled_dispatch_mode()):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.add.Tensor:
                by_engine.append(compat.get_frame(1).f_code is compat.ENGINE_CODE)
            return func(*args, **(kwargs or {}))

    by_engine: list[bool] = []
    weight = torch.ones(2, requires_grad=True)
    with Mode():
        (weight.exp() + weight.sin()).sum().backward()  # one add in the forward pass, one of the two gradients
    assert by_engine == [False, True]


def test_tree_iter_flattens_nested_values() -> None:
    assert list(compat.tree_iter(({"a": 1}, [2, (3,)]))) == [1, 2, 3]


def test_schemas_mark_the_arguments_written_to() -> None:
    aten = torch.ops.aten
    assert isinstance(aten.add.Tensor, compat.OpOverload)
    assert not compat.schema_of(aten.add.Tensor).is_mutable
    in_place, out = compat.schema_of(aten.add_.Tensor), compat.schema_of(aten.add.out)
    written = [[v for v in schema.arguments if v.alias_info and v.alias_info.is_write] for schema in (in_place, out)]
    assert in_place.is_mutable
    assert [[(value.name, value.kwarg_only) for value in each] for each in written] == [
        [("self", False)],
        [("out", True)],
    ]
    assert [str(value.type) for value in in_place.returns] == ["Tensor"]


def test_a_multiply_add_counts_as_two_flops() -> None:
    left, right = torch.ones(2, 3), torch.ones(3, 5)
    assert compat.flop_registry[torch.ops.aten.mm](left, right, out_val=left @ right) == 2 * 2 * 3 * 5
    shape = (2, 4, 8, 16)  # rows, heads, tokens, width
    two_matmuls = 2 * 2 * (2 * 4 * 8 * 8 * 16)
    assert compat.sdpa_flop_count(shape, shape, shape) == two_matmuls
    assert compat.sdpa_backward_flop_count(shape, shape, shape, shape) == 2.5 * two_matmuls


def test_attention_kernels_take_the_same_arguments() -> None:
    query, key, value = (torch.randn(2, 4, 8, 16) for _ in range(3))
    mask = torch.zeros(2, 1, 8, 8)
    mask[..., -1] = -1e4
    out, _ = compat.flash_attention_for_cpu(query, key, value, 0.0, False, attn_mask=mask, scale=None)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(query, key, value, attn_mask=mask))
    with FakeTensorMode():
        inputs = [torch.ones(2, 4, 8, 16, dtype=torch.float16) for _ in range(3)]
        flash = compat.flash_attention(*inputs, 0.1, False, False, scale=None)[0]
        efficient = compat.efficient_attention(*inputs, None, True, 0.1, False, scale=None)[0]
    assert flash.shape == efficient.shape == (2, 4, 8, 16)


def test_softmax_backward_writes_to_the_given_tensor() -> None:
    scores = torch.randn(3, 5, requires_grad=True)
    probs, grad_out = scores.softmax(-1), torch.randn(3, 5)
    (expected,) = torch.autograd.grad(probs, scores, grad_out)
    into = probs.detach().clone()
    compat.softmax_backward_into(grad_out, into, -1, torch.float32, grad_input=into)
    torch.testing.assert_close(into, expected)


def test_read_scalar_and_index_put() -> None:
    with Recorder() as recorder:
        assert torch.ones(()).item() == 1
    assert recorder.operations[-1] is compat.read_scalar
    values, mask = torch.zeros(2, 2), torch.tensor([[True, False], [False, True]])
    compat.index_put_in_place(values, [mask], torch.tensor(5.0))
    assert values.tolist() == [[5, 0], [0, 5]]


def test_grouped_products_and_unique() -> None:
    with Recorder() as recorder:
        torch.unique(torch.tensor([1, 2, 1]))
    assert compat.unique_values in recorder.operations
    rows, weights, ends = torch.ones(16, 16), torch.ones(1, 16, 16), torch.tensor([16], dtype=torch.int32)
    products = compat.grouped_mm(rows.bfloat16(), weights.bfloat16(), ends)
    assert products.shape == (16, 16)


def test_the_last_learning_rate_of_a_schedule() -> None:
    schedule = torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD([torch.zeros(1)], lr=1.0), lambda step: 1.0)
    compat.set_last_lr(schedule, [0.25])
    assert schedule.get_last_lr() == [0.25]


def test_the_name_in_a_config() -> None:
    assert transformers.BertConfig(**{compat.NAME_IN_CONFIG: "some/model"}).name_or_path == "some/model"


def test_op_kinds_name_existing_operations() -> None:
    assert [name for name in op_counts._KIND_OF if not hasattr(torch.ops.aten, name)] == []


# torch: autograd, storages and the rest


def test_autograd_nodes_are_numbered_in_forward_order() -> None:
    weight = torch.ones(2, requires_grad=True)
    number = compat.next_sequence_number()
    out = weight.exp()
    assert compat.sequence_number_of(out.grad_fn) == number
    assert compat.next_sequence_number() == number + 1


def test_the_running_backward_pass_and_its_node_are_known() -> None:
    class NodeRecorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            node = compat.current_autograd_node()
            nodes.append((None if node is None else node.name(), compat.current_graph_task_id() >= 0))
            return func(*args, **(kwargs or {}))

    nodes: list[tuple[str | None, bool]] = []
    weight = torch.ones(2, requires_grad=True)
    with NodeRecorder():
        loss = weight.exp().sum()
        assert set(nodes) == {(None, False)}
        loss.backward()
    assert ("ExpBackward0", True) in nodes
    assert compat.current_graph_task_id() == -1


def test_storage_ids_are_unique_and_references_are_counted() -> None:
    tensor, other = torch.ones(4), torch.ones(4)
    storage = tensor.untyped_storage()
    assert compat.storage_id(storage) == compat.storage_id(tensor[1:].untyped_storage())
    assert compat.storage_id(storage) != compat.storage_id(other.untyped_storage())
    assert compat.storage_use_count(compat.storage_id(storage)) == 2
    del tensor
    assert compat.storage_use_count(compat.storage_id(storage)) == 1


def test_a_weak_reference_expires_with_its_storage() -> None:
    tensor = torch.ones(4)
    reference = compat.StorageWeakRef(tensor.untyped_storage())
    assert reference.cdata == compat.storage_id(tensor.untyped_storage())
    assert not reference.expired()
    del tensor
    assert reference.expired()


def test_every_in_place_change_of_a_tensor_is_counted() -> None:
    tensor = torch.ones(2)
    assert compat.version_of(tensor) == 0
    tensor.add_(1)
    tensor[:1].zero_()
    torch.autograd.graph.increment_version(tensor)
    assert compat.version_of(tensor) == 3


@pytest.mark.parametrize(
    ("args", "kwargs", "dtype"),
    [
        (("cpu",), {}, None),
        ((torch.bfloat16,), {}, torch.bfloat16),
        (("cpu", torch.float16), {"non_blocking": True}, torch.float16),
        ((), {"device": "cpu"}, None),
        ((torch.ones(1, dtype=torch.float64),), {}, torch.float64),
    ],
)
def test_the_dtype_in_the_arguments_of_to_is_found(args: Any, kwargs: Any, dtype: torch.dtype | None) -> None:
    assert compat.dtype_of_move(*args, **kwargs) is dtype


def test_avx512_bf16_matches_cpuinfo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        pytest.skip("needs /proc/cpuinfo")
    assert compat.has_avx512_bf16() is ("avx512_bf16" in cpuinfo.read_text().split())


@pytest.mark.parametrize("limit", ["AVX2", "avx512_core", "AVX512_CORE_VNNI"])
def test_a_limit_of_onednn_rules_out_bf16_products(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert not compat.has_avx512_bf16()


def test_torch_check_can_be_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrap(check: Callable[..., None]) -> Callable[..., None]:
        def checked(error: type[Exception], holds: Any, message: Any) -> None:
            checks.append((error, holds))
            check(error, holds, message)

        return checked

    checks: list[Any] = []
    monkeypatch.setattr(torch, "_check_with", torch._check_with)  # restores it afterwards
    compat.wrap_check(torch, wrap)
    torch._check(True)
    with pytest.raises(ValueError, match="Expected cond"):
        torch._check_value(False)
    assert checks == [(RuntimeError, True), (ValueError, False)]


def test_a_scaler_can_unscale_again_after_a_reset() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cpu")
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    compat.reset_unscaled(scaler)
    scaler.unscale_(optimizer)


def test_adamw_asks_for_a_gpu_only_if_parameters_are_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch sees a GPU, a step on the CPU would initialize CUDA: 50 MB, and no fork afterwards."""

    def fail() -> None:
        raise AssertionError("CUDA would be initialized")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_stream", fail)
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    with pytest.raises(AssertionError):
        torch.optim.AdamW([parameter]).step()
    optimizer = AdamW().build([{"params": [parameter]}], 0.1)
    optimizer.step()
    with fake_tensors(GPUS["T4 16GB"]):
        fake = torch.nn.Parameter(torch.ones(3))
        fake.grad = torch.ones(3)
        torch.optim.AdamW([fake]).step()
    assert hasattr(optimizer, compat.GRAPH_CAPTURE_CHECK)


def test_autocast_has_kernels_for_some_ops_only() -> None:
    assert "pow.Tensor_Scalar" in compat.autocast_ops("CUDA") - compat.autocast_ops("CPU")
    assert "mm" in compat.autocast_ops("CUDA") & compat.autocast_ops("CPU")


def test_autocast_can_have_kernels_for_more_ops() -> None:
    def twice(keys: Any, values: torch.Tensor) -> Any:
        return torch.ops.aten.exp.default.redispatch(compat.below_autocast(keys), values + values)

    ones, twos = torch.ones(2), 2 * torch.ones(2)
    with compat.cpu_autocast_kernels([("exp", twice)]), torch.autocast("cpu", torch.bfloat16):
        changed = ones.exp()
    with torch.autocast("cpu", torch.bfloat16):
        unchanged = ones.exp()
    assert torch.equal(changed, twos.exp())
    assert torch.equal(unchanged, ones.exp())


def test_softmax_reads_16_bits_and_writes_fp32() -> None:
    with FakeTensorMode():
        states = torch.ones(2, 3, dtype=torch.float16)
        results = [compat.softmax_in_fp32(states, 1, is_log=is_log) for is_log in (False, True)]
    assert [result.dtype for result in results] == [torch.float32] * 2


# transformers


def test_the_functions_that_initialize_weights_are_torchs_own() -> None:
    assert {"normal_", "uniform_", "kaiming_uniform_", "trunc_normal_"} <= compat.INITIALIZERS.keys()
    assert all(function is getattr(torch.nn.init, name) for name, function in compat.INITIALIZERS.items())
    assert "torch.nn.init" in compat.MODULES_WITH_INITIALIZERS
    assert all(name in sys.modules for name in compat.MODULES_WITH_INITIALIZERS)


def test_models_initialize_their_weights_in_init_weights() -> None:
    assert inspect.isfunction(transformers.PreTrainedModel.init_weights)
    assert "self.init_weights()" in inspect.getsource(transformers.PreTrainedModel.post_init)


def test_outputs_of_batches_are_concatenated() -> None:
    joined = compat.nested_concat((torch.ones(2, 3), torch.zeros(2)), (torch.ones(1, 3), torch.ones(1)))
    assert [output.shape for output in joined] == [(3, 3), (3,)]
    assert joined[1].tolist() == [0, 0, 1]


def test_rows_of_similar_length_are_grouped() -> None:
    lengths = [3, 9, 1, 7, 5, 8, 2, 6]
    rows, again = (compat.get_length_grouped_indices(lengths, 2, 2, torch.Generator().manual_seed(0)) for _ in range(2))
    assert rows == again
    assert sorted(rows) == list(range(8))
    for start in (0, 4):
        pool = [lengths[row] for row in rows[start : start + 4]]
        assert sorted(pool[1:], reverse=True) == pool[1:]  # the longest row overall is swapped with the first
    assert lengths[rows[0]] == max(lengths)


def test_fused_attention_is_what_transformers_registers() -> None:
    assert ALL_MASK_ATTENTION_FUNCTIONS["sdpa"] is compat.sdpa_mask
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is compat.sdpa_attention_forward
    query, key = torch.randn(2, 4, 8, 16), torch.randn(2, 2, 8, 16)
    repeated = compat.repeat_kv(key, 2)
    assert torch.equal(repeated, key.repeat_interleave(2, dim=1))
    module = torch.nn.Module()
    out, weights = compat.sdpa_attention_forward(
        module, query, repeated, repeated, None, dropout=0.0, scaling=None, is_causal=False
    )
    expected = F.scaled_dot_product_attention(query, repeated, repeated).transpose(1, 2)
    torch.testing.assert_close(out, expected)
    assert weights is None


def test_loss_functions_and_causal_models_are_found_by_name() -> None:
    assert compat.LOSS_MAPPING["ForCausalLM"] is compat.ForCausalLMLoss
    assert compat.LOSS_MAPPING[build("Qwen2", "causal").loss_type] is compat.ForCausalLMLoss
    assert "GPT2LMHeadModel" in compat.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


def test_conv1d_has_a_transposed_weight() -> None:
    found = [module for module in build("GPT2").modules() if isinstance(module, compat.Conv1D)]
    assert found
    assert compat.Conv1D(5, 3).weight.shape == (3, 5)


def test_import_model_code_imports_the_module() -> None:
    code = "transformers.models.mra.modeling_mra"
    assert code not in sys.modules
    compat.import_model_code(transformers.AutoModelForSequenceClassification, transformers.MraConfig())
    assert code in sys.modules


def test_attention_can_be_changed_if_the_model_supports_it() -> None:
    assert compat.can_change_attention(build("Bert"))
    assert not compat.can_change_attention(build("DebertaV2"))


def test_checkpoint_name_is_the_folder_of_the_config(tiny_model: Path) -> None:
    assert compat.checkpoint_name(transformers.AutoConfig.from_pretrained(tiny_model)) == str(tiny_model)


def test_one_gpu_does_not_multiply_the_batch(tmp_path: Path) -> None:
    arguments = transformers.TrainingArguments(str(tmp_path), per_device_train_batch_size=8, use_cpu=True)
    assert arguments.device.type == "cpu"  # reading it counts the GPUs
    arguments._n_gpu = 4
    assert arguments.train_batch_size == 32
    compat.use_one_gpu(arguments)
    assert arguments.n_gpu == 1
    assert arguments.train_batch_size == 8


def test_weight_decay_excludes_biases_and_norms() -> None:
    model = build("Bert")
    decayed = compat.decay_parameter_names(model)
    assert "bert.encoder.layer.0.attention.self.query.weight" in decayed
    assert not [name for name in decayed if name.endswith("bias") or "LayerNorm" in name]


# transformers.Trainer

OVERRIDDEN = {
    "_get_train_sampler": ["train_dataset"],
    "_clip_grad_norm": ["model"],
    "_get_grad_norm": ["model", "grad_norm"],
    "_determine_best_metric": ["metrics", "trial"],
    "_finalize_training": ["trial", "num_train_samples", "start_time"],
    "_save_checkpoint": ["model", "trial"],
    "_load_from_checkpoint": ["resume_from_checkpoint", "model"],
    "_load_optimizer_and_scheduler": ["checkpoint"],
    "_load_scaler": ["checkpoint"],
    "_load_rng_state": ["checkpoint"],
    "_save_rng_state": ["output_dir"],
    "_run_epoch": [
        "model", "epoch", "train_dataloader", "steps_in_epoch", "num_update_steps_per_epoch", "trial",
        "ignore_keys_for_eval", "start_time", "resume_from_checkpoint", "epochs_trained",
        "steps_trained_in_current_epoch",
    ],
    "_load_best_model": [],
}  # fmt: skip
CALLED = {
    "_wrap_model": ["model", "training", "dataloader"],
    "_prepare_inputs": ["inputs"],
    "_save": ["output_dir", "state_dict"],
    "_save_optimizer_and_scheduler": ["output_dir"],
    "_save_scaler": ["output_dir"],
    "_save_rng_state": ["output_dir"],
    "_get_collator_with_removed_columns": ["data_collator", "description"],
    "_push_from_checkpoint": ["checkpoint_folder"],
}
ATTRIBUTES = ("_tr_loss", "_globalstep_last_logged", "_total_loss_scalar", "_initial_global_step")
OF_TRAINER = {*OVERRIDDEN, *CALLED, *ATTRIBUTES}
OURS = {**vars(CheckpointTrainer), **vars(Trainer)}


def parameters_of(method: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(method).parameters.values())[1:]


@pytest.mark.parametrize("name", [*OVERRIDDEN, *CALLED])
def test_private_methods_of_trainer_have_the_expected_parameters(name: str) -> None:
    theirs = parameters_of(getattr(transformers.Trainer, name))
    assert [parameter.name for parameter in theirs] == {**OVERRIDDEN, **CALLED}[name]


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_overrides_have_the_parameters_of_transformers(name: str) -> None:
    ours, theirs = (parameters_of(methods[name]) for methods in (OURS, vars(transformers.Trainer)))
    if [parameter.kind for parameter in ours] == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]:
        return
    assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in theirs]


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_transformers_calls_the_overridden_methods(name: str) -> None:
    assert re.search(rf"self\.{name}\b", inspect.getsource(transformers.Trainer))


def test_no_other_private_method_of_trainer_is_overridden() -> None:
    private = {name for name in OURS if name.startswith("_") and not name.startswith("__")}
    assert {name for name in private if hasattr(transformers.Trainer, name)} == set(OVERRIDDEN)


def test_the_counters_of_a_training_are_set_before_it_starts(tmp_path: Path) -> None:
    class RecordCounters(transformers.TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            counters.update({name: float(getattr(trainer, name)) for name in ATTRIBUTES})

    counters: dict[str, float] = {}
    batch = make_batch(2, longest=8)
    rows = [{name: values[row] for name, values in batch.items()} for row in range(2)]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=1, use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no"
    )
    trainer = transformers.Trainer(build("Bert"), arguments, train_dataset=rows, callbacks=[RecordCounters()])
    before = {name for name in ATTRIBUTES if hasattr(trainer, name)}
    loss = trainer.train().training_loss
    assert before == set()
    assert counters == dict.fromkeys(ATTRIBUTES, 0)
    assert isinstance(trainer._tr_loss, torch.Tensor)
    assert trainer._total_loss_scalar == pytest.approx(loss)


# datasets, bitsandbytes, peft, pydantic


def test_the_fingerprint_changes_with_the_content() -> None:
    one, same, other = (datasets.Dataset.from_dict({"text": texts}) for texts in (["a"], ["a"], ["b"]))
    assert compat.fingerprint_of(one) == compat.fingerprint_of(same) != compat.fingerprint_of(other)


def test_the_dynamic_map_has_256_values() -> None:
    pytest.importorskip("bitsandbytes")
    signed, unsigned = (compat.create_dynamic_map(signed=signed) for signed in (True, False))
    assert signed.shape == unsigned.shape == (256,)
    assert (signed.diff() > 0).all()
    assert (signed.min(), signed.max(), unsigned.min(), unsigned.max()) == (pytest.approx(-1, abs=0.01), 1, 0, 1)


def test_bitsandbytes_functions_have_the_expected_parameters() -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    assert list(inspect.signature(functional.optimizer_update_8bit_blockwise).parameters)[:17] == [
        "optimizer_name", "g", "p", "state1", "state2", "beta1", "beta2", "beta3", "alpha", "eps", "step", "lr",
        "qmap1", "qmap2", "absmax1", "absmax2", "weight_decay",
    ]  # fmt: skip
    assert list(inspect.signature(functional.optimizer_update_32bit).parameters)[:10] == [
        "optimizer_name", "g", "p", "state1", "beta1", "eps", "step", "lr", "state2", "beta2",
    ]  # fmt: skip


@pytest.mark.parametrize("bits", [8, 32])
def test_a_bitsandbytes_step_equals_adamw(bits: int) -> None:
    pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    expected, gradient = torch.nn.Parameter(torch.randn(512)), torch.randn(512)
    weights, settings = expected.detach().clone(), {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.5}
    expected.grad = gradient
    torch.optim.AdamW([expected], **settings).step()
    if bits == 32:
        compat.adam_32bit_update(gradient, weights, (torch.zeros(512), torch.zeros(512)), step=1, **settings)
    else:
        moments = torch.zeros(512, dtype=torch.uint8), torch.zeros(512, dtype=torch.uint8)
        values = compat.create_dynamic_map(signed=True), compat.create_dynamic_map(signed=False)
        scales = torch.zeros(2), torch.zeros(2)
        compat.adam_8bit_update(gradient, weights, moments, scales, values, step=1, **settings)
        torch.testing.assert_close(scales[0], 0.1 * gradient.view(2, 256).abs().amax(1))
    torch.testing.assert_close(weights, expected.detach(), rtol=0, atol=1e-5)


def test_peft_has_default_lora_targets() -> None:
    pytest.importorskip("peft")
    assert list(compat.LORA_TARGETS["bert"]) == ["query", "value"]


def test_typer_takes_the_words_of_its_help_from_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    import typer.core

    monkeypatch.setattr(typer.core, "_", typer.core._)  # restored at the end
    compat.translate_typer(lambda text: f"«{text}»")
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    def command(number: int = 3) -> None:
        """A command."""

    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert "«Options»" in shown
    assert "«default: 3»" in shown


def test_field_defaults_of_a_pydantic_dataclass() -> None:
    @dataclass(frozen=True)
    class Settings:
        size: int
        every: int = 2

    assert compat.field_defaults(Settings) == {"size": compat.PydanticUndefined, "every": 2}


# No other module uses such names

LIBRARIES = "torch|transformers|accelerate|datasets|bitsandbytes|peft|pydantic|pydantic_core"
PUBLIC = {"_exit", "_replace", "_asdict", "_fields"}  # documented: os._exit and the methods of named tuples
BY_NAME = {"getattr", "setattr", "hasattr", "delattr", "attrgetter", "methodcaller"}
INTERNAL = {
    "__pydantic_fields__", "cache_enabled", "get_decay_parameter_names", "optimizer_update_32bit",
    "optimizer_update_8bit_blockwise",
}  # fmt: skip
IMPORT_HOOKS = {"optional_imports.py": {"torch._dynamo"}}  # names for an import finder, which does not use them


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in PUBLIC


@cache
def reserved() -> set[str]:
    """The private names in compat.py, which no other module may use, even for an attribute of its own."""
    tree = ast.parse(Path(compat.__file__).read_text("utf-8"))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {part for text in strings_in(tree) for part in re.split(r"[.:]", text)}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return {name for name in names if is_private(name) and name.isidentifier()}


def own_names(tree: ast.AST) -> set[str]:
    """What a file defines: functions, classes, variables and attributes of self."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            names.add(node.attr)
    return names


def is_self(node: ast.AST) -> bool:
    is_super = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    return is_super or (isinstance(node, ast.Name) and node.id in ("self", "cls"))


def strings_in(tree: ast.AST) -> Iterator[str]:
    """All string literals except the fragments of f-strings."""
    fragments = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in fragments:
            yield node.value


def foreign_private_names(source: str, own: set[str], file: str = "") -> list[str]:
    """The private and internal names of other libraries that some source code uses."""
    tree = ast.parse(source)
    own = (own | own_names(tree)) - reserved() - OF_TRAINER
    allowed = OF_TRAINER if file in ("trainer.py", "trainer_checkpoints.py", "budget_trainer.py") else set()
    imported = {(alias.asname or alias.name).partition(".")[0] for node in imports(tree) for alias in node.names}
    found = [name for node in imports(tree) for name in private_imports(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not (is_self(node.value) and node.attr in allowed):
            foreign = root_of(node) in imported or node.attr not in own
            found += [node.attr] if node.attr in INTERNAL or (is_private(node.attr) and foreign) else []
        elif isinstance(node, ast.ClassDef):
            found += [part.name for part in node.body if isinstance(part, ast.FunctionDef) and part.name in reserved()]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in BY_NAME:
            found += [text for arg in node.args for text in strings_in(arg) if is_private(text) and text not in own]
    paths = [text for text in strings_in(tree) if re.fullmatch(rf"({LIBRARIES})[\w.:]*[.:]_[\w.:]*", text)]
    found += [text for text in strings_in(tree) if text in reserved()]
    return found + [path for path in paths if path not in IMPORT_HOOKS.get(file, ())]


def imports(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """The imports of other libraries."""
    found = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    return [n for n in found if not (isinstance(n, ast.ImportFrom) and f"{n.module}.".startswith("tightfit."))]


def private_imports(node: ast.Import | ast.ImportFrom) -> list[str]:
    module = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
    paths = [".".join([*module, alias.name]) for alias in node.names]
    internal = {path.replace(":", ".") for path in compat._ALIASES.values()}
    return [path for path in paths if path in internal or any(map(is_private, path.split(".")))]


def root_of(node: ast.AST) -> str | None:
    """torch._C._nn -> torch."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def test_private_names_of_libraries_are_used_in_compat_only() -> None:
    files = {path: path.read_text("utf-8") for path in SOURCE.rglob("*.py") if path != Path(compat.__file__)}
    own = set().union(*(own_names(ast.parse(source)) for source in files.values()))
    found = {
        str(path.relative_to(SOURCE)): names
        for path, source in files.items()
        if (names := foreign_private_names(source, own, path.name))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import torch\ntorch._C._nn", "_C"),
        ("import torch._dynamo", "torch._dynamo"),
        ("from torch._subclasses.fake_tensor import FakeTensor", "torch._subclasses.fake_tensor.FakeTensor"),
        ("from torch import _C", "torch._C"),
        ("from torch.utils._pytree import tree_iter", "torch.utils._pytree.tree_iter"),
        ("from transformers.pytorch_utils import Conv1D", "transformers.pytorch_utils.Conv1D"),
        ("import torch\nclass A:\n    def _mine(self): torch.cpu._mine()", "_mine"),
        ("import torch\naten = torch.ops.aten\naten._softmax(1)", "_softmax"),
        ("def f(tensor): return tensor._version", "_version"),
        ("class A:\n    def f(self): self._version = 1", "_version"),
        ("def f(storage): return storage.untyped_storage()._cdata", "_cdata"),
        ("def f(func): return func._schema.returns", "_schema"),
        ("def f(arguments): arguments._n_gpu = 1", "_n_gpu"),
        ("def f(model): return getattr(model, '_supports_flash', False)", "_supports_flash"),
        ("def f(module): module.__dict__['_check_with'] = None", "_check_with"),
        ("import sys\nsys._getframe(1)", "_getframe"),
        ("import atexit\natexit._run_exitfuncs()", "_run_exitfuncs"),
        ("from importlib import import_module\nimport_module('torch._dynamo')", "torch._dynamo"),
        ("class A:\n    def _should_skip_dynamo(self): return False", "_should_skip_dynamo"),
        ("def f(trainer): trainer._save_checkpoint(None, None)", "_save_checkpoint"),
        ("class A:\n    def f(self): self._tr_loss = 0", "_tr_loss"),
        ("def f(functional): functional.optimizer_update_8bit_blockwise()", "optimizer_update_8bit_blockwise"),
        ("def f(cls): return cls.__pydantic_fields__", "__pydantic_fields__"),
    ],
)
def test_the_check_finds_private_names(source: str, name: str) -> None:
    assert name in foreign_private_names(source, own={"_other"})


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("class A:\n    def f(self): self._x = 1\ndef g(a): return a._x", ""),
        ("def g(a): return a._other", ""),
        ("import os\nos._exit(0)", ""),
        ("def f(pair): return pair._replace(size=1)", ""),
        ("from tightfit.compat import FakeTensor, schema_of", ""),
        ("class A:\n    def f(self): self._tr_loss = super()._save_checkpoint(None, None)", "trainer.py"),
        ("HOOKED = 'torch._dynamo'", "optional_imports.py"),
        ("'''A sentence about torch._C, which is not a use.'''", ""),
    ],
)
def test_the_check_allows_other_names(source: str, file: str) -> None:
    assert foreign_private_names(source, own={"_other"}, file=file) == []


def test_the_exceptions_of_the_check_apply_to_one_file_each() -> None:
    own_attribute = "class A:\n    def f(trainer): trainer._tr_loss = 0"
    assert foreign_private_names(own_attribute, set(), "trainer.py") == ["_tr_loss"]
    assert foreign_private_names("HOOKED = 'torch._dynamo'", set(), "app.py") == ["torch._dynamo"]

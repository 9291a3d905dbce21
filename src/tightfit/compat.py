"""Compatibility: every private or internal name of another library that tightfit relies on.

No other module may use such a name, and tests/test_compat.py checks each one, so a new version of a library that moves
or changes one of them fails there first. The private methods of transformers.Trainer are overridden in
training/trainer.py and training/trainer_checkpoints.py.

Importing this module imports no library. An alias is looked up when it is first imported from here: modules that call
one for every operation import it at their top, and then call the library's own function.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from operator import attrgetter, methodcaller
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, TrainingArguments

_ALIASES = {
    # torch: tensors with a shape and no data
    "FakeTensor": "torch._subclasses.fake_tensor:FakeTensor",
    "FakeTensorMode": "torch._subclasses.fake_tensor:FakeTensorMode",
    # torch: the logger to which fake tensors write the traceback of an operation that fails
    "FAKE_TENSOR_LOGGER": "torch._subclasses.fake_tensor:log",
    # torch: raised where an operation on fake tensors would need their data
    "DataDependentOutputException": "torch._subclasses.fake_tensor:DataDependentOutputException",
    "DynamicOutputShapeException": "torch._subclasses.fake_tensor:DynamicOutputShapeException",
    # torch: the base class of modes that intercept every operation, and a context that disables them
    "TorchDispatchMode": "torch.utils._python_dispatch:TorchDispatchMode",
    "disable_current_modes": "torch.utils._python_dispatch:_disable_current_modes",
    # torch: a context in which subclasses behave as plain tensors, and the function that makes a subclass of a tensor
    "DisableTorchDispatch": "torch._C:_DisableTorchDispatch",
    "make_subclass": "torch:Tensor._make_subclass",
    # torch: the tensors in nested tuples, lists and dicts
    "tree_iter": "torch.utils._pytree:tree_iter",
    # torch: the class of operations such as aten.add.Tensor
    "OpOverload": "torch._ops:OpOverload",
    # torch: the id of the running backward pass, -1 if there is none; and its current node, or None
    "current_graph_task_id": "torch._C:_current_graph_task_id",
    "current_autograd_node": "torch._C:_current_autograd_node",
    # torch: the sequence number of the next autograd node
    "next_sequence_number": "torch.autograd:_get_sequence_nr",
    # torch: the code of the function that runs a backward pass, to check whether the autograd engine is the caller
    "ENGINE_CODE": "torch.autograd.graph:_engine_run_backward.__code__",
    # torch: the number of references to a storage, by its id
    "storage_use_count": "torch._C:_storage_Use_Count",
    # torch: a weak reference to a storage, to check whether it was freed
    "StorageWeakRef": "torch.multiprocessing.reductions:StorageWeakRef",
    # torch: the floating-point operations of an operation, from its arguments
    "flop_registry": "torch.utils.flop_counter:flop_registry",
    "sdpa_flop_count": "torch.utils.flop_counter:sdpa_flop_count",
    "sdpa_backward_flop_count": "torch.utils.flop_counter:sdpa_backward_flop_count",
    # torch: sets what PYTORCH_ALLOC_CONF sets, in a running process
    "set_allocator_settings": "torch._C:_accelerator_setAllocatorSettings",
    # torch: attention kernels; torch does not choose these by itself for fake tensors
    "flash_attention_for_cpu": "torch:ops.aten._scaled_dot_product_flash_attention_for_cpu",
    "flash_attention": "torch:ops.aten._scaled_dot_product_flash_attention",
    "efficient_attention": "torch:ops.aten._scaled_dot_product_efficient_attention",
    "efficient_attention_backward": "torch:ops.aten._scaled_dot_product_efficient_attention_backward.default",
    # torch: the backward pass of softmax into an existing tensor
    "softmax_backward_into": "torch:ops.aten._softmax_backward_data.out",
    # torch: the operations behind tensor.item() and behind writing to tensor[mask]
    "read_scalar": "torch:ops.aten._local_scalar_dense.default",
    "index_put_in_place": "torch:ops.aten._index_put_impl_.default",
    # torch: the products of groups of rows, as mixtures of experts use them, and the operation of torch.unique
    "grouped_mm": "torch:ops.aten._grouped_mm.default",
    "unique_values": "torch:ops.aten._unique2.default",
    # transformers: the names of the functions that initialize weights, and the modules of torch that import them
    "INITIALIZERS": "transformers.initialization:TORCH_INIT_FUNCTIONS",
    "MODULES_WITH_INITIALIZERS": "transformers.initialization:TORCH_MODULES_TO_PATCH",
    # transformers: concatenates the evaluation outputs of several batches
    "nested_concat": "transformers.trainer_pt_utils:nested_concat",
    # transformers: the row order of group_by_length
    "get_length_grouped_indices": "transformers.trainer_pt_utils:get_length_grouped_indices",
    # transformers: the mask for torch's fused attention, that attention, and repeated keys for grouped-query attention
    "sdpa_mask": "transformers.masking_utils:sdpa_mask",
    "sdpa_attention_forward": "transformers.integrations.sdpa_attention:sdpa_attention_forward",
    "repeat_kv": "transformers.integrations.sdpa_attention:repeat_kv",
    # transformers: the loss functions by name, the next-token loss, and the classes of causal and masked models
    "LOSS_MAPPING": "transformers.loss.loss_utils:LOSS_MAPPING",
    "ForCausalLMLoss": "transformers.loss.loss_utils:ForCausalLMLoss",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "transformers.models.auto.modeling_auto:MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "transformers.models.auto.modeling_auto:MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    # transformers: GPT-2's linear layer, whose weight is transposed
    "Conv1D": "transformers.pytorch_utils:Conv1D",
    # peft: the modules that LoRA adapts by default, by model type
    "LORA_TARGETS": "peft.utils.constants:TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING",
    # bitsandbytes: the 256 values that a byte of 8-bit optimizer state can encode
    "create_dynamic_map": "bitsandbytes.functional:create_dynamic_map",
    # pydantic: the default of a field that has none
    "PydanticUndefined": "pydantic_core:PydanticUndefined",
}
"""Our name -> the module and the name in that module."""


def __getattr__(name: str) -> Any:
    """Look up an alias when it is first imported from here."""
    if name not in _ALIASES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, path = _ALIASES[name].partition(":")
    found = globals()[name] = attrgetter(path)(import_module(module))
    return found


# Python

get_frame = sys._getframe
"""The frame `depth` calls above the caller; an alias, as a wrapper function would add a frame."""


def run_exit_functions() -> None:
    """Call the atexit functions, as Python does on exit."""
    atexit._run_exitfuncs()


# torch, called for every operation: functions without a Python frame

storage_id = attrgetter("_cdata")
"""The id of a storage, unique among those alive."""
schema_of = attrgetter("_schema")
"""An operation's schema: its arguments and results, and which of them it writes to."""
version_of = attrgetter("_version")
"""A tensor's version: how often it was changed in place."""
sequence_number_of = methodcaller("_sequence_nr")
"""The sequence number of an autograd node, in the order of the forward pass."""
reference_count_of = methodcaller("_use_count")
"""The number of references to a tensor, of Python and of torch together."""


# torch


@cache
def uncompiled_dispatch_mode() -> Any:
    """A TorchDispatchMode without the guard against torch.compile, which took a tenth of a simulation's time."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class UncompiledDispatchMode(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

    return UncompiledDispatchMode


def current_fake_mode() -> Any:
    """The active FakeTensorMode, or None."""
    import torch

    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)


def disable_fake_cache(mode: Any) -> None:
    """Turn off a FakeTensorMode's cache of results."""
    assert mode.cache_enabled in (True, False)  # if it were renamed, the cache would silently stay on
    mode.cache_enabled = False


def dtype_of_move(*args: Any, **kwargs: Any) -> torch.dtype | None:
    """The dtype in the arguments of a Module.to(), or None."""
    import torch

    _, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    return dtype


def has_avx512_bf16() -> bool:
    """Whether the CPU has bf16 matmul instructions that oneDNN may use; False if torch cannot check."""
    import torch

    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    is_allowed = limit in ("", "DEFAULT", "ALL") or limit.startswith(_WITH_BF16)
    return is_allowed and bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())


_WITH_BF16 = ("AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX512_CORE_AMX", "AVX10")


def wrap_check(module: ModuleType, wrap: Callable[[Any], Any]) -> None:
    """Wrap the function behind torch._check; `module` is torch while it is being imported."""
    module.__dict__["_check_with"] = wrap(module._check_with)


NAME_IN_CONFIG = "_name_or_path"
"""The key of a model's config.json with the id that it was loaded by, which older versions of transformers wrote."""


def set_last_lr(schedule: Any, rates: list[float]) -> None:
    """Set the learning rates that a schedule reports as its last ones."""
    schedule._last_lr = rates


GRAPH_CAPTURE_CHECK = "_accelerator_graph_capture_health_check"
"""The method of Optimizer that checks, in each step of AdamW, whether a CUDA graph is being captured."""


def use_cuda_only_on_gpu(optimizer: torch.optim.Optimizer) -> None:
    """Skip that check for parameters on the CPU: it initializes CUDA in every process that sees a GPU."""
    if not any(parameter.is_cuda for group in optimizer.param_groups for parameter in group["params"]):
        assert hasattr(optimizer, GRAPH_CAPTURE_CHECK)
        setattr(optimizer, GRAPH_CAPTURE_CHECK, _do_nothing)


def _do_nothing() -> None:
    pass


def autocast_ops(device: str) -> set[str]:
    """The ops that autocast has a kernel for on "CPU" or "CUDA", such as `pow.Tensor_Scalar`."""
    import torch

    names = torch._C._dispatch_get_registrations_for_dispatch_key(f"Autocast{device}")
    return {name.removeprefix("aten::") for name in names if name.startswith("aten::")}


@contextlib.contextmanager
def cpu_autocast_kernels(kernels: Iterable[tuple[str, Callable[..., Any]]]) -> Iterator[None]:
    """Inside, the CPU's autocast calls these functions for these ops, with the dispatch keys before the arguments."""
    import torch

    library = torch.library.Library("aten", "IMPL")
    try:
        for name, kernel in kernels:
            library.impl(name, kernel, "AutocastCPU", with_keyset=True)
        yield
    finally:
        library._destroy()


def below_autocast(keys: Any) -> Any:
    """The dispatch keys that come after those of the CPU's autocast."""
    import torch

    return keys & torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.AutocastCPU)


def softmax_in_fp32(states: torch.Tensor, dim: int, *, is_log: bool) -> torch.Tensor:
    """The softmax of 16-bit values in fp32, by the kernel that converts them as it reads them."""
    import torch

    function = torch._log_softmax if is_log else torch._softmax
    return function(states, dim, True)


def reset_unscaled(scaler: Any) -> None:
    """Clear a GradScaler's record of the optimizers whose gradients it has unscaled."""
    scaler._per_optimizer_states.clear()


# transformers


def import_model_code(auto_class: Any, config: PretrainedConfig) -> None:
    """Import the class that an auto class chooses for this config."""
    auto_class._model_mapping.get(type(config), None)


def can_change_attention(model: PreTrainedModel) -> bool:
    """Whether the model's attention function is looked up in transformers' table."""
    return bool(model._supports_sdpa and getattr(model, "_supports_attention_backend", False))


def checkpoint_name(config: PretrainedConfig) -> str:
    """The hub name or folder that a config was loaded from."""
    return str(config._name_or_path)


def use_one_gpu(arguments: TrainingArguments) -> None:
    """Keep Trainer from multiplying the batch by the number of GPUs and wrapping the model in DataParallel."""
    arguments._n_gpu = 1


def decay_parameter_names(model: PreTrainedModel) -> list[str]:
    """The parameters that Trainer applies weight decay to; the method does not use the trainer itself."""
    from transformers import Trainer

    return list(Trainer.get_decay_parameter_names(None, model))


# datasets, bitsandbytes, pydantic


def fingerprint_of(dataset: Any) -> str:
    """A hash that changes with the content of a datasets.Dataset."""
    return str(dataset._fingerprint)


def adam_32bit_update(
    gradient: torch.Tensor,
    parameter: torch.Tensor,
    moments: tuple[torch.Tensor, torch.Tensor],
    *,
    betas: tuple[float, float],
    eps: float,
    step: int,
    lr: float,
    weight_decay: float,
) -> None:
    """bitsandbytes' AdamW with moments in fp32, in place."""
    from bitsandbytes import functional

    functional.optimizer_update_32bit(
        "adam", gradient, parameter, moments[0], betas[0], eps, step, lr, moments[1], betas[1],
        weight_decay=weight_decay,
    )  # fmt: skip


def adam_8bit_update(
    gradient: torch.Tensor,
    parameter: torch.Tensor,
    moments: tuple[torch.Tensor, torch.Tensor],
    scales: tuple[torch.Tensor, torch.Tensor],
    values: tuple[torch.Tensor, torch.Tensor],
    *,
    betas: tuple[float, float],
    eps: float,
    step: int,
    lr: float,
    weight_decay: float,
) -> None:
    """bitsandbytes' AdamW with 8-bit moments, in place: `values` decodes a byte, `scales` has one scale per block."""
    from bitsandbytes import functional

    functional.optimizer_update_8bit_blockwise(
        "adam", gradient, parameter, *moments, *betas, 0.0, 0.0, eps, step, lr, *values, *scales, weight_decay
    )


def quantize_nf4(values: torch.Tensor, *, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values in NF4, two in a byte, and the scale of each block, by bitsandbytes."""
    import torch

    packed, scale = torch.ops.bitsandbytes.quantize_4bit.default(values, block, "nf4", torch.uint8)
    return packed, scale


def dequantize_nf4(
    packed: torch.Tensor, scale: torch.Tensor, block: int, shape: tuple[int, int], dtype: torch.dtype
) -> torch.Tensor:
    """The values of NF4, by bitsandbytes."""
    import torch

    values: torch.Tensor = torch.ops.bitsandbytes.dequantize_4bit.default(packed, scale, block, "nf4", shape, dtype)
    return values


def quantize_int8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in int8 and the largest value of each, by bitsandbytes."""
    import torch

    packed, scale, _ = torch.ops.bitsandbytes.int8_vectorwise_quant.default(rows.float(), 0.0)
    return packed, scale


def reset_accelerator_state() -> None:
    """Let the next Accelerator compute in another precision than the ones before it."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state()


def translate_typer(translate: Callable[[str], str]) -> None:
    """Let typer translate the headings and notes of its help pages with this function instead of gettext."""
    import typer.core

    typer.core._ = translate  # type: ignore[attr-defined, assignment]


def field_defaults(cls: Any) -> dict[str, Any]:
    """The fields of a pydantic dataclass with their defaults; PydanticUndefined for required ones."""
    return {name: field.default for name, field in cls.__pydantic_fields__.items()}

"""Quantized weights under LoRA: the arithmetic, every architecture, memory, and adapters that plain peft loads."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
from heads import CONFIGS, build, gradients, make_batch
from parts import parts_of
from torch import nn

from tightfit import Job, evaluate, load_run, train
from tightfit.compat import dequantize_nf4
from tightfit.device import Device
from tightfit.errors import RecipeError
from tightfit.ops.quantized_linear import QuantizedLinear
from tightfit.strategies.parts import Precision
from tightfit.strategies.quantize import Quantize
from tightfit.strategies.recipe import Recipe

pytest.importorskip("bitsandbytes")
T4 = Device("cuda", "T4", bf16=False, fp16=True, capability=75)
OLD_CPU = Device("cpu", "CPU", bf16=True, fp16=False, bf16_products=False)


def linear(rows: int = 192, columns: int = 128) -> nn.Linear:
    torch.manual_seed(0)
    layer = nn.Linear(columns, rows)
    return layer.requires_grad_(False)


def test_nf4_is_that_of_bitsandbytes_whatever_the_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    from bitsandbytes import functional

    layer = linear()
    packed, state = functional.quantize_4bit(layer.weight.data, blocksize=64, quant_type="nf4")
    expected = functional.dequantize_4bit(packed, state)
    monkeypatch.setattr("tightfit.ops.quantized_linear._TILE", 1024)
    found = QuantizedLinear(layer, 4, torch.float32)
    assert torch.equal(found.expanded(), expected)
    assert torch.equal(dequantize_nf4(packed, state.absmax, 64, (192, 128), torch.float32), expected)
    assert found.packed.nbytes == layer.weight.numel() // 2


@pytest.mark.parametrize(("bits", "error"), [(4, 0.12), (8, 0.01)])
def test_products_and_gradients_are_those_of_the_expanded_matrix(bits: int, error: float) -> None:
    layer = linear()
    quantized, inputs = QuantizedLinear(layer, bits, torch.float32), torch.randn(3, 5, 128, requires_grad=True)
    expected = nn.functional.linear(inputs, quantized.expanded(), layer.bias)
    torch.testing.assert_close(quantized(inputs), expected)
    (wanted,) = torch.autograd.grad(expected.square().sum(), inputs)
    (found,) = torch.autograd.grad(quantized(inputs).square().sum(), inputs)
    torch.testing.assert_close(found, wanted)
    assert (quantized.expanded() - layer.weight).norm() < error * layer.weight.norm()


@pytest.mark.parametrize("architecture", [name for name in CONFIGS if name != "GPT2"])
@pytest.mark.parametrize("recomputation", ["gradient-checkpointing", "chunked-layers:size=3"])
def test_gradients_are_the_same_in_recomputed_layers(architecture: str, recomputation: str) -> None:
    from tightfit.data.micro_batches import micro_batches

    batch = next(micro_batches(make_batch(8), 8, sort=True))[1]
    found = []
    for more in ([], [recomputation]):
        parts = parts_of("lora", "quantize:dtype=fp32", *more, model=build(architecture))
        torch.manual_seed(1)
        for name, parameter in parts.model.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        parts.model(**batch).loss.backward()
        found.append(gradients(parts.model))
    assert (found[1] - found[0]).norm() <= 1e-4 * found[0].norm()


def test_all_frozen_matrices_of_the_layers_are_quantized_and_the_rest_counts_as_before() -> None:
    parts, plain = parts_of("lora", "quantize"), parts_of("lora")
    frozen = [name for name, p in parts.model.named_parameters() if p.dim() == 2 and p.is_floating_point()]
    assert not [name for name in frozen if ".layer." in name and "lora_" not in name]
    assert (parts.parameters, parts.trainable_parameters) == (plain.parameters, plain.trainable_parameters)
    assert all(p.dtype is torch.float32 for p in parts.model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (["quantize"], "'quantize' needs 'lora': add --use lora"),
        (["lora", "quantize", "bf16-weights"], "clash: both set the number format"),
        (["lora:use_dora=true", "quantize"], "cannot be used with lora:use_dora=true"),
        (["lora", "quantize:dtype=fp16"], "has no fp16. Use quantize:dtype=fp32"),
    ],
)
def test_what_cannot_be_combined_is_one_sentence(specs: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parts_of(*specs)


def test_a_model_without_linear_layers_is_one_sentence() -> None:
    with pytest.raises(RecipeError, match="finds no linear layers to quantize in GPT2"):
        parts_of("lora", "quantize", model=build("GPT2"))


def test_it_computes_in_what_the_device_has() -> None:
    assert Quantize().choose(T4) is Precision.FP16
    assert Quantize().choose(OLD_CPU) is Precision.FP32
    assert Quantize(dtype="bf16").choose(OLD_CPU) is Precision.BF16


@pytest.fixture(scope="module")
def run_folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from conftest import write_reviews

    folder = tmp_path_factory.mktemp("quantize")
    job = job_of(tiny_model, write_reviews(folder / "reviews.csv"))
    train(job, ["lora:alpha=64", "quantize:dtype=fp32"], out=folder / "run", device="cpu", quiet=True)
    return folder / "run"


def job_of(model: Path, data: Path) -> Job:
    return Job(model=str(model), data=str(data), batch_size=8, max_length=32, learning_rate=1e-2, seed=7, epochs=24)


def test_a_run_learns_and_its_folder_holds_the_adapter_only(run_folder: Path) -> None:
    run = load_run(run_folder)
    assert run.metrics["eval_f1"] > 0.8
    assert not list(run_folder.glob("model*.safetensors"))
    assert (run_folder / "adapter_model.safetensors").is_file()


def test_evaluations_load_it_on_the_base_model(run_folder: Path) -> None:
    """Which is not quantized there: another loss than that of the run, and the same labels."""
    found, of_run = evaluate(run_folder, device="cpu").metrics, load_run(run_folder).metrics
    assert found["eval_accuracy"] == of_run["eval_accuracy"]
    assert found["eval_loss"] < 0.5 * math.log(2)  # an untrained head has at least log 2


def test_peft_loads_the_adapter(run_folder: Path, tiny_model: Path, tmp_path: Path) -> None:
    """From its two files alone, on the model it was trained from."""
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(run_folder / name, tmp_path)
    model = PeftModel.from_pretrained(AutoModelForSequenceClassification.from_pretrained(tiny_model), str(tmp_path))
    inputs = AutoTokenizer.from_pretrained(tiny_model)(["clean kind room", "dirty rude staff"], return_tensors="pt")
    with torch.no_grad():
        assert model.eval()(**inputs).logits.argmax(dim=1).tolist() == [1, 0]


def test_plans_offer_it_only_after_lora_alone() -> None:
    from tightfit.planning.candidates import candidates
    from tightfit.planning.constraints import Constraints
    from tightfit.strategies.base import Case, Stage

    def recipes(stage: Stage) -> list[Recipe]:
        case = Case(T4, 16, 128, 12, stage)
        return list(candidates(case, Constraints.of((), (), "different")))

    assert not any("quantize" in spec for recipe in recipes(Stage.FEWER_PARAMETERS) for spec in recipe.specs)
    smallest = recipes(Stage.FEWER_BITS)
    assert smallest
    assert all({"lora", "quantize"} <= set(recipe.specs) for recipe in smallest)

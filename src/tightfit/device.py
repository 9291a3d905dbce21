"""Device: where the training runs, and which number formats it knows."""

from __future__ import annotations

from dataclasses import dataclass

from tightfit.errors import BadInput, suggest

KINDS = ("cpu", "cuda", "mps")


@dataclass(frozen=True)
class Device:
    """This machine's processor or one of its cards."""

    name: str
    """As torch writes it: cpu, cuda:0, mps."""
    title: str
    """As a person would say it."""
    bf16: bool
    fp16: bool

    @property
    def kind(self) -> str:
        """cpu, cuda or mps."""
        return self.name.partition(":")[0]


def find_device(word: str | None = None) -> Device:
    """The device a user named, or the best one here."""
    import torch

    word = word or ("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = word.partition(":")
    if kind not in KINDS or (index and not index.isdigit()):
        raise BadInput(f"There is no device '{word}': {suggest(kind, KINDS)}")
    if kind == "cuda":
        return _cuda(int(index or 0))
    if kind == "mps":
        if not torch.backends.mps.is_available():
            raise BadInput("torch sees no Apple GPU here: use --device cpu.")
        return Device("mps", "Apple GPU", bf16=True, fp16=True)
    # torch computes bf16 on every CPU; fp16 needs a gradient scaler that exists for cards only.
    return Device("cpu", "this machine's CPU", bf16=True, fp16=False)


def _cuda(index: int) -> Device:
    import torch

    count = torch.cuda.device_count()
    if index >= count:
        seen = f"torch sees {count} card(s)" if count else "torch sees no CUDA card"
        raise BadInput(f"{seen} here, so 'cuda:{index}' cannot be used: use --device cpu, or install torch with CUDA.")
    if index:
        raise BadInput(
            f"Set CUDA_VISIBLE_DEVICES={index} and use --device cuda: transformers trains on the first card."
        )
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return Device(f"cuda:{index}", torch.cuda.get_device_name(index), bf16=bf16, fp16=True)

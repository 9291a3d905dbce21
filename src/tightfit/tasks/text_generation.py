"""What tasks share whose models write text: the head of a causal language model, perplexity, generated answers."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tightfit.data.batch_spec import ROWS, TOKENS, BatchSpec, Field
from tightfit.messages import Message, msg
from tightfit.tasks.base import ModelInputs, Prediction, Task
from tightfit.tasks.quality import Metric

if TYPE_CHECKING:
    from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

    from tightfit.data.batches import Batch
    from tightfit.tasks.base import Collator

NEW_TOKENS = 128
"""The longest text that is written for a row."""
_LARGEST = 700.0  # the exponential of more is infinite
PERPLEXITY = Metric("perplexity", msg("perplexity"), greater_is_better=False)


def words_batch() -> BatchSpec:
    """Tokens and a label for each of them."""
    names = ("input_ids", "labels", "attention_mask")
    return BatchSpec(tuple(Field(name, "int64", (ROWS, TOKENS)) for name in names))


@dataclass(frozen=True)
class TextPrediction(Prediction):
    """A text that the model wrote."""

    text: str

    def columns(self) -> dict[str, Any]:
        return {"prediction": self.text}

    def __str__(self) -> str:
        return self.text


class GenerationTask(Task):
    """A task whose model predicts the tokens of a text, each from those before it."""

    metrics: ClassVar[tuple[Metric, ...]] = (PERPLEXITY,)
    reads_logits: ClassVar[bool] = False
    predicts_words: ClassVar[bool] = True
    batch_spec: ClassVar[BatchSpec] = words_batch()
    peft_type: ClassVar[str | None] = "CAUSAL_LM"
    pipeline: ClassVar[str] = "text-generation"

    @abstractmethod
    def learned(self, labels: Sequence[str]) -> Message: ...

    def compute_metrics(self, prediction: EvalPrediction, inputs: ModelInputs) -> dict[str, float]:
        return {}

    def metrics_of_loss(self, loss: float) -> dict[str, float]:
        """How many words the model hesitates between, on average."""
        return {PERPLEXITY.name: math.exp(min(loss, _LARGEST))}

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        """Pads labels with the one that is ignored."""
        from transformers import DataCollatorForTokenClassification

        return DataCollatorForTokenClassification(tokenizer)

    def head(self) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM

    def infer(self, model: PreTrainedModel, batch: Batch) -> list[Any]:
        """The tokens that the model writes after each row."""
        ids, mask = (_padded_left(batch[name], batch["attention_mask"]) for name in ("input_ids", "attention_mask"))
        return generate(model, ids, mask)[:, ids.shape[1] :].tolist()

    def decode(self, outputs: Sequence[Any], inputs: ModelInputs) -> list[TextPrediction]:
        texts = inputs.tokenizer.batch_decode(outputs, skip_special_tokens=True)
        return [TextPrediction(text.strip()) for text in texts]

    def pipeline_call(self, texts: Sequence[str], max_length: int) -> str:
        return f"pipe({json.dumps(texts[0], ensure_ascii=False)}, max_new_tokens={NEW_TOKENS})"


def generate(model: PreTrainedModel, ids: Any, mask: Any) -> Any:
    """What the model writes by always taking the most probable token."""
    generating: Any = model
    pad = model.config.get_text_config().pad_token_id
    return generating.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        num_beams=1,
        use_cache=True,
        pad_token_id=pad,
    )


def _padded_left(values: Any, mask: Any) -> Any:
    """Rows that are padded on the right, padded on the left: a model writes after the last token of a row."""
    import torch

    padding = (mask == 0).sum(dim=1).tolist()
    return torch.stack([row.roll(count) for row, count in zip(values, padding, strict=True)])


GENERATION_ZH: dict[Message | str, str] = {
    PERPLEXITY.title: "困惑度（perplexity）",
}
"""The Chinese of what these tasks share."""

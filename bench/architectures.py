"""Every architecture with a head for text classification: predicted and measured peak memory. Needs ../shared.

Each one is made small from its own config class, with the tokenizer of bert-base-chinese, and trains two steps in a
process of its own. Writes records/architectures.json, case by case: a bench that was interrupted continues. Named cases
are repeated, and with `--again` those that were not trained with a prediction.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from quality import ROOT, SHARED, split

RECORD = ROOT / "records" / "architectures.json"
TOKENIZER = SHARED / "models" / "bert-base-chinese"
ROWS, BATCH, LENGTH, STEPS = 160, 16, 96, 2
RECIPE = "micro-batch:size=16"
SECONDS = 900  # one case, also on a busy machine

_VALUES = {  # the names of a size in the config classes of transformers, and its small value
    6: (
        "num_hidden_layers n_layer n_layers num_layers num_decoder_layers encoder_layers decoder_layers "
        "num_self_attends_per_block num_attention_heads n_head n_heads num_heads encoder_attention_heads "
        "decoder_attention_heads num_self_attention_heads num_cross_attention_heads"
    ),
    384: (
        "hidden_size d_model n_embd dim emb_dim d_latents word_embed_proj_dim entity_emb_size "
        "char_hidden_size hidden_dim_size moe_intermediate_size shared_expert_intermediate_size "
        "moe_shared_expert_intermediate_size q_lora_rank"
    ),
    1536: (
        "intermediate_size ffn_dim d_ff dff hidden_dim encoder_ffn_dim decoder_ffn_dim d_inner feed_forward_size "
        "expert_ffn_hidden_size"
    ),
    64: "head_dim d_kv d_head attention_head_size v_head_dim qk_nope_head_dim qk_rope_head_dim",
    8: "num_experts num_local_experts n_routed_experts",
    2: "num_experts_per_tok moe_topk n_group",
    1: "topk_group first_k_dense_replace",
    512: "max_position_embeddings n_positions max_seq_len",
}
SMALL = {name: value for value, names in _VALUES.items() for name in names.split()}
EXTRA: dict[str, dict[str, Any]] = {  # what a config class checks beside its sizes
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("full_attention", "sliding_attention")
        }
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "hunyuan_v1_dense": {"head_dim": 64},
    "hunyuan_v1_moe": {"head_dim": 64},
    "layoutlmv3": {"coordinate_size": 64, "shape_size": 64},
    "ministral": {"head_dim": 64},
    "mistral4": {"qk_rope_head_dim": 32, "qk_nope_head_dim": 32},
    "mobilebert": {"num_attention_heads": 4},
    "nemotron": {"head_dim": 64, "num_key_value_heads": 6},
    "gpt_neo": {"attention_types": [[["global", "local"], 3]]},
    "reformer": {"axial_pos_embds": False},
    "squeezebert": {"embedding_size": 384},
    "t5": {"decoder_start_token_id": 0},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 3},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="only these architectures")
    parser.add_argument("--minutes", type=float, default=None, help="start no case after this time")
    parser.add_argument("--again", action="store_true", help="repeat what is recorded without a prediction")
    given, start = parser.parse_args(), time.monotonic()
    cases = recorded_cases()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = split(folder, ROWS)
        for architecture in given.names or MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES:
            known = cases.get(architecture)
            if known and not given.names and not (given.again and "predicted" not in known):
                continue
            if given.minutes is not None and time.monotonic() - start > 60 * given.minutes:
                break
            cases[architecture] = case = measure(architecture, data, folder)
            print(architecture, _outcome(case), flush=True)
            save(cases)


def recorded_cases() -> dict[str, dict[str, Any]]:
    return json.loads(RECORD.read_text("utf-8"))["cases"] if RECORD.is_file() else {}


def save(cases: dict[str, dict[str, Any]]) -> None:
    settings = {"rows": BATCH, "length": LENGTH, "steps": STEPS, "recipe": RECIPE, "limit_seconds": SECONDS}
    settings["known"] = len(MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES)
    content = {**settings, "transformers": transformers.__version__, "cases": dict(sorted(cases.items()))}
    RECORD.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _outcome(case: dict[str, Any]) -> str:
    if case.get("predicted"):
        return f"{case['predicted'] / case['measured'] - 1:+.1%}"
    return str(case.get("sentence"))


def measure(architecture: str, data: tuple[Path, Path], folder: Path) -> dict[str, Any]:
    """What a user gets; where that is no prediction, whether transformers alone can train it."""
    model, out = folder / "model", folder / "run"
    for left in (model, out):
        shutil.rmtree(left, ignore_errors=True)
    start = time.monotonic()
    try:
        save_model(architecture, model)
    except Exception as error:
        return {"sentence": f"transformers cannot make its small config: {_first_line(str(error))}"}
    case = train(model, data, out) | {"seconds": round(time.monotonic() - start, 1)}
    return case if case.get("predicted") else case | {"plain": plain_transformers(model)}


def save_model(architecture: str, folder: Path) -> None:
    """A folder with a small config of this architecture and a tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(TOKENIZER)
    tokenizer.save_pretrained(folder)
    tokens = {"vocab_size": len(tokenizer), "pad_token_id": 0, "decoder_start_token_id": 0}
    tokens |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    small_config(CONFIG_MAPPING[architecture], SMALL | tokens, EXTRA.get(architecture, {})).save_pretrained(folder)


def small_config(kind: Any, sizes: dict[str, Any], extra: dict[str, Any]) -> Any:
    """A config of this class: the sizes that it has by these names, also those of the configs inside it."""
    default = kind()
    values: dict[str, Any] = {}
    for name, value in vars(default).items():
        key = _own_name(default, name)
        if isinstance(value, transformers.PretrainedConfig):
            values[key] = small_config(type(value), sizes, {}).to_dict()
        elif key in sizes and (value is not None or key.endswith(("token_id", "vocab_size"))):
            values[key] = sizes[key]
    if heads := getattr(default, "num_key_value_heads", None):
        values["num_key_value_heads"] = 6 if heads == default.num_attention_heads else 2
    return kind(**{**values, **extra})


def _own_name(config: Any, name: str) -> str:
    """hidden_size, where the class calls it n_embd and has the usual name too."""
    return name.removeprefix("_") if name not in type(config).attribute_map else type(config).attribute_map[name]


def train(model: Path, data: tuple[Path, Path], out: Path) -> dict[str, Any]:
    """Train with tightfit as a user would."""
    command: list[object] = [sys.executable, "-m", "tightfit", "train", "--json", "--random-weights"]
    command += ["--max-steps", STEPS, "--model", model, "--data", data[0], "--validation", data[1], "--out", out]
    command += ["--batch-size", BATCH, "--max-length", LENGTH, "--device", "cpu", "--use", RECIPE]
    try:
        done = _run(command)
    except subprocess.TimeoutExpired:
        return {"sentence": f"no end after {SECONDS} seconds"}
    if done.returncode != 0:
        return {"sentence": _last_line(done.stderr), "exit": done.returncode, "traceback": "Traceback" in done.stderr}
    record = json.loads(done.stdout)
    case = {"parameters": record["parameters"], "measured": record["measured"]["peak_bytes"]}
    if record["predicted"]["peak_bytes"] is None:
        notes = [note if isinstance(note, str) else note["text"] for note in record["notes"]]
        return case | {"sentence": next(note for note in notes if "could not be estimated" in note)}
    process = json.loads((out / "start.json").read_text("utf-8"))["estimate"]["overhead_bytes"]
    phases = {"predicted_phases": record["predicted"]["phases"], "measured_phases": record["measured"]["phases"]}
    return case | {"predicted": record["predicted"]["peak_bytes"], "process": process, **phases}


def plain_transformers(model: Path) -> str:
    """'trains', or why one step in plain PyTorch fails."""
    done = _run([sys.executable, "-c", _PLAIN_STEP, model, LENGTH])
    return "trains" if done.returncode == 0 else _last_line(done.stderr)


_PLAIN_STEP = """
import sys
import torch, transformers
folder, length = sys.argv[1], int(sys.argv[2])
config = transformers.AutoConfig.from_pretrained(folder)
config.get_text_config().pad_token_id = 0
model = transformers.AutoModelForSequenceClassification.from_config(config).train()
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
texts = ["房间很好，位置方便" * 20, "不好"]
batch = tokenizer(texts, truncation=True, max_length=length, padding=True, return_tensors="pt")
inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
model(**inputs, labels=torch.tensor([0, 1])).loss.backward()
"""


def _run(command: list[object]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=SECONDS)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")[:400]


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:400]


if __name__ == "__main__":
    main()

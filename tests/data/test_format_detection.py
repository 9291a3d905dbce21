"""Files that hold something else than labelled texts get one sentence: what they seem to be, and what works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tightfit.data.columns import Columns
from tightfit.data.rows import open_data
from tightfit.engine.dataset import read_data
from tightfit.errors import DataError
from tightfit.i18n import render
from tightfit.job import Job
from tightfit.tasks import TASKS, check_format, with_task

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
CONLL = "".join(f"{token}\t{tag}\n" for token, tag in [("In", "O"), ("New", "B-LOC"), ("York", "I-LOC"), (".", "O")])
FLAGS = "id,comment_text,toxic,obscene,insult\n" + "".join(
    f"{n},text,{n % 2},{n // 2 % 2},{n // 4}\n" for n in range(8)
)


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


PARAGRAPH = {"context": "b c", "qas": [{"id": "1", "question": "a", "answers": [{"text": "b", "answer_start": 0}]}]}
_TAGGED = r"tokens with their tags \(columns tokens, tags of lists\): train it with --task token-classification"
_ASKED = r"\(SQuAD\) \(columns question, context, answers\): train it with --task question-answering"
FILES: dict[str, tuple[str, str, str]] = {
    "tabs": ("a.txt", CONLL + "\n" + CONLL, _TAGGED),
    "spaces": ("a.txt", CONLL.replace("\t", " "), _TAGGED),
    "more fields": ("a.txt", CONLL.replace("\t", " NN B-NP "), _TAGGED),
    "words and tags": ("a.csv", "word,tag\n" + CONLL.replace("\t", ","), r"CoNLL\) \(line 3: New B-LOC\)"),
    "token lists": ("a.jsonl", lines({"tokens": ["a", "b"], "ner_tags": [0, 1]}), "columns tokens, ner_tags of lists"),
    "spans": ("a.jsonl", lines({"text": "New York", "label": [[0, 8, "LOC"]]}), r"line 1: \[\[0, 8, 'LOC'\]\]"),
    "entities": ("a.jsonl", lines({"text": "NY", "entities": [{"start": 0, "end": 2}]}), "tags within a text"),
    "messages": (
        "a.jsonl",
        lines({"messages": [{"role": "user", "content": "hi"}]}),
        "chats, or instructions and answers",
    ),
    "conversations": (
        "a.json",
        json.dumps([{"conversations": [{"from": "human", "value": "hi"}]}]),
        "chats, or instructions and answers",
    ),
    "instruction": (
        "a.json",
        json.dumps([{"instruction": "a", "input": "", "output": "b"}]),
        "columns instruction, output",
    ),
    "completion": ("a.jsonl", lines({"prompt": "a", "completion": "b"}), "instructions and answers"),
    "preferences": ("a.jsonl", lines({"prompt": "a", "chosen": "b", "rejected": "c"}), "columns prompt, chosen"),
    "questions": ("a.jsonl", lines({"question": "a", "context": "b", "answers": {"text": ["b"]}}), _ASKED),
    "squad": ("a.json", json.dumps({"version": "2", "data": [{"title": "a", "paragraphs": [PARAGRAPH]}]}), _ASKED),
    "translations": ("a.jsonl", lines({"translation": {"en": "hi", "zh": "嗨"}}), "translations in one column"),
    "summaries": ("a.csv", "document,summary\nlong,short\nlonger,shorter\n", "columns document, summary"),
    "lists of labels": (
        "a.jsonl",
        lines({"text": "a", "labels": ["x", "y"]}),
        r"several labels per text .*\['x', 'y'\]",
    ),
    "flags": ("a.csv", FLAGS, "several labels per text .columns toxic, obscene, insult of 0 and 1"),
    "fastText": (
        "a.txt",
        "__label__1 good, kind\n__label__0 bad\n",
        r"labels of fastText .*: write the label and the text in two",
    ),
    "texts": (
        "a.txt",
        "good\nbad\n",
        r"without labels \(line 1: good\): train a language model .*, or give a file with",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_other_data_is_recognized(tmp_path: Path, name: str) -> None:
    file, content, message = FILES[name]
    (tmp_path / file).write_text(content, "utf-8")
    with pytest.raises(DataError, match=f"a.(txt|csv|json|jsonl) looks like .*{message}") as error:
        read_data(Job(model="m", data=str(tmp_path / file)))
    assert str(error.value).endswith(".")
    assert "看起来是" in render(error.value.message, "zh")


ACCEPTED = {
    "prompts with labels": ("a.csv", "prompt,response,label\n", "{n},text {n},{m}\n", Columns(("response",), ())),
    "flags beside a label": ("a.csv", "text,a,b,c,label\n", "text {n},{m},{m},{m},{m}\n", None),
    "chosen columns": ("a.csv", "instruction,output\n", "text {n},{m}\n", Columns(("instruction",), ("output",))),
    "one tag per token": ("a.csv", "word,label\n", "word{n},{m}\n", None),
    "one label in a list": ("a.jsonl", "", '{{"text": "text {n}", "label": ["{m}"]}}\n', None),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_labelled_texts_are_not_mistaken(tmp_path: Path, name: str) -> None:
    file, header, row, given = ACCEPTED[name]
    (tmp_path / file).write_text(header + "".join(row.format(n=n, m=n % 2) for n in range(20)), "utf-8")
    given = given or Columns()
    text, label = (",".join(part) or None for part in (given.text, given.label))
    assert read_data(Job(model="m", data=str(tmp_path / file), text=text, label=label)).labels.names == ("0", "1")


def test_a_task_accepts_its_own_format_and_others_point_to_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines({"instruction": "a", "output": "b"}), "utf-8")
    classification, instructions = TASKS["text-classification"], TASKS["instruction-tuning"]
    source, _ = open_data(str(tmp_path / "a.jsonl"), instructions)
    check_format(instructions, source, Columns())
    with pytest.raises(DataError, match=r"instructions and answers.*: train it with --task instruction-tuning"):
        check_format(classification, source, Columns())


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared")
def test_the_task_of_real_entities_is_found() -> None:
    job = with_task(Job(model="m", data=str(SHARED / "weibo_ner" / "dev.txt")))
    assert job.task == "token-classification"
    assert {"B-PER.NAM", "I-PER.NAM", "O"} < set(read_data(job).labels.names)


def test_a_task_is_found_only_where_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(CONLL, "utf-8")
    (tmp_path / "b.csv").write_text("text,label\na,0\nb,1\n", "utf-8")
    tagged, labelled = str(tmp_path / "a.txt"), str(tmp_path / "b.csv")
    assert with_task(Job(model="m", data=tagged)).task == "token-classification"
    assert with_task(Job(model="m", data=labelled)).task == "text-classification"
    assert with_task(Job(model="m", data=tagged, task="text-classification")).task == "text-classification"
    assert with_task(Job(model="m", data=tagged, text="1", label="2")).task == "text-classification"

"""Token classification: entities, tags and words, and runs of a tiny model."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import BAD, FILLER, GOOD

from tightfit import Job, evaluate, predict, train
from tightfit.data.columns import Columns
from tightfit.data.labels import Labels
from tightfit.data.row_file import store_rows
from tightfit.data.rows import load_rows
from tightfit.errors import DataError
from tightfit.inference import predict_file
from tightfit.models import load_tokenizer
from tightfit.runs.record import load_run
from tightfit.tasks.base import ModelInputs
from tightfit.tasks.entities import Entity, entity_scores, find_entities, label_score
from tightfit.tasks.token_classification import EntitiesPrediction, TokenClassification, join_words, split_words

TASK = TokenClassification()

# Entities


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-A I-A O B-B", [("A", 0, 2), ("B", 3, 4)]),
        ("B-A B-A I-B", [("A", 0, 1), ("A", 1, 2), ("B", 2, 3)]),
        ("O I-A I-A", [("A", 1, 3)]),  # as conlleval: an I- that follows nothing starts an entity
        ("S-A B-A I-A E-A S-A", [("A", 0, 1), ("A", 1, 4), ("A", 4, 5)]),
        ("U-A B-A L-A", [("A", 0, 1), ("A", 1, 3)]),
        ("A A O B", [("A", 0, 2), ("B", 3, 4)]),
    ],
)
def test_entities_are_read_from_tags(tags: str, expected: list[tuple[str, int, int]]) -> None:
    assert find_entities(tags.split()) == [Entity(*each) for each in expected]


def test_scores_equal_those_of_seqeval() -> None:
    metrics = pytest.importorskip("seqeval.metrics")
    picker, tags = random.Random(0), ["O", "O", "B-PER", "I-PER", "B-LOC", "I-LOC", "S-ORG", "E-ORG", "B-ORG", "I-ORG"]
    for rows in (1, 5, 60):
        truth, predicted = ([picker.choices(tags, k=12) for _ in range(rows)] for _ in range(2))
        scores = entity_scores([(find_entities(a), find_entities(b)) for a, b in zip(truth, predicted, strict=True)])
        right = sum(round(score.recall * score.rows) for score in scores)
        total = label_score("", sum(s.rows for s in scores), sum(s.predicted for s in scores), right)
        assert total.f1 == pytest.approx(metrics.f1_score(truth, predicted))
        assert total.precision == pytest.approx(metrics.precision_score(truth, predicted))
        assert total.recall == pytest.approx(metrics.recall_score(truth, predicted))


def test_metrics_ignore_what_has_no_tag(tiny_model: Path) -> None:
    from transformers import EvalPrediction

    labels = Labels(("B-A", "I-A", "O"))
    truth = np.array([[-100, 0, -100, 1, 2], [-100, 2, 0, -100, -100]])
    predicted = np.array([[2, 0, 2, 1, 2], [0, 0, 2, 1, 1]])
    found = TASK.compute_metrics(EvalPrediction(predicted, truth), _inputs(labels))
    assert found == {"f1": 0.5, "precision": 0.5, "recall": 0.5, "accuracy": 3 / 5}


def _inputs(labels: Labels) -> ModelInputs:
    rows = store_rows([{"tokens": ("a",), "tags": ("O",)}], {"tokens": tuple, "tags": tuple})
    return ModelInputs(rows, rows, object(), labels)  # type: ignore[arg-type]


# Rows


def write_lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def test_rows_whose_tags_do_not_line_up_are_counted(tmp_path: Path) -> None:
    good = {"tokens": ["New", "York"], "ner_tags": ["B-LOC", "I-LOC"]}
    path = write_lines(
        tmp_path / "a.jsonl",
        good,
        {"tokens": ["a", "b"], "ner_tags": ["O"]},
        {"tokens": ["a"], "ner_tags": []},
        {"tokens": [["a"]], "ner_tags": ["O"]},
        {"tokens": ["a"], "ner_tags": [{"tag": "O"}]},
    )
    rows, _ = load_rows(str(path), TASK)
    assert rows.dataset["tokens"] == [("New", "York")]
    assert [note.split(": ", 1)[1] for note in rows.notes] == [
        "1 row with another number of tags than tokens dropped (line 2)",
        "1 row without a label dropped (line 3)",
        "1 row whose tokens are neither a list of words nor a text dropped (line 4)",
        "1 row whose tags are no list dropped (line 5)",
    ]


@pytest.mark.parametrize(
    ("tags", "problem"),
    [
        (["B-PER", "X-PER"], r"the tag 'X-PER' of token 2 of the sentence on line 1 is neither O nor begins with B-"),
        (["B-PER", "b-PER"], "the tag 'b-PER' of token 2"),
        (["O", "O"], "all 2 tokens have the tag 'O': there is nothing to learn from them"),
    ],
)
def test_wrong_tags_are_named(tmp_path: Path, tags: list[str], problem: str) -> None:
    rows, _ = load_rows(str(write_lines(tmp_path / "a.jsonl", {"tokens": ["a", "b"], "tags": tags})), TASK)
    with pytest.raises(DataError, match=problem):
        TASK.find_labels(rows, will_be_split=True)


def test_tags_without_a_prefix_are_entities_by_themselves(tmp_path: Path) -> None:
    rows, _ = load_rows(str(write_lines(tmp_path / "a.jsonl", {"tokens": ["a", "b"], "tags": [0, 3]})), TASK)
    labels, [note] = TASK.find_labels(rows, will_be_split=True)
    assert labels.names == ("0", "3")
    assert "tokens in a row with the same tag other than '0' count as one entity" in note


def test_classes_of_hub_data_sets_are_named(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Sequence, Value

    features = Features({"tokens": Sequence(Value("string")), "ner_tags": Sequence(ClassLabel(names=["O", "B-PER"]))})
    Dataset.from_dict({"tokens": [["Marie"]], "ner_tags": [[1]]}, features=features).save_to_disk(str(tmp_path / "d"))
    rows, _ = load_rows(str(tmp_path / "d"), TASK)
    assert rows.dataset["tags"] == [("B-PER",)]


def test_texts_are_cut_into_words_and_put_together_again() -> None:
    assert split_words("Marie lebt in 北京, seit 2001!") == [
        "Marie",
        "lebt",
        "in",
        "北",
        "京",
        ",",
        "seit",
        "2001",
        "!",
    ]
    assert join_words(["李", "开", "复", "in", "New", "York"]) == "李开复in New York"


# Tokens


def test_the_first_piece_of_each_word_has_its_tag(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_model))
    rows = {"tokens": [("the", "clean-room", "was"), ("a",)], "tags": [("O", "B-A", "I-A"), ("O",)]}
    encoded = TASK.encode(rows, tokenizer, 16, Labels(("B-A", "I-A", "O")))
    assert encoded["labels"][0] == [-100, 2, 0, -100, -100, 1, -100]
    assert encoded["words"][0] == [-1, 0, 1, -1, -1, 2, -1]
    assert TASK.encode(rows, tokenizer, 4, Labels(("B-A", "I-A", "O")))["truncated"] == [1, 0]


# Runs


def write_entities(path: Path, rows: int = 60, seed: int = 0) -> Path:
    """Good words are entities of one type, bad words of another; two in a row are one entity."""
    picker = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(rows):
            before = "O"
            for word in picker.choices([*GOOD, *BAD, *FILLER], k=picker.randint(3, 20)):
                kind = "GOOD" if word in GOOD else "BAD" if word in BAD else "O"
                file.write(f"{word} {kind if kind == 'O' else f'I-{kind}' if kind == before else f'B-{kind}'}\n")
                before = kind
            file.write("\n")
    return path


@pytest.fixture(scope="module")
def tagged(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny model, whose task was found by its data."""
    folder = tmp_path_factory.mktemp("entities")
    data = write_entities(folder / "words.txt")
    job = Job(model=str(tiny_model), data=str(data), batch_size=8, max_length=32, epochs=15, learning_rate=5e-3)
    train(job, ["micro-batch:size=4"], out=folder / "run", device="cpu", quiet=True)
    return folder / "run"


def test_a_run_learns_entities(tagged: Path) -> None:
    run = load_run(tagged)
    assert run.job.task == "token-classification"
    assert run.metrics["eval_f1"] > 0.6
    assert run.metrics["eval_constant_f1"] == 0
    assert run.quality is not None
    assert [label.label for label in run.quality.labels] == ["BAD", "GOOD"]
    scores = evaluate(tagged, device="cpu").metrics
    del scores["eval_loss"]  # its batches have other rows
    assert scores == pytest.approx({name: run.metrics[name] for name in scores})


def test_the_model_finds_spans(tagged: Path, tmp_path: Path) -> None:
    [found] = predict(tagged, ["the room was clean and very dirty"], device="cpu")
    assert isinstance(found, EntitiesPrediction)
    assert [(span.type, span.text, span.start, span.end) for span in found.entities] == [
        ("GOOD", "clean", 13, 18),
        ("BAD", "dirty", 28, 33),
    ]
    data = write_lines(tmp_path / "new.jsonl", {"tokens": ["the", "rude", "staff"]}, {"tokens": []})
    predict_file(tagged, str(data), tmp_path / "out.jsonl", "cpu")
    first, second = (json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines())
    assert first["predicted_tags"] == ["O", "B-BAD", "O"]
    assert first["prediction"][0]["text"] == "rude"
    assert second["prediction"] == ""


def test_reports_name_the_types_of_entities() -> None:
    assert TASK.learned(["`B-LOC`", "`I-LOC`", "`B-PER`", "`O`"]) == "entities: `LOC`, `PER`"
    assert TASK.learned(["NOUN", "VERB"]) == "entities: NOUN, VERB"


def test_columns_by_number(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("EU NNP B-ORG\nrejects VBZ O\n\nGerman JJ B-MISC\ncall NN O\n", "utf-8")
    rows, _ = load_rows(str(path), TASK, Columns(("1",), ("2",)))
    assert rows.dataset["tags"] == [("NNP", "VBZ"), ("JJ", "NN")]

"""The command line: what scripts rely on, and one clear sentence for every mistake."""

from __future__ import annotations

import csv
import errno
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import write_reviews

from tightfit.cli import app

Answer = tuple[int, str, str]
Run = Callable[..., Answer]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call the command line in this process: exit code, standard output, standard error."""

    def call(*words: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["tightfit", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            app.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


def quick(model: Path, data: Path, out: Path) -> list[object]:
    return ["train", "--model", model, "--data", data, "--out", out, "--device", "cpu", "--max-length", 32]


def test_help_is_quick_and_needs_no_torch() -> None:
    script = "import sys; from tightfit.cli import app; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    before = os.times()
    done = subprocess.run([sys.executable, "-m", "tightfit", "--help"], capture_output=True, text=True, check=True)
    after = os.times()
    assert all(verb in done.stdout for verb in ("train", "evaluate", "predict", "strategies", "demo"))
    # The processor's time, which other processes do not lengthen as they do the clock's.
    assert after.children_user + after.children_system - before.children_user - before.children_system < 0.5


def modules_after(code: str) -> list[str]:
    """Which of the large libraries a new process has imported after this."""
    script = f"import sys\n{code}\nprint([name for name in ('torch', 'transformers') if sys.modules.get(name)])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "module",
    [
        "strategies.recipe",
        "strategies",
        "planning.plan",
        "report.terminal",
        "report.i18n",
        "comparison.comparison",
        "api",
    ],
)
def test_what_needs_no_torch_does_not_import_it(module: str) -> None:
    assert modules_after(f"import tightfit.{module}") == ["[]"]


_RUN = """
from tightfit.cli import app
sys.argv = {words!r}
try:
    app.main()
except SystemExit as end:
    print(end.code or 0)
"""


def test_the_list_of_strategies_needs_no_torch() -> None:
    *listed, code, imported = modules_after(_RUN.format(words=["tightfit", "strategies"]))
    assert any(line.startswith("gradient-checkpointing ") for line in listed)
    assert (code, imported) == ("0", "[]")


@pytest.mark.parametrize("verb", ["plan", "train", "estimate"])
def test_a_mistyped_strategy_is_found_without_torch(verb: str, tiny_model: Path, reviews: Path) -> None:
    words = ["tightfit", verb, "--model", str(tiny_model), "--data", str(reviews), "--use", "chekpoint"]
    assert modules_after(_RUN.format(words=words)) == ["2", "[]"]


@pytest.mark.parametrize("verb", ["plan", "estimate"])
def test_the_collector_is_on_again_afterwards(run: Run, verb: str, tiny_model: Path, reviews: Path) -> None:
    """Through a runner they are called in a process that lives on."""
    words = ["--model", tiny_model, "--data", reviews, "--device", "cpu", "--max-length", 32]
    assert run(verb, *words, "--json")[0] == 0
    assert gc.isenabled()
    assert run(verb, *words, "--device", "no such device")[0] == 2
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with app._without_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_train_prints_its_record_and_nothing_else(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    code, out, _ = run(*quick(tiny_model, reviews, tmp_path / "run"), "--use", "micro-batch:size=4", "--json")
    record = json.loads(out)
    assert code == 0
    assert record == json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert record["recipe"] == ["micro-batch:size=4"]
    assert record["steps"] == 2
    assert record["measured"]["peak_bytes"] > 0
    assert record["measured"]["phases"]["backward"] > 0
    assert {"eval_f1", "eval_accuracy", "eval_loss"} <= set(record["metrics"])
    assert "peak_bytes" in record["predicted"]


def test_train_for_people(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    code, out, err = run(*quick(tiny_model, reviews, tmp_path / "run"), "--use", "freeze")
    assert code == 0
    assert "← peak" in out
    assert "recipe    freeze (result: different)" in out
    assert "still train" in err
    assert "54 rows to train on, 6 to validate on" in err


def test_a_job_file_and_the_command_line_over_it(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        f"model: {tiny_model}\ndata: {reviews}\nbatch-size: 16\nmax_length: 32\nuse:\n- micro-batch:size=8\n- checkpoint\n"
    )
    code, out, _ = run("train", job, "--batch-size", 8, "--out", tmp_path / "run", "--device", "cpu", "--json")
    record = json.loads(out)
    assert code == 0
    assert (record["job"]["batch_size"], record["job"]["max_length"]) == (8, 32)
    assert record["recipe"] == ["micro-batch:size=8", "gradient-checkpointing"]
    code, out, _ = run("train", tmp_path / "run" / "job.yaml", "--out", tmp_path / "again", "--device", "cpu", "--json")
    assert code == 0
    assert json.loads(out)["metrics"]["eval_loss"] == pytest.approx(record["metrics"]["eval_loss"])


def test_resume_reads_the_job_from_the_folder(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    assert run(*quick(tiny_model, reviews, tmp_path / "run"), "--json")[0] == 0
    code, out, _ = run("train", "--resume", "--out", tmp_path / "run", "--device", "cpu", "--json")
    assert code == 0
    assert json.loads(out)["steps"] == 2


def test_evaluate(run: Run, trained: Path, tmp_path: Path) -> None:
    code, out, _ = run("evaluate", trained, "--json", "--device", "cpu")
    assert code == 0
    assert json.loads(out)["rows"] == 6
    other = write_reviews(tmp_path / "other.csv", 30, seed=9)
    code, out, _ = run("evaluate", trained, "--data", other, "--device", "cpu")
    assert code == 0
    assert "on 30 rows" in out


def test_predict_texts(run: Run, trained: Path) -> None:
    code, out, _ = run("predict", trained, "clean kind warm", "dirty rude cold", "--json", "--device", "cpu")
    assert code == 0
    assert [answer["label"] for answer in json.loads(out)["predictions"]] == ["1", "0"]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_predict_a_file(run: Run, trained: Path, tmp_path: Path, ending: str) -> None:
    (tmp_path / "new.csv").write_text("id,review\n7,clean kind warm\n8,\n9,dirty rude\n", "gb18030")
    code, _, _ = run("predict", trained, "--data", tmp_path / "new.csv", "--out", tmp_path / f"out.{ending}")
    assert code == 0
    text = (tmp_path / f"out.{ending}").read_text("utf-8-sig")
    if ending == "jsonl":
        rows = [json.loads(line) for line in text.splitlines()]
    else:
        rows = list(csv.DictReader(text.splitlines(), delimiter="," if ending == "csv" else "\t"))
    assert [(row["id"], row["prediction"]) for row in rows] == [("7", "1"), ("8", ""), ("9", "0")]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_half_a_character_is_labelled_too(run: Run, trained: Path, tmp_path: Path, ending: str) -> None:
    (tmp_path / "new.jsonl").write_text('{"review": "clean \\ud83d", "of": "\\ud800"}\n', "utf-8")
    out = tmp_path / f"labelled.{ending}"
    code, _, err = run("predict", trained, "--data", tmp_path / "new.jsonl", "--out", out)
    assert code == 0, err
    assert "clean ?" in out.read_text("utf-8-sig")


def test_a_labelled_file_is_there_whole_or_not_at_all(
    run: Run, trained: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tightfit.inference.csv.DictWriter.writerows", full)
    code, _, err = run("predict", trained, "--data", reviews, "--out", tmp_path / "out" / "labelled.csv")
    assert code == 2
    assert "No space left on device" in err
    assert list((tmp_path / "out").iterdir()) == []


def test_predict_pairs(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    lines = [f"{i % 2},clean room {i},{'kind' if i % 2 else 'rude'} staff" for i in range(20)]
    (tmp_path / "a.csv").write_text("label,premise,hypothesis\n" + "\n".join(lines), "utf-8")
    assert run(*quick(tiny_model, tmp_path / "a.csv", tmp_path / "run"), "--json")[0] == 0
    code, out, _ = run("predict", tmp_path / "run", "clean room", "kind staff", "dirty", "rude", "--json")
    assert code == 0
    assert [answer["text"] for answer in json.loads(out)["predictions"]] == ["clean room + kind staff", "dirty + rude"]
    expect_refused(run("predict", tmp_path / "run", "clean room"), "do not make pairs", None)


def test_a_folder_of_files_is_evaluated_and_labelled_row_by_row(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    """Lines are numbered anew in every file; rows are not."""
    (tmp_path / "data").mkdir()
    for number in (1, 2):
        write_reviews(tmp_path / "data" / f"p{number}.csv", 40, seed=number)
    words = [*quick(tiny_model, tmp_path / "data", tmp_path / "run"), "--batch-size", 8, "--json"]
    code, out, _ = run(*words, "--epochs", 6, "--learning-rate", 5e-3)
    assert code == 0
    assert json.loads(out)["data"]["validation_rows"] == 8
    _, out, _ = run("evaluate", tmp_path / "run", "--json")
    assert json.loads(out)["rows"] == 8
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a.csv").write_text("review\nclean kind warm clean\nrude dirty cold\n", "utf-8")
    (tmp_path / "new" / "b.csv").write_text("review\nrude dirty cold loud\nkind clean warm\n", "utf-8")
    assert run("predict", tmp_path / "run", "--data", tmp_path / "new", "--out", tmp_path / "out.csv")[0] == 0
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text("utf-8-sig").splitlines()))
    assert [row["prediction"] for row in rows] == ["1", "0", "0", "1"]


def test_a_file_without_names_keeps_its_first_row(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    lines = [f"{'clean' if i % 2 else 'dirty'}, room {i}\t{i % 2}" for i in range(20)]
    (tmp_path / "a.tsv").write_text("\n".join(lines), "utf-8")
    train = [*quick(tiny_model, tmp_path / "a.tsv", tmp_path / "run"), "--text", 1, "--label", 2, "--json"]
    assert run(*train)[0] == 0
    assert run("predict", tmp_path / "run", "--data", tmp_path / "a.tsv", "--out", tmp_path / "out.tsv")[0] == 0
    rows = list(csv.DictReader((tmp_path / "out.tsv").read_text("utf-8-sig").splitlines(), delimiter="\t"))
    assert len(rows) == 20
    assert rows[0]["1"] == "dirty, room 0"


def test_the_trained_columns_come_first(run: Run, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "new.jsonl").write_text(
        '{"text": "rude rude dirty", "review": "clean kind warm", "prediction": "mine"}\n'
        '{"review": "dirty rude cold", "stars": 1}\n',
        "utf-8",
    )
    assert run("predict", trained, "--data", tmp_path / "new.jsonl", "--out", tmp_path / "out.csv")[0] == 0
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text("utf-8-sig").splitlines()))
    assert [(row["prediction_2"], row["prediction"], row["stars"]) for row in rows] == [
        ("1", "mine", ""),
        ("0", "", "1"),
    ]
    words = ["predict", trained, "--data", tmp_path / "new.jsonl", "--out", tmp_path / "other.csv", "--text", "text"]
    assert run(*words)[0] == 0
    first, *_ = csv.DictReader((tmp_path / "other.csv").read_text("utf-8-sig").splitlines())
    assert first["prediction_2"] == "0"


def test_a_classifier_for_other_labels_gets_a_new_head(run: Run, trained: Path, tmp_path: Path) -> None:
    lines = [f"{'abc'[i % 3]},clean room {i}" for i in range(30)]
    (tmp_path / "a.csv").write_text("label,review\n" + "\n".join(lines), "utf-8")
    code, out, _ = run(*quick(trained, tmp_path / "a.csv", tmp_path / "run"), "--json")
    assert code == 0
    assert json.loads(out)["data"]["labels"] == ["a", "b", "c"]


def test_weights_of_another_shape_are_refused(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    model = model_without(tiny_model, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "hidden_size": 16}))
    expect_refused(run(*quick(model, reviews, tmp_path / "run")), "are not those of its config", tmp_path / "run")


def test_resume_is_the_same_run_or_none(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train = quick(tiny_model, reviews, folder)
    assert run(*train, "--json")[0] == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    expect_refused(run(*train, "--resume", "--seed", 1), "seed is 1 and was 42", None)
    expect_refused(run(*train, "--resume", "--use", "adafactor"), "the recipe was 'plain' and is 'adafactor'", None)
    expect_refused(run(*train, "--resume", "--use", "freeze"), "the recipe was 'plain' and is 'freeze'", None)
    code, _, err = run(*train, "--resume")
    assert code == 0
    assert "is finished" in err
    reviews.write_text(reviews.read_text() + "1,one more row\n")
    expect_refused(run(*train, "--resume", "--epochs", 2), "The data has changed", None)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_a_torn_checkpoint_is_not_picked(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    train = [*quick(tiny_model, reviews, tmp_path / "run"), "--batch-size", 8, "--json"]
    assert run(*train)[0] == 0
    (tmp_path / "run" / "checkpoint-99").mkdir()  # killed while writing: the trainer's state was to come last
    code, out, _ = run(*train, "--resume", "--epochs", 2)
    assert code == 0
    assert json.loads(out)["steps"] == 14


def test_rehearse(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    words = ["estimate", "--model", tiny_model, "--data", reviews, "--max-length", 32, "--use", "micro-batch:size=4"]
    code, out, _ = run(*words, "--json")
    estimate = json.loads(out)
    assert code == 0
    assert estimate["peak_bytes"] == estimate["overhead_bytes"] + max(
        sum(kinds.values()) for kinds in estimate["phases"].values()
    )
    assert estimate["phase"] in estimate["phases"]
    assert estimate["phases"]["step"]["gradients"] == 4 * estimate["trainable_parameters"]
    code, out, _ = run(*words)
    assert code == 0
    assert " ←" in out
    assert "It fits: this machine's CPU has" in out
    expect_refused(run(*words, "--device", "mps"), "--device cpu", None)
    expect_refused(run("estimate", "--model", tiny_model), "--data is missing", None)


def test_rehearse_for_a_card_that_is_not_here(run: Run, tiny_model: Path, reviews: Path) -> None:
    words = ["estimate", "--model", tiny_model, "--data", reviews, "--max-length", 32]
    code, out, _ = run(*words, "--device", "gtx 1650", "--json")
    estimate = json.loads(out)
    assert code == 0
    assert estimate["device"] == "GTX 1650 4GB"
    assert estimate["fits"] is True
    assert estimate["error_band"][0] <= estimate["peak_bytes"] <= estimate["error_band"][1]
    assert estimate["peak_bytes"] == estimate["overhead_bytes"] + max(
        sum(kinds.values()) for kinds in estimate["phases"].values()
    )
    expect_refused(run(*words, "--device", "rtx 3051"), "did you mean 'RTX 3050", None)


def test_strategies_are_listed(run: Run) -> None:
    code, out, _ = run("strategies")
    assert code == 0
    assert "mixed-precision" in out
    code, out, _ = run("strategies", "--json")
    assert {entry["name"] for entry in json.loads(out)["strategies"]} >= {"micro-batch", "freeze", "max-length"}


GOOD_FILE = "label,review\n" + "".join(f"{i % 2},row {i}\n" for i in range(20))
BAD_FILES = {
    "empty": ("", "is empty"),
    "header only": ("label,review\n", "no rows below it"),
    "one class": ("label,review\n1,a\n1,b\n", "at least two labels"),
    "single label": ("label,review\n1,a\n1,b\n0,c\n", "appears only once, on line 4"),
    "no label column": ("lable,txt,id\n1,a,1\n0,b,2\n", "No text column was found"),
    "no text": ("label,review\n1,\n0,  \n", "is empty in every row"),
    "broken quotes": ('label,review\n1,a\n0,"b\n1,c\n', "line 3: the quotes are broken"),
    "two of a name": ("text,text,label\na,b,1\n", "two columns named 'text'"),
    "no labels": ("label,review\n,a\n,b\n", "'label' holds no label"),
    "too many fields": ("label,review\n1,a,b\n", "line 2 has 3 fields"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(run: Run, tiny_model: Path, tmp_path: Path, name: str) -> None:
    content, says = BAD_FILES[name]
    (tmp_path / "bad.csv").write_text(content, "utf-8")
    expect_refused(run(*quick(tiny_model, tmp_path / "bad.csv", tmp_path / "run")), says, tmp_path / "run")


def test_bytes_that_are_no_text(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_bytes(b"label,review\n1,\xff\xfe\xff\xff\xff\n")
    says = "neither utf-8 nor gb18030 (first bad byte on line 2)"
    expect_refused(run(*quick(tiny_model, tmp_path / "bad.csv", tmp_path / "run")), says, tmp_path / "run")


BAD_WORDS = {
    "missing file": (["--data", "nowhere.csv"], "There is no data file 'nowhere.csv'"),
    "unknown ending": (["--data", "README.docx"], "neither a file here nor a data set"),
    "hub id with a dot": (["--model", "Qwen/Qwen2.5-0.5B"], "cannot be had from the hub"),
    "hub data with a dot": (["--data", "user/reviews-v1.1"], "neither a file here nor a data set"),
    "setting not named": (["--use", "max-length:4"], "write 'max-length:tokens=4'"),
    "nothing frozen": (["--use", "freeze:encoder=false"], "told to freeze nothing"),
    "seed": (["--seed", "99999999999"], "seed is 99999999999"),
    "endless": (["--epochs", "inf"], "epochs is inf"),
    "tracker": (["--report-to", "tensorbord"], "did you mean 'tensorboard'"),
    "no room for text": (["--use", "max-length:tokens=2"], "leave no room for a text"),
    "nothing to resume": (["--resume"], "to go on with: leave out --resume"),
    "label column": (["--label", "lable"], "did you mean 'label'"),
    "text column": (["--text", "revew"], "did you mean 'review'"),
    "unknown strategy": (["--use", "chekpoint"], "did you mean 'checkpoint'"),
    "unknown setting": (["--use", "micro-batch:sise=4"], "did you mean 'size'"),
    "value missing": (["--use", "micro-batch:size"], "has no value"),
    "setting missing": (["--use", "micro-batch"], "'micro-batch' needs its size"),
    "value wrong": (["--use", "micro-batch:size=0"], "micro-batch:size=0 does not work"),
    "value no number": (["--use", "micro-batch:size=big"], "micro-batch:size=big does not work"),
    "no settings": (["--use", "adafactor:lr=1"], "'adafactor' has no settings"),
    "clash": (["--use", "adamw", "--use", "adafactor"], "clash: both choose the optimizer"),
    "twice": (["--use", "micro-batch:size=1", "--use", "micro-batch:size=2"], "one strategy twice"),
    "fp16 on a CPU": (["--use", "mixed-precision:dtype=fp16"], "has no fp16"),
    "max-length strategy": (["--use", "max-length:tokens=40"], "longer than the job's own 32"),
    "frozen layers": (["--use", "freeze:layers=9"], "more than the 2 layers"),
    "too long": (["--max-length", "65"], "more than the 64 positions"),
    "batch size": (["--batch-size", "0"], "batch-size is 0"),
    "batch size without end": (["--batch-size", "10000000000"], "batch-size is 10000000000"),
    "epochs without end": (["--epochs", "1e9"], "epochs is 1000000000"),
    "steps without end": (["--max-steps", "10000000000"], "max-steps is 10000000000"),
    "learning rate": (["--learning-rate", "-1"], "learning-rate is -1"),
    "task": (["--task", "text-clasification"], "did you mean 'text-classification'"),
    "device": (["--device", "cuad"], "did you mean 'cuda'"),
    "no card": (["--device", "cuda:7"], "use --device cpu"),
    "model folder": (["--model", "./nowhere"], "There is no model folder"),
    "hub without a net": (["--model", "nobody/nothing"], "give a local folder"),
    "data on the hub": (["--data", "nobody/nothing"], "neither a file here nor a data set"),
    "validation file": (["--validation", "nowhere.csv"], "There is no data file"),
}


@pytest.mark.parametrize("name", BAD_WORDS)
def test_bad_words(run: Run, tiny_model: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "good.csv").write_text(GOOD_FILE, "utf-8")
    words, says = BAD_WORDS[name]
    expect_refused(run(*quick(tiny_model, tmp_path / "good.csv", tmp_path / "run"), *words), says, tmp_path / "run")


def model_without(tiny_model: Path, target: Path, *patterns: str) -> Path:
    import shutil

    shutil.copytree(tiny_model, target, ignore=shutil.ignore_patterns(*patterns))
    return target


@pytest.mark.parametrize(
    ("patterns", "says"),
    [
        (["config.json"], "has no config.json"),
        (["tokenizer*", "vocab*", "special*"], "has no tokenizer: put tokenizer.json"),
        (["*.safetensors"], "--random-weights"),
    ],
)
def test_half_a_model(
    run: Run, tiny_model: Path, reviews: Path, tmp_path: Path, patterns: list[str], says: str
) -> None:
    model = model_without(tiny_model, tmp_path / "model", *patterns)
    expect_refused(run(*quick(model, reviews, tmp_path / "run")), says, tmp_path / "run")


def test_a_shape_without_a_tokenizer(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    """Of a kind whose tokenizer transformers cannot guess."""
    model = model_without(tiny_model, tmp_path / "model", "tokenizer*", "vocab*", "special*")
    (model / "config.json").write_text('{"model_type": "modernbert"}')
    said = "has no tokenizer: put tokenizer.json"
    expect_refused(run(*quick(model, reviews, tmp_path / "run"), "--random-weights"), said, tmp_path / "run")


@pytest.mark.parametrize("content", ["{broken", "[]", '{"model_type": "nothing-known"}'])
def test_a_broken_config(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path, content: str) -> None:
    model = model_without(tiny_model, tmp_path / "model")
    (model / "config.json").write_text(content)
    expect_refused(run(*quick(model, reviews, tmp_path / "run")), "cannot be loaded", tmp_path / "run")


def test_torn_weights(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    model = model_without(tiny_model, tmp_path / "model")
    content = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(content[: len(content) // 2])
    expect_refused(run(*quick(model, reviews, tmp_path / "run")), "cannot be loaded", tmp_path / "run")


def test_a_pickle_is_not_run(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    import torch

    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "sprung",)

    model = model_without(tiny_model, tmp_path / "model", "*.safetensors")
    torch.save({"weight": Trap()}, model / "pytorch_model.bin")
    expect_refused(run(*quick(model, reviews, tmp_path / "run")), "convert them to safetensors", tmp_path / "run")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("batchsize: 4\n", "did you mean 'batch-size'"),
        ("use: slice\n", "must be a list"),
        ("- a\n- b\n", "'name: value' lines"),
        ("model: [\n", "not readable as YAML"),
        ("epochs: many\n", "epochs is 'many'"),
        ("batch-size: 8\n", "--model is missing"),
    ],
)
def test_bad_job_files(run: Run, tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "job.yaml").write_text(content)
    model = ["--model", "a", "--data", "b"] if "epochs" in content else []
    expect_refused(run("train", tmp_path / "job.yaml", "--out", tmp_path / "run", *model), says, tmp_path / "run")


def test_an_output_that_cannot_be(run: Run, tiny_model: Path, reviews: Path) -> None:
    code, out, err = run(*quick(tiny_model, reviews, reviews / "run"))
    assert (code, out) == (2, "")
    assert "Not a directory" in err
    assert "Traceback" not in err


def test_a_data_file_in_the_place_of_a_job(run: Run, reviews: Path) -> None:
    expect_refused(run("train", reviews), "--data", None)


def test_a_folder_in_use(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    expect_refused(
        run(*quick(tiny_model, reviews, tmp_path)), "add --resume to go on with it, or give another --out", None
    )


def test_predict_wants_something_to_label(run: Run, trained: Path, tmp_path: Path) -> None:
    expect_refused(run("predict", trained), "Give either texts", None)
    expect_refused(run("predict", trained, "--data", "a.csv"), "--data and --out go together", None)
    expect_refused(run("predict", tmp_path, "text"), "is not a finished run", None)
    (tmp_path / "there.csv").write_text("mine")
    expect_refused(
        run("predict", trained, "--data", "a.csv", "--out", tmp_path / "there.csv"), "is there already", None
    )
    assert (tmp_path / "there.csv").read_text() == "mine"


def test_evaluate_on_nothing_but_training_rows(run: Run, trained: Path, tmp_path: Path) -> None:
    import numpy as np

    assert len(np.load(trained / "split" / "train.npy")) == 54
    (tmp_path / "a.csv").write_text("label,review\nx,one\ny,two\n", "utf-8")
    expect_refused(run("evaluate", trained, "--data", tmp_path / "a.csv"), "no row left to evaluate on", None)


def expect_refused(answer: Answer, says: str, folder: Path | None) -> None:
    """Exit code 2, one line that says it, no traceback, nothing printed as a result, nothing written."""
    code, out, err = answer
    assert says in err
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    if folder is not None:
        assert not folder.exists()

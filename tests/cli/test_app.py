"""The command line: the output scripts rely on, and one clear message for every mistake."""

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
from tightfit.cli.prefetch import gc_paused

Output = tuple[int, str, str]
Run = Callable[..., Output]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call the command line in this process: exit code, standard output, standard error."""

    def call(*args: object) -> Output:
        monkeypatch.setattr(sys, "argv", ["tightfit", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            app.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


def train_command(model: Path, data: Path, out: Path) -> list[object]:
    return ["train", "--model", model, "--data", data, "--out", out, "--device", "cpu", "--max-length", 32]


def test_help_is_fast_and_does_not_import_torch() -> None:
    script = "import sys; from tightfit.cli import app; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    out, seconds = fastest([sys.executable, "-m", "tightfit", "--help"], dict(os.environ))
    assert all(verb in out for verb in ("train", "evaluate", "predict", "strategies", "demo"))
    assert seconds < 0.5


def fastest(command: list[str], environment: dict[str, str]) -> tuple[str, float]:
    """The output of a command, and the CPU seconds of the fastest of five calls: other processes slow some down."""
    seconds = []
    for _ in range(5):
        before = os.times()
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        after = os.times()
        seconds.append(sum(after[2:4]) - sum(before[2:4]))  # of child processes, in user and system mode
    return done.stdout, min(seconds)


def modules_after(code: str) -> list[str]:
    """Run code in a new process; returns its output and the large libraries it imported."""
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
        "i18n",
        "comparison.comparison",
        "api",
    ],
)
def test_modules_of_fast_commands_do_not_import_torch(module: str) -> None:
    assert modules_after(f"import tightfit.{module}") == ["[]"]


_RUN = """
from tightfit.cli import app
from tightfit.cli.prefetch import gc_paused
sys.argv = {args!r}
try:
    app.main()
except SystemExit as end:
    print(end.code or 0)
"""


def test_the_strategies_command_does_not_import_torch() -> None:
    *listed, code, imported = modules_after(_RUN.format(args=["tightfit", "strategies"]))
    assert any(line.startswith("gradient-checkpointing ") for line in listed)
    assert (code, imported) == ("0", "[]")


@pytest.mark.parametrize("verb", ["plan", "train", "estimate"])
def test_a_misspelt_strategy_is_reported_without_importing_torch(verb: str, tiny_model: Path, reviews: Path) -> None:
    args = ["tightfit", verb, "--model", str(tiny_model), "--data", str(reviews), "--use", "chekpoint"]
    assert modules_after(_RUN.format(args=args)) == ["2", "[]"]


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["plan", "estimate"])
def test_garbage_collection_is_enabled_again(run: Run, verb: str, tiny_model: Path, reviews: Path) -> None:
    """Commands may be called in a process that continues afterwards."""
    args = ["--model", tiny_model, "--data", reviews, "--device", "cpu", "--max-length", 32]
    assert run(verb, *args, "--json")[0] == 0
    assert gc.isenabled()
    assert run(verb, *args, "--device", "no such device")[0] == 2
    assert gc.isenabled()


def test_disabled_garbage_collection_stays_disabled() -> None:
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_train_json_prints_run_json_and_nothing_else(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    code, out, _ = run(*train_command(tiny_model, reviews, tmp_path / "run"), "--use", "micro-batch:size=4", "--json")
    record = json.loads(out)
    assert code == 0
    assert record == json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert record["recipe"] == ["micro-batch:size=4"]
    assert record["steps"] == 2
    assert record["measured"]["peak_bytes"] > 0
    assert record["measured"]["phases"]["backward"] > 0
    assert {"eval_f1", "eval_accuracy", "eval_loss"} <= set(record["metrics"])
    assert "peak_bytes" in record["predicted"]


def test_train_prints_a_summary(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    code, out, err = run(*train_command(tiny_model, reviews, tmp_path / "run"), "--use", "Freeze")
    assert code == 0
    assert "← peak" in out
    assert "recipe    freeze (result: different)" in out
    assert "still train" in err
    assert "54 training rows, 6 validation rows" in err


@pytest.mark.slow
def test_the_command_line_overrides_the_job_file(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        f"model: {tiny_model}\ndata: {reviews}\nbatch-size: 16\nmax_length: 32\nuse:\n- micro-batch:size=2\n"
    )
    use = ["--use", "micro-batch:size=8, gradient-checkpointing"]  # as a recipe is printed
    code, out, _ = run("train", job, "--batch-size", 8, *use, "--out", tmp_path / "run", "--device", "cpu", "--json")
    record = json.loads(out)
    assert code == 0
    assert (record["job"]["batch_size"], record["job"]["max_length"]) == (8, 32)
    assert record["recipe"] == ["micro-batch:size=8", "gradient-checkpointing"]
    code, out, _ = run("train", tmp_path / "run" / "job.yaml", "--out", tmp_path / "again", "--device", "cpu", "--json")
    assert code == 0
    assert json.loads(out)["metrics"]["eval_loss"] == pytest.approx(record["metrics"]["eval_loss"])


def test_resume_reads_the_job_from_the_run_folder(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    assert run(*train_command(tiny_model, reviews, tmp_path / "run"), "--json")[0] == 0
    code, out, _ = run("train", "--resume", "--out", tmp_path / "run", "--device", "cpu", "--json")
    assert code == 0
    assert json.loads(out)["steps"] == 2


def test_evaluate_on_held_out_rows_and_on_a_file(run: Run, trained: Path, tmp_path: Path) -> None:
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
    assert [row["label"] for row in json.loads(out)["predictions"]] == ["1", "0"]


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
def test_predict_replaces_lone_surrogates(run: Run, trained: Path, tmp_path: Path, ending: str) -> None:
    (tmp_path / "new.jsonl").write_text('{"review": "clean \\ud83d", "of": "\\ud800"}\n', "utf-8")
    out = tmp_path / f"labels.{ending}"
    code, _, err = run("predict", trained, "--data", tmp_path / "new.jsonl", "--out", out)
    assert code == 0, err
    assert "clean ?" in out.read_text("utf-8-sig")


def test_predict_writes_its_file_atomically(
    run: Run, trained: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tightfit.inference.csv.DictWriter.writerows", full)
    code, _, err = run("predict", trained, "--data", reviews, "--out", tmp_path / "out" / "labels.csv")
    assert code == 2
    assert "No space left on device" in err
    assert list((tmp_path / "out").iterdir()) == []


def test_predict_pairs(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    lines = [f"{i % 2},clean room {i},{'kind' if i % 2 else 'rude'} staff" for i in range(20)]
    (tmp_path / "a.csv").write_text("label,premise,hypothesis\n" + "\n".join(lines), "utf-8")
    assert run(*train_command(tiny_model, tmp_path / "a.csv", tmp_path / "run"), "--json")[0] == 0
    code, out, _ = run("predict", tmp_path / "run", "clean room", "kind staff", "dirty", "rude", "--json")
    assert code == 0
    assert [row["text"] for row in json.loads(out)["predictions"]] == ["clean room + kind staff", "dirty + rude"]
    expect_rejected(run("predict", tmp_path / "run", "clean room"), "do not make pairs", None)


def test_a_folder_of_files_is_evaluated_and_predicted_row_by_row(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    """Line numbers restart in every file; row numbers do not."""
    (tmp_path / "data").mkdir()
    for number in (1, 2):
        write_reviews(tmp_path / "data" / f"p{number}.csv", 40, seed=number)
    args = [*train_command(tiny_model, tmp_path / "data", tmp_path / "run"), "--batch-size", 8, "--json"]
    code, out, _ = run(*args, "--epochs", 6, "--learning-rate", 5e-3)
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


def test_a_file_without_a_header_keeps_its_first_row(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    lines = [f"{'clean' if i % 2 else 'dirty'}, room {i}\t{i % 2}" for i in range(20)]
    (tmp_path / "a.tsv").write_text("\n".join(lines), "utf-8")
    train = [*train_command(tiny_model, tmp_path / "a.tsv", tmp_path / "run"), "--text", 1, "--label", 2, "--json"]
    assert run(*train)[0] == 0
    assert run("predict", tmp_path / "run", "--data", tmp_path / "a.tsv", "--out", tmp_path / "out.tsv")[0] == 0
    rows = list(csv.DictReader((tmp_path / "out.tsv").read_text("utf-8-sig").splitlines(), delimiter="\t"))
    assert len(rows) == 20
    assert rows[0]["1"] == "dirty, room 0"


def test_predict_keeps_the_first_line_of_a_text_file(run: Run, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("clean, kind, warm\nrude and dirty\n", "utf-8")
    code, out, err = run("predict", trained, "--data", tmp_path / "texts.txt", "--out", tmp_path / "out.csv")
    assert (code, out) == (0, f"2 rows predicted: {tmp_path / 'out.csv'}\n")
    assert "each line is read as one text" in err
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text("utf-8-sig").splitlines()))
    assert [(row["text"], row["prediction"]) for row in rows] == [("clean, kind, warm", "1"), ("rude and dirty", "0")]


def test_a_run_on_numbered_columns_predicts_a_file_with_a_header(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    lines = [f"{i % 2},{'clean' if i % 2 else 'dirty'} room number {i}" for i in range(20)]
    (tmp_path / "a.csv").write_text("\n".join(lines), "utf-8")
    code, out, _ = run(*train_command(tiny_model, tmp_path / "a.csv", tmp_path / "run"), "--json")
    assert code == 0
    assert json.loads(out)["data"]["train_rows"] == 18
    code, out, _ = run("evaluate", tmp_path / "run", "--json")
    assert json.loads(out)["rows"] == 2
    (tmp_path / "new.csv").write_text("review\nclean room\n", "utf-8")
    assert run("predict", tmp_path / "run", "--data", tmp_path / "new.csv", "--out", tmp_path / "out.csv")[0] == 0
    assert len((tmp_path / "out.csv").read_text("utf-8-sig").splitlines()) == 2


def test_predict_prefers_the_columns_of_the_run(run: Run, trained: Path, tmp_path: Path) -> None:
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
    args = ["predict", trained, "--data", tmp_path / "new.jsonl", "--out", tmp_path / "other.csv", "--text", "text"]
    assert run(*args)[0] == 0
    first, *_ = csv.DictReader((tmp_path / "other.csv").read_text("utf-8-sig").splitlines())
    assert first["prediction_2"] == "0"


def test_a_classifier_for_other_labels_gets_a_new_head(run: Run, trained: Path, tmp_path: Path) -> None:
    lines = [f"{'abc'[i % 3]},clean room {i}" for i in range(30)]
    (tmp_path / "a.csv").write_text("label,review\n" + "\n".join(lines), "utf-8")
    code, out, _ = run(*train_command(trained, tmp_path / "a.csv", tmp_path / "run"), "--json")
    assert code == 0
    assert json.loads(out)["data"]["labels"] == ["a", "b", "c"]


def test_weights_of_another_shape_are_rejected(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    model = model_without(tiny_model, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "hidden_size": 16}))
    expect_rejected(run(*train_command(model, reviews, tmp_path / "run")), "do not match its config", tmp_path / "run")


def test_resume_rejects_changes_of_the_run(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train = train_command(tiny_model, reviews, folder)
    assert run(*train, "--json")[0] == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    expect_rejected(run(*train, "--resume", "--seed", 1), "seed is 1 and was 42", None)
    expect_rejected(run(*train, "--resume", "--use", "adafactor"), "the recipe was 'baseline' and is 'adafactor'", None)
    expect_rejected(run(*train, "--resume", "--use", "freeze"), "the recipe was 'baseline' and is 'freeze'", None)
    code, _, err = run(*train, "--resume")
    assert code == 0
    assert "is finished" in err
    reviews.write_text(reviews.read_text() + "1,one more row\n")
    expect_rejected(run(*train, "--resume", "--epochs", 2), "The data has changed", None)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_resume_skips_an_incomplete_checkpoint(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    train = [*train_command(tiny_model, reviews, tmp_path / "run"), "--batch-size", 8, "--json"]
    assert run(*train)[0] == 0
    (tmp_path / "run" / "checkpoint-99").mkdir()  # killed while writing, before the trainer's state
    code, out, _ = run(*train, "--resume", "--epochs", 2)
    assert code == 0
    assert json.loads(out)["steps"] == 14


def test_estimate(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    args = ["estimate", "--model", tiny_model, "--data", reviews, "--max-length", 32, "--use", "micro-batch:size=4"]
    code, out, _ = run(*args, "--json")
    estimate = json.loads(out)
    assert code == 0
    assert estimate["peak_bytes"] == estimate["overhead_bytes"] + max(
        sum(kinds.values()) for kinds in estimate["phases"].values()
    )
    assert estimate["phase"] in estimate["phases"]
    assert estimate["phases"]["step"]["gradients"] == 4 * estimate["trainable_parameters"]
    code, out, _ = run(*args)
    assert code == 0
    assert " ←" in out
    assert "It fits: this machine's CPU has" in out
    expect_rejected(run(*args, "--device", "mps"), "--device cpu", None)
    expect_rejected(run("estimate", "--model", tiny_model), "--data is missing", None)


def test_estimate_for_an_absent_gpu(run: Run, tiny_model: Path, reviews: Path) -> None:
    args = ["estimate", "--model", tiny_model, "--data", reviews, "--max-length", 32]
    code, out, _ = run(*args, "--device", "gtx 1650", "--json")
    estimate = json.loads(out)
    assert code == 0
    assert estimate["device"] == "GTX 1650 4GB"
    assert estimate["fits"] is True
    assert estimate["error_band"][0] <= estimate["peak_bytes"] <= estimate["error_band"][1]
    assert estimate["peak_bytes"] == estimate["overhead_bytes"] + max(
        sum(kinds.values()) for kinds in estimate["phases"].values()
    )
    expect_rejected(run(*args, "--device", "rtx 3051"), "did you mean 'RTX 3050", None)


def test_strategies_are_listed(run: Run) -> None:
    code, out, _ = run("strategies")
    assert code == 0
    assert "mixed-precision" in out
    code, out, _ = run("strategies", "--json")
    assert {entry["name"] for entry in json.loads(out)["strategies"]} >= {"micro-batch", "freeze", "max-length"}


def test_tasks_are_listed(run: Run) -> None:
    code, out, _ = run("tasks")
    assert code == 0
    assert "text-classification   one label for a text or a pair of texts" in out
    code, out, _ = run("tasks", "--json")
    [listed] = [entry for entry in json.loads(out)["tasks"] if entry["name"] == "text-classification"]
    assert listed["metrics"] == "F1, accuracy, macro F1, MCC, loss"


GOOD_FILE = "label,review\n" + "".join(f"{i % 2},row {i}\n" for i in range(20))
BAD_FILES = {
    "empty": ("", "is empty"),
    "header only": ("label,review\n", "no rows below it"),
    "one class": ("label,review\n1,a\n1,b\n", "at least two labels"),
    "single label": ("label,review\n1,a\n1,b\n0,c\n", "appears only once, on line 4"),
    "no label column": ("lable,txt,id\n1,a,1\n0,b,2\n", "No text column was found"),
    "no text": ("label,review\n1,\n0,  \n", "is empty in every row"),
    "broken quotes": ('label,review\n1,a\n0,"b\n1,c\n', "line 3: invalid quoting"),
    "two of a name": ("text,text,label\na,b,1\n", "two columns named 'text'"),
    "no labels": ("label,review\n,a\n,b\n", "'label' has no labels"),
    "too many fields": ("label,review\n1,a,b\n", "line 2 has 3 fields"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_data_files_are_rejected(run: Run, tiny_model: Path, tmp_path: Path, name: str) -> None:
    content, message = BAD_FILES[name]
    (tmp_path / "bad.csv").write_text(content, "utf-8")
    expect_rejected(run(*train_command(tiny_model, tmp_path / "bad.csv", tmp_path / "run")), message, tmp_path / "run")


def test_undecodable_bytes_are_rejected(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_bytes(b"label,review\n1,\xff\xfe\xff\xff\xff\n")
    message = "neither utf-8 nor gb18030 (first bad byte on line 2)"
    expect_rejected(run(*train_command(tiny_model, tmp_path / "bad.csv", tmp_path / "run")), message, tmp_path / "run")


BAD_OPTIONS = {
    "missing file": (["--data", "nowhere.csv"], "Data file not found: 'nowhere.csv'"),
    "unknown ending": (["--data", "README.docx"], "neither a local file nor a dataset"),
    "hub id with a dot": (["--model", "Qwen/Qwen2.5-0.5B"], "cannot be downloaded from the hub"),
    "hub data with a dot": (["--data", "user/reviews-v1.1"], "neither a local file nor a dataset"),
    "setting without a name": (["--use", "max-length:4"], "write 'max-length:tokens=4'"),
    "nothing frozen": (["--use", "freeze:encoder=false"], "'freeze' has nothing to freeze"),
    "seed": (["--seed", "99999999999"], "seed is 99999999999"),
    "infinite epochs": (["--epochs", "inf"], "epochs is inf"),
    "tracker": (["--report-to", "tensorbord"], "did you mean 'tensorboard'"),
    "no tokens left for text": (["--use", "max-length:tokens=2"], "leaves no tokens for the text"),
    "nothing to resume": (["--resume"], "leave out --resume, or give the folder of a run"),
    "label column": (["--label", "lable"], "did you mean 'label'"),
    "text column": (["--text", "revew"], "did you mean 'review'"),
    "unknown strategy": (["--use", "chekpoint"], "did you mean 'gradient-checkpointing'"),
    "unknown setting": (["--use", "micro-batch:sise=4"], "did you mean 'size'"),
    "value missing": (["--use", "micro-batch:size"], "has no value"),
    "setting missing": (["--use", "micro-batch"], "'micro-batch' needs either the setting 'size' or 'tokens'"),
    "value wrong": (["--use", "micro-batch:size=0"], "'micro-batch:size=0' is not valid"),
    "value no number": (["--use", "micro-batch:size=big"], "'micro-batch:size=big' is not valid"),
    "no settings": (["--use", "adafactor:lr=1"], "'adafactor' has no settings"),
    "clash": (["--use", "adamw", "--use", "adafactor"], "clash: both set the optimizer"),
    "twice": (["--use", "micro-batch:size=1", "--use", "micro-batch:size=2"], "same strategy twice"),
    "fp16 on a CPU": (["--use", "mixed-precision:dtype=fp16"], "has no fp16"),
    "max-length strategy": (["--use", "max-length:tokens=40"], "more than the job's 32 tokens"),
    "frozen layers": (["--use", "freeze:layers=9"], "more than the 2 layers"),
    "too long": (["--max-length", "65"], "more than the 64 positions"),
    "batch size": (["--batch-size", "0"], "batch-size is 0"),
    "huge batch size": (["--batch-size", "10000000000"], "batch-size is 10000000000"),
    "huge epochs": (["--epochs", "1e9"], "epochs is 1000000000"),
    "huge max steps": (["--max-steps", "10000000000"], "max-steps is 10000000000"),
    "learning rate": (["--learning-rate", "-1"], "learning-rate is -1"),
    "task": (["--task", "text-clasification"], "did you mean 'text-classification'"),
    "a GPU": (["--device", "gpu"], "did you mean 'cuda'"),
    "device": (["--device", "cuad"], "did you mean 'cuda'"),
    "no GPU": (["--device", "cuda:7"], "use --device cpu"),
    "model folder": (["--model", "./nowhere"], "There is no model folder"),
    "hub without a network": (["--model", "nobody/nothing"], "give a local folder"),
    "data on the hub": (["--data", "nobody/nothing"], "neither a local file nor a dataset"),
    "validation file": (["--validation", "nowhere.csv"], "Data file not found: 'nowhere.csv'"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_options_are_rejected(run: Run, tiny_model: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "good.csv").write_text(GOOD_FILE, "utf-8")
    options, message = BAD_OPTIONS[name]
    expect_rejected(
        run(*train_command(tiny_model, tmp_path / "good.csv", tmp_path / "run"), *options), message, tmp_path / "run"
    )


def model_without(tiny_model: Path, target: Path, *patterns: str) -> Path:
    import shutil

    shutil.copytree(tiny_model, target, ignore=shutil.ignore_patterns(*patterns))
    return target


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["config.json"], "has no config.json"),
        (["tokenizer*", "vocab*", "special*"], "has no tokenizer: put tokenizer.json"),
        (["*.safetensors"], "--random-weights"),
    ],
)
def test_an_incomplete_model_folder_is_rejected(
    run: Run, tiny_model: Path, reviews: Path, tmp_path: Path, patterns: list[str], message: str
) -> None:
    model = model_without(tiny_model, tmp_path / "model", *patterns)
    expect_rejected(run(*train_command(model, reviews, tmp_path / "run")), message, tmp_path / "run")


def test_a_config_without_a_tokenizer_is_rejected(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    """For a model type whose tokenizer transformers cannot guess."""
    model = model_without(tiny_model, tmp_path / "model", "tokenizer*", "vocab*", "special*")
    (model / "config.json").write_text('{"model_type": "modernbert"}')
    message = "has no tokenizer: put tokenizer.json"
    expect_rejected(
        run(*train_command(model, reviews, tmp_path / "run"), "--random-weights"), message, tmp_path / "run"
    )


@pytest.mark.parametrize("content", ["{broken", "[]", '{"model_type": "nothing-known"}'])
def test_a_broken_config_is_rejected(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path, content: str) -> None:
    model = model_without(tiny_model, tmp_path / "model")
    (model / "config.json").write_text(content)
    expect_rejected(run(*train_command(model, reviews, tmp_path / "run")), "cannot be loaded", tmp_path / "run")


def test_truncated_weights_are_rejected(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    model = model_without(tiny_model, tmp_path / "model")
    content = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(content[: len(content) // 2])
    expect_rejected(run(*train_command(model, reviews, tmp_path / "run")), "cannot be loaded", tmp_path / "run")


def test_pickled_weights_are_not_loaded(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    import torch

    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "sprung",)

    model = model_without(tiny_model, tmp_path / "model", "*.safetensors")
    torch.save({"weight": Trap()}, model / "pytorch_model.bin")
    expect_rejected(
        run(*train_command(model, reviews, tmp_path / "run")), "convert them to safetensors", tmp_path / "run"
    )
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("batchsize: 4\n", "did you mean 'batch-size'"),
        ("use: micro-batch\n", "must be a list"),
        ("- a\n- b\n", "'name: value' lines"),
        ("model: [\n", "not valid YAML"),
        ("epochs: many\n", "epochs is 'many'"),
        ("batch-size: 8\n", "--model is missing"),
    ],
)
def test_bad_job_files_are_rejected(run: Run, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "job.yaml").write_text(content)
    model = ["--model", "a", "--data", "b"] if "epochs" in content else []
    expect_rejected(run("train", tmp_path / "job.yaml", "--out", tmp_path / "run", *model), message, tmp_path / "run")


def test_an_output_path_below_a_file_is_rejected(run: Run, tiny_model: Path, reviews: Path) -> None:
    code, out, err = run(*train_command(tiny_model, reviews, reviews / "run"))
    assert (code, out) == (2, "")
    assert "Not a directory" in err
    assert "Traceback" not in err


def test_a_data_file_in_place_of_a_job_file_is_rejected(run: Run, reviews: Path) -> None:
    expect_rejected(run("train", reviews), "--data", None)


def test_a_folder_in_use_is_rejected(run: Run, tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    expect_rejected(
        run(*train_command(tiny_model, reviews, tmp_path)),
        "add --resume to continue its run, or give another --out",
        None,
    )


def test_predict_rejects_missing_or_conflicting_arguments(run: Run, trained: Path, tmp_path: Path) -> None:
    expect_rejected(run("predict", trained), "Give either texts", None)
    expect_rejected(run("predict", trained, "--data", "a.csv"), "--data and --out go together", None)
    expect_rejected(run("predict", tmp_path, "text"), "is not a finished run", None)
    expect_rejected(run("predict", tmp_path / "nothing", "text"), "There is no run folder", None)
    (tmp_path / "there.csv").write_text("mine")
    expect_rejected(run("predict", trained, "--data", "a.csv", "--out", tmp_path / "there.csv"), "already exists", None)
    assert (tmp_path / "there.csv").read_text() == "mine"


def test_evaluate_rejects_a_file_without_usable_rows(run: Run, trained: Path, tmp_path: Path) -> None:
    import numpy as np

    assert len(np.load(trained / "split" / "train.npy")) == 54
    (tmp_path / "a.csv").write_text("label,review\nx,one\ny,two\n", "utf-8")
    expect_rejected(run("evaluate", trained, "--data", tmp_path / "a.csv"), "none of the labels", None)
    held_out = json.loads((trained / "split" / "validation.json").read_text("utf-8"))["validation_rows"]
    header, *rows = (trained.parent / "reviews.csv").read_text("utf-8").splitlines()
    seen = [row for number, row in enumerate(rows) if number not in held_out]
    (tmp_path / "b.csv").write_text("\n".join([header, *seen]), "utf-8")
    expect_rejected(run("evaluate", trained, "--data", tmp_path / "b.csv"), "no row left to evaluate on", None)


def expect_rejected(output: Output, message: str, folder: Path | None) -> None:
    """Exit code 2, one line with the error, no traceback, nothing on standard output, nothing written."""
    code, out, err = output
    assert message in err
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    assert len([line for line in err.splitlines() if not line.endswith(" …")]) == 1  # what was under way has lines too
    if folder is not None:
        assert not folder.exists()

"""Facts: what was trained and how, as rows of a table; and how long the texts are."""

from __future__ import annotations

from tightfit.beginning import Texts
from tightfit.report.account import Account
from tightfit.report.words import Words
from tightfit.units import format_bytes, format_count

Row = tuple[str, str]


def trained(account: Account, say: Words) -> list[Row]:
    """The model, the data, the parameters."""
    job, data, parameters = account.job, account.data, account.parameters
    weights = f" ({say('random_weights')})" if job.random_weights else ""
    rows = [(say("model"), job.model + weights), (say("task"), job.task), (say("data"), job.data)]
    if data:
        rows.append(("", say("rows", train=f"{data.train_rows:,}", validation=f"{data.validation_rows:,}")))
        rows.append(("", say("columns", text=" + ".join(data.text_columns), label=data.label_column)))
        rows.append((say("labels"), ", ".join(data.labels)))
    if parameters and parameters[1]:
        learn, every = parameters
        of = say("parameters_of", trained=format_count(learn), all=format_count(every), share=f"{learn / every:.1%}")
        rows.append((say("parameters"), of))
    return rows


def how(account: Account, say: Words) -> list[Row]:
    """The recipe's numbers, in the words of the job."""
    job, steps = account.job, account.steps
    budget = account.beginning.budget_bytes if account.beginning else None
    rows = [
        (say("recipe"), " ".join(account.recipe) or say("plain")),
        (say("effect"), say.result(account.result)),
        (say("batch"), say("batch_rows", rows=job.batch_size)),
        (say("text_limit"), say("tokens_count", count=account.max_length)),
        (
            say("schedule"),
            say(
                "schedule_is",
                epochs=f"{job.epochs:g}",
                steps=f"{steps:,}" if steps else "?",
                rate=f"{job.learning_rate:g}",
                decay=f"{job.weight_decay:g}",
                clip=f"{job.max_grad_norm:g}",
            ),
        ),
        (say("seed"), str(job.seed)),
        (say("device"), say.device(account.device or "–")),
    ]
    return [*rows, (say("budget"), format_bytes(budget))] if budget else rows


def strategies(account: Account, say: Words) -> list[Row]:
    """What each strategy of the recipe is for."""
    return [(word, say.strategy(word.partition(":")[0])) for word in account.recipe]


def about_texts(texts: Texts, say: Words) -> list[str]:
    """What padding and cutting cost."""
    padding = say("padding_cost", computed=f"{texts.computed_per_token:.2f}", plain=f"{texts.plain_per_token:.2f}")
    return [padding, _about_cut(texts, say)]


def _about_cut(texts: Texts, say: Words) -> str:
    if not texts.cut_rows:
        return say("cutting_none", limit=texts.limit)
    share = f"{texts.cut_rows / sum(texts.rows):.1%}"
    sentence = say("cutting_cost", rows=f"{texts.cut_rows:,}", share=share, limit=texts.limit)
    if texts.cut_tokens is None or texts.tokens is None:
        return sentence + say("full_stop")
    lost = texts.cut_tokens / (texts.tokens + texts.cut_tokens)
    return sentence + say("cutting_tokens", tokens=f"{texts.cut_tokens:,}", share=f"{lost:.1%}")

"""Instruction tuning: a causal language model learns to answer, from chats or from instructions with their answers.

Chats are written with the template of the tokenizer, as the model will be called later. The loss is that of the
assistant's answers alone, with the token that ends each: the model is to learn answers, not questions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tightfit.data.columns import ColumnNames, Columns
from tightfit.data.format_detection import INSTRUCTIONS, DatasetFormat
from tightfit.data.labels import Labels
from tightfit.data.micro_batches import IGNORED
from tightfit.data.row_file import RowFile, store_rows
from tightfit.data.rows import NO_TEXT, Flaw, Flaws, clean, flaw_note
from tightfit.data.tokens import RowBatch
from tightfit.errors import DataError, ModelError, first_line
from tightfit.messages import Message, msg
from tightfit.tasks.text_generation import GENERATION_ZH, NEW_TOKENS, GenerationTask

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Chat = Sequence[Mapping[str, str]]
Spans = list[tuple[int, int]]

_ASSISTANT, _PROMPT = "assistant", "prompt"
_ROLES = {"human": "user", "gpt": _ASSISTANT, "bot": _ASSISTANT, "model": _ASSISTANT, "completion": _ASSISTANT}
"""What data sets also call them."""
_CHATS = ("messages", "conversations", "conversation", "chat")
_INSTRUCTIONS = (
    ("instruction", "input"), ("instruction", "context"), ("instruction",), ("prompt",), ("query",), ("question",),
)  # fmt: skip
_ANSWERS = ("output", "response", "completion", "answer")
_NOT_A_CHAT = Flaw(msg("whose chat is not a list of roles and contents dropped"), dropped=True)
_NO_ANSWER = Flaw(msg("without an answer of the assistant dropped"), dropped=True)


class InstructionTuning(GenerationTask):
    """Answers to instructions and in chats."""

    name: ClassVar[str] = "instruction-tuning"
    summary: ClassVar[Message] = msg(
        "follow instructions: supervised fine-tuning (SFT) on chats, or on instructions with answers"
    )
    reads: ClassVar[Message] = msg("chats (`messages`), or columns of instructions and answers")
    command: ClassVar[str] = "tightfit train --model HuggingFaceTB/SmolLM2-135M-Instruct --data chats.jsonl"
    column_names: ClassVar[ColumnNames] = ColumnNames(_INSTRUCTIONS, _ANSWERS, whole=_CHATS)
    no_label: ClassVar[Message] = msg("has no answers")
    data_format: ClassVar[DatasetFormat | None] = INSTRUCTIONS
    example: ClassVar[Message] = msg("an instruction")

    def learned(self, labels: Sequence[str]) -> Message:
        return msg("answers instructions")

    # Rows

    def read(self, row: Mapping[str, Any], columns: Columns) -> tuple[dict[str, Any], Flaws]:
        cells = [row.get(name) for name in columns.all]
        if len(cells) == 1 and isinstance(cells[0], (list, tuple)):
            return _read_chat(cells[0])
        return _read_instruction(cells) if columns.label else _read_instruction([*cells, None])

    def describe(self, columns: Columns, labels: Labels) -> Message:
        return msg("chats from {columns}", columns=" + ".join(f"'{column}'" for column in columns.text))

    def text_of(self, row: Mapping[str, Any]) -> str:
        return " ".join(message["content"] for message in row["messages"])

    def known_rows(self, name: str, rows: RowFile, labels: Labels) -> tuple[RowFile, tuple[Message, ...]]:
        """Without the rows that have no answer to learn from."""
        answered = np.array([_has_answer(chat) for chat in rows["messages"]])
        if answered.all():
            return rows, ()
        note = flaw_note(name, _NO_ANSWER.message, np.array(rows["line"])[~answered].tolist())
        if not answered.any():
            raise DataError(msg("{problem}: there is nothing to learn from them.", problem=note))
        return rows.select(np.flatnonzero(answered)), (note,)

    def rows_of(self, texts: Sequence[tuple[str, ...]]) -> RowFile:
        return store_rows(
            ({"messages": _read_instruction([*text, None])[0]["messages"]} for text in texts), {"messages": tuple}
        )

    def pipeline_call(self, texts: Sequence[str], max_length: int) -> str:
        """As a chat, which the pipeline writes with the template of the tokenizer."""
        chat = json.dumps([{"role": "user", "content": "\n\n".join(texts)}], ensure_ascii=False)
        return f"pipe({chat}, max_new_tokens={NEW_TOKENS})"

    # Tokens

    def encode(
        self, rows: RowBatch, tokenizer: PreTrainedTokenizerBase, max_length: int, labels: Labels | None
    ) -> RowBatch:
        lines = rows.get("line", [None] * len(rows["messages"]))
        chats = [_Chat(messages, tokenizer, line) for messages, line in zip(rows["messages"], lines, strict=True)]
        if labels is None:
            ids = [tokenizer(chat.prompt, add_special_tokens=False)["input_ids"][-max_length:] for chat in chats]
            return {"input_ids": ids, "attention_mask": [[1] * len(each) for each in ids]}
        encoded = [_fitting(*chat.encode(), max_length) for chat in chats]
        return {name: [each[name] for each in encoded] for name in encoded[0]}


def _read_chat(messages: Sequence[Any]) -> tuple[dict[str, Any], Flaws]:
    """A list of `role` and `content`, or of `from` and `value`."""
    found, flaws = [], list[Flaw]()
    for message in messages:
        role, content = _message(message)
        if role is None:
            return {"messages": ()}, (_NOT_A_CHAT,)
        text, more = clean(content, limit=None)
        found.append({"role": role, "content": text})
        flaws += [flaw for flaw in more if flaw is not NO_TEXT]
    asked = any(message["role"] != _ASSISTANT and message["content"] for message in found)
    return {"messages": tuple(found)}, (*flaws, *(() if asked else (NO_TEXT,)))


def _message(message: Any) -> tuple[str | None, Any]:
    if not isinstance(message, dict):
        return None, None
    role, content = (message.get(a, message.get(b)) for a, b in (("role", "from"), ("content", "value")))
    return (_ROLES.get(role, role), content) if isinstance(role, str) and isinstance(content, str) else (None, None)


def _read_instruction(cells: Sequence[Any]) -> tuple[dict[str, Any], Flaws]:
    """An instruction, the text that it is about if there is one, and the answer; None where that is to be predicted."""
    if all(isinstance(cell, (list, tuple)) for cell in cells):
        return _read_chat([message for cell in cells for message in cell])
    *asked, answer = (clean(cell, limit=None) for cell in cells)
    prompt = "\n\n".join(text for text, _ in asked if text)
    messages = [{"role": _PROMPT, "content": prompt}]
    if cells[-1] is not None:
        messages.append({"role": _ASSISTANT, "content": answer[0]})
    flaws = dict.fromkeys(flaw for _, found in (*asked, answer) for flaw in found if flaw is not NO_TEXT)
    return {"messages": tuple(messages)}, (*flaws, *(() if prompt else (NO_TEXT,)))


def _has_answer(chat: Chat) -> bool:
    return any(message["role"] == _ASSISTANT and message["content"] for message in chat)


class _Chat:
    """A chat as the text that the model reads."""

    def __init__(self, messages: Chat, tokenizer: PreTrainedTokenizerBase, line: int | None) -> None:
        self.messages, self.tokenizer, self.line = messages, tokenizer, line
        self.is_plain = tokenizer.chat_template is None
        if self.is_plain and any(message["role"] not in (_PROMPT, _ASSISTANT) for message in messages):
            raise ModelError(
                msg(
                    "The model's tokenizer has no chat template, which chats need (line {line}): use the model's "
                    "instruct version, or data with the columns prompt and completion.",
                    line=line or 1,
                )
            )

    @property
    def prompt(self) -> str:
        """What the model answers: everything before the last answer."""
        last = len(self.messages) - (self.messages[-1]["role"] == _ASSISTANT)
        return self._text(last, asks=True)

    def encode(self) -> tuple[list[int], list[int]]:
        """The tokens, and those of them that are answers."""
        text, spans = self._text(len(self.messages)), list(self._answers())
        encoded = self.tokenizer(text, add_special_tokens=self.is_plain, return_offsets_mapping=True)
        ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
        if self.is_plain and ids[-1] != self.tokenizer.eos_token_id:
            ids, offsets = [*ids, self.tokenizer.eos_token_id], [*offsets, (len(text) - 1, len(text))]
        labels = [
            token if any(start <= first < end for start, end in spans) and last > first else IGNORED
            for token, (first, last) in zip(ids, offsets, strict=True)
        ]
        return ids, labels

    def _answers(self) -> Iterator[tuple[int, int]]:
        """Where each answer starts and ends in the text."""
        text = self._text(len(self.messages))
        for number, message in enumerate(self.messages):
            if message["role"] != _ASSISTANT or not message["content"]:
                continue
            before, through = self._text(number, asks=True), self._text(number + 1)
            if not (text.startswith(through) and through.startswith(before)):
                raise ModelError(
                    msg(
                        "The chat template of the model's tokenizer writes earlier messages in another way once there "
                        "are later ones (line {line}): which tokens are answers cannot be told. Use another model.",
                        line=self.line or 1,
                    )
                )
            yield len(before), len(through)

    def _text(self, messages: int, *, asks: bool = False) -> str:
        """The first messages as text, up to where an answer begins if it `asks` for one."""
        chosen = self.messages[:messages]
        if self.is_plain:
            return "\n\n".join([message["content"] for message in chosen] + [""] * asks)
        roles = [{**message, "role": "user"} if message["role"] == _PROMPT else dict(message) for message in chosen]
        try:
            return str(self.tokenizer.apply_chat_template(roles, tokenize=False, add_generation_prompt=asks))
        except Exception as error:  # templates raise errors of their own, of jinja
            raise ModelError(
                msg(
                    "The chat template of the model's tokenizer does not take the chat on line {line} ({reason}): "
                    "correct the chat.",
                    line=self.line or 1,
                    reason=first_line(error).rstrip("."),
                )
            ) from error


def _fitting(ids: list[int], labels: list[int], max_length: int) -> dict[str, Any]:
    """At most this many tokens; of a prompt that leaves no room for its answer, the beginning is cut."""
    answers = [place for place, label in enumerate(labels) if label != IGNORED]
    first = answers[0] if answers else 0
    start = 0 if first < max_length else min(first - max_length // 2, len(ids) - max_length)
    kept = slice(start, start + max_length)
    lost = len(ids) - len(ids[kept])
    return {
        "input_ids": ids[kept],
        "attention_mask": [1] * len(ids[kept]),
        "labels": labels[kept],
        "truncated": int(lost > 0),
        "truncated_tokens": lost,
    }


InstructionTuning.zh = {
    InstructionTuning.reads: "对话（`messages`），或指令和回答两列",
    **GENERATION_ZH,
    InstructionTuning.summary: "指令微调（SFT）：用对话或“指令-回答”数据训练模型按指令回答",
    InstructionTuning.example: "一条指令",
    InstructionTuning.no_label: "没有回答",
    "answers instructions": "回答指令",
    "chats from {columns}": "对话来自 {columns}",
    "whose chat is not a list of roles and contents dropped": "的对话不是由 role 和 content 组成的列表，已丢弃",
    "without an answer of the assistant dropped": "没有助手（assistant）的回答，已丢弃",
    "{problem}: there is nothing to learn from them.": "{problem}：无法从中学习。",
    "The model's tokenizer has no chat template, which chats need (line {line}): use the model's instruct version, or "
    "data with the columns prompt and completion.": (
        "模型的分词器没有对话模板（chat template），而对话数据需要它（第 {line} 行）：请用该模型的 instruct 版本，"
        "或改用带 prompt 和 completion 列的数据。"
    ),
    "The chat template of the model's tokenizer writes earlier messages in another way once there are later ones (line "
    "{line}): which tokens are answers cannot be told. Use another model.": (
        "模型分词器的对话模板在有后续消息时会改写之前的消息（第 {line} 行），无法确定哪些 token 是回答：请换一个模型。"
    ),
    "The chat template of the model's tokenizer does not take the chat on line {line} ({reason}): correct the chat.": (
        "模型分词器的对话模板不接受第 {line} 行的对话（{reason}）：请修改这段对话。"
    ),
}

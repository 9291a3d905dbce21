"""The words of a ladder, in English and Chinese."""

from __future__ import annotations

from tightfit.errors import BadInput, suggest

Words = dict[str, str]

_ENGLISH: Words = {
    "ladder": "Memory ladder",
    "to the end": "trained to the end of the job",
    "steps": "{} steps each",
    "rung": "rung",
    "measured": "peak",
    "foretold": "foretold",
    "moment": "moment",
    "a step": "a step",
    "an epoch": "an epoch",
    "result": "result",
    "shrank": "what changed",
    "against": "against {}",
    "budget": "budget",
    "memory": "memory at the peak, GiB",
    "time": "seconds a step",
    "measured peak": "measured peak",
    "not run": "not run",
    "same": "same",
    "close": "close",
    "different": "different",
    "process": "process",
    "weights": "weights",
    "gradients": "gradients",
    "optimizer state": "optimizer state",
    "activations": "activations",
    "inputs": "inputs",
    "temporary": "temporary",
    "allocator": "held by the allocator",
    "this machine's CPU": "this machine's CPU",
    "load": "load",
    "features": "features",
    "forward": "forward",
    "backward": "backward",
    "step": "step",
    "evaluate": "evaluate",
    "save": "save",
    "load-best": "load-best",
    "between": "between",
}

_CHINESE: Words = {
    "ladder": "内存阶梯",
    "to the end": "完整训练",
    "steps": "每级 {} 步",
    "rung": "配方",
    "measured": "实测峰值",
    "foretold": "预测峰值",
    "moment": "峰值时刻",
    "a step": "每步用时",
    "an epoch": "每轮用时",
    "result": "对结果的影响",
    "shrank": "变化",
    "against": "与 {} 相比",
    "budget": "预算",
    "memory": "峰值时的内存，GiB",
    "time": "每步秒数",
    "measured peak": "实测峰值",
    "not run": "未运行",
    "same": "相同",
    "close": "接近",
    "different": "不同",
    "process": "进程本身",
    "weights": "权重",
    "gradients": "梯度",
    "optimizer state": "优化器状态",
    "activations": "激活值",
    "inputs": "输入",
    "temporary": "临时张量",
    "allocator": "分配器占用",
    "this machine's CPU": "本机 CPU",
    "load": "加载",
    "features": "提取特征",
    "forward": "前向",
    "backward": "反向",
    "step": "更新",
    "evaluate": "评估",
    "save": "保存",
    "load-best": "载入最佳",
    "between": "其间",
}

WORDS = {"en": _ENGLISH, "zh": _CHINESE}


def words_of(language: str) -> Words:
    """The words of a language."""
    if language not in WORDS:
        raise BadInput(f"There is no language '{language}' here: {suggest(language, WORDS)}")
    return WORDS[language]

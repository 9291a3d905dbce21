"""Values in the source of a training script, found without running it."""

from __future__ import annotations

import ast
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_CONVERSIONS = ("int", "float", "str", "Path")


class Source:
    """A parsed script: its calls, and what names, attributes and keys are set to.

    An attribute or a key is found by its name alone, whatever object it belongs to: args.batch_size is the default of
    the option --batch_size, or the field of a dataclass. A parameter is what the function's callers give.
    """

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.nodes = list(ast.walk(self.tree))
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self._names: dict[str, list[ast.expr]] = defaultdict(list)
        self._attributes: dict[str, list[ast.expr]] = defaultdict(list)
        self._values: dict[int, Any] = {}
        self._dicts: dict[int, dict[str, ast.expr]] = {}
        for node in self.nodes:
            self._read(node)

    def value(self, node: ast.expr | None) -> Any:
        """The number, string or boolean that an expression stands for; None if it cannot be told."""
        if node is not None and id(node) not in self._values:
            self._values[id(node)] = None  # while it is looked for: names may stand for each other
            self._values[id(node)] = self._value(node)
        return self._values.get(id(node))

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._first(self._names[node.id] or self._attributes[node.id])
            case ast.Attribute():
                return self._first(self._attributes[node.attr])
            case ast.Subscript(slice=ast.Constant(value=str() as key)):
                return self._first(self._attributes[key])
            case ast.BoolOp(op=ast.Or()):
                return self._first(node.values)
            case ast.UnaryOp(op=ast.USub()):
                number = self.value(node.operand)
                return -number if isinstance(number, (int, float)) else None
            case ast.BinOp():
                return self._computed(node)
            case ast.Call():
                return self._returned(node)
        return None

    def keywords(self, call: ast.Call) -> dict[str, ast.expr]:
        """The keyword arguments of a call, those of an unpacked dict included."""
        found: dict[str, ast.expr] = {}
        for keyword in call.keywords:
            found |= {keyword.arg: keyword.value} if keyword.arg else self._items(keyword.value)
        return found

    def argument(self, call: ast.Call, name: str, position: int | None = None) -> Any:
        """The value of an argument by name or position."""
        given = self.keywords(call).get(name)
        if given is None and position is not None and position < len(call.args):
            given = call.args[position]
        return self.value(given)

    def called(self, *names: str) -> Iterator[ast.Call]:
        """The calls of functions, classes or methods with these names."""
        return (call for call in self.calls if called_name(call) in names)

    def _first(self, nodes: Sequence[ast.expr]) -> Any:
        return next((value for node in nodes if (value := self.value(node)) is not None), None)

    def _computed(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        compute = _OPERATORS.get(type(node.op))
        if compute is None or type(left) not in (int, float) or type(right) not in (int, float):
            return None
        return compute(left, right) if right or not isinstance(node.op, ast.FloorDiv) else None

    def _returned(self, call: ast.Call) -> Any:
        """int(x), a dataclass field's default, or the default of a look-up."""
        name = called_name(call)
        if name in _CONVERSIONS and call.args:
            value = self.value(call.args[0])
            return _converted(name, value)
        if name in ("field", "Field"):
            return self.value(self.keywords(call).get("default"))
        if name in ("get", "getenv") and call.args:
            key = self.value(call.args[0])
            known = self._first(self._attributes[key]) if isinstance(key, str) else None
            return known if known is not None or len(call.args) < 2 else self.value(call.args[1])
        return None

    def _items(self, node: ast.expr) -> dict[str, ast.expr]:
        """The keys and values of a dict, by itself or by its name."""
        if id(node) not in self._dicts:
            self._dicts[id(node)] = {}
            self._dicts[id(node)] = self._find_items(node)
        return self._dicts[id(node)]

    def _find_items(self, node: ast.expr) -> dict[str, ast.expr]:
        if isinstance(node, ast.Name):
            return next((items for each in self._names[node.id] if (items := self._items(each))), {})
        if isinstance(node, ast.Dict):
            keys = zip(node.keys, node.values, strict=True)
            return {key.value: value for key, value in keys if isinstance(key, ast.Constant) and type(key.value) is str}
        if isinstance(node, ast.Call) and called_name(node) == "dict":
            return {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        return {}

    # What is set where.

    def _read(self, node: ast.AST) -> None:
        match node:
            case ast.Assign():
                for target in node.targets:
                    self._assign(target, node.value)
            case ast.AnnAssign() if node.value is not None:
                self._assign(node.target, node.value)
            case ast.ClassDef():
                self._read_class(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._read_parameters(node, node.name)
            case ast.Call() if called_name(node) == "add_argument":
                self._read_option(node)
            case ast.Dict():
                for key, value in self._items(node).items():
                    self._attributes[key].append(value)
            case ast.Call() if called_name(node) in ("dict", "SimpleNamespace", "Namespace", "EasyDict"):
                for keyword in node.keywords:
                    if keyword.arg:
                        self._attributes[keyword.arg].append(keyword.value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        match target:
            case ast.Name():
                self._names[target.id].append(value)
            case ast.Attribute():
                self._attributes[target.attr].append(value)
            case ast.Subscript(slice=ast.Constant(value=str() as key)):
                self._attributes[key].append(value)
            case ast.Tuple() if isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
                for one, each in zip(target.elts, value.elts, strict=True):
                    self._assign(one, each)

    def _read_class(self, node: ast.ClassDef) -> None:
        """Fields, and the parameters of the constructor."""
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and statement.value and isinstance(statement.target, ast.Name):
                self._attributes[statement.target.id].append(statement.value)
            elif isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        self._attributes[target.id].append(statement.value)
            elif isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
                self._read_parameters(statement, node.name)

    def _read_parameters(self, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> None:
        """What the callers give, before the defaults."""
        names = [argument.arg for argument in function.args.args]
        positional = names[1:] if names[:1] in (["self"], ["cls"]) else names
        for call in self.called(name):
            for parameter, given in zip(positional, call.args, strict=False):
                self._names[parameter].append(given)
            for keyword in call.keywords:
                if keyword.arg in names:
                    self._names[keyword.arg].append(keyword.value)
        defaults = function.args.defaults
        for parameter, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            self._names[parameter].append(default)

    def _read_option(self, call: ast.Call) -> None:
        """The default of a command-line option."""
        options = [value for each in call.args if isinstance(value := self.value(each), str)]
        name = self.argument(call, "dest") or next((each for each in options if each.startswith("--")), "")
        default = self.keywords(call).get("default")
        if default is None and self.argument(call, "action") == "store_true":
            default = ast.Constant(False)
        if name and default is not None:
            self._attributes[name.lstrip("-").replace("-", "_")].append(default)


def called_name(call: ast.Call) -> str:
    """The last part of the name that is called: AdamW of torch.optim.AdamW."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _converted(name: str, value: Any) -> Any:
    if name in ("str", "Path"):
        return value if value is None else str(value)
    try:
        return {"int": int, "float": float}[name](value)
    except (TypeError, ValueError):
        return None

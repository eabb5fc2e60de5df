# SPDX-License-Identifier: Apache-2.0
"""A translator from p4c's IR of a program for the Tofino Native Architecture to Python source.

The state of a packet is a dictionary `s`. It contains every field of every header, struct and local variable under its
full name, and a header's validity under `NAME.$valid`. Values are unsigned. Blocks, states, actions, tables and
programs of stateful ALUs become functions of `s`. Parts of the language that this program does not need raise
NotImplementedError.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from p4reduce_targets.sim.program import Action, Parameter
from p4reduce_targets.sim.tables import ExactTable, KeyField, MaskedTable, Table

from .ir import Node, annotation, named

VALID = ".$valid"
BINARY = {"BAnd": "&", "BOr": "|", "BXor": "^"}
RELATION = {"Equ": "==", "Neq": "!=", "Lss": "<", "Leq": "<=", "Grt": ">", "Geq": ">="}
ROLES = ("ingress_parser", "ingress", "ingress_deparser", "egress_parser", "egress", "egress_deparser")


@dataclass(frozen=True)
class LValue:
    """An l-value of the program: its full name, which is its key in `s`, and its type."""

    name: str
    type: Node


@dataclass
class Scope:
    """The meanings of names within a block."""

    block: str
    lvalues: dict[str, LValue]
    actions: dict[str, Node] = field(default_factory=dict)
    tables: dict[str, Node] = field(default_factory=dict)
    instances: dict[str, Node] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)  # of the current action, with their bits


@dataclass
class Translation:
    """The Python source, and the objects that the control plane needs: tables, counters, registers, headers."""

    source: str = ""
    tables: dict[str, Table] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    meters: dict[str, int] = field(default_factory=dict)
    registers: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)  # size, initial words
    template: dict[str, dict[str, int]] = field(default_factory=dict)  # by gress: the initial `s` of a packet
    intrinsic: dict[str, list[tuple[str, int]]] = field(default_factory=dict)  # by gress: the fields before a packet
    port_metadata_bits: int = 0
    hidden: set[str] = field(default_factory=set)  # tables without access for the control plane


class Translator:
    """A translator of one program: call `Translator(program).run()` once."""

    def __init__(self, program: Node) -> None:
        objects = program.objects
        self.types = {node.name: node for node in objects if node.kind.startswith("Type_")}
        self.constants = {node.name: node.initializer for node in named(objects, "Declaration_Constant")}
        self.blocks = {node.name: node for node in objects if node.kind in ("P4Parser", "P4Control")}
        self.instances = {node.name: node for node in named(objects, "Declaration_Instance")}
        self.out = Translation()
        self.lines: list[str] = []
        self.depth = 0
        self.temporaries = 0

    def run(self) -> Translation:
        pipe = self.instances["pipe"]
        for role, argument in zip(ROLES, pipe.arguments, strict=True):
            gress = role.partition("_")[0]
            name = self._block_name(argument.expression)
            self.out.template.setdefault(gress, {})
            (self._parser if role.endswith("_parser") else self._control)(role, gress, self.blocks[name])
        self.out.source = "\n".join(self.lines) + "\n"
        return self.out

    def _block_name(self, expression: Node) -> str:
        if expression.kind == "ConstructorCallExpression":
            return str(expression.constructedType.path.name)
        return str(self.instances[expression.path.name].type.path.name)

    # --- types and l-values -------------------------------------------------------------------------------------------

    def _type(self, node: Node) -> Node:
        """Return the type that a name or typedef stands for."""
        while True:
            if node.kind == "Type_Name":
                node = self.types[node.path.name]
            elif node.kind in ("Type_Typedef", "Type_Newtype"):
                node = node.type
            else:
                return node

    def _leaves(self, name: str, node: Node) -> Iterator[tuple[str, int]]:
        """Yield every name that a variable has in `s`, with its bits."""
        node = self._type(node)
        if node.kind in ("Type_Header", "Type_Struct"):
            if node.kind == "Type_Header":
                yield name + VALID, 1
            for item in node.fields:
                yield from self._leaves(f"{name}.{item.name}", item.type)
        elif node.kind in ("Type_Array", "Type_Stack"):
            for at in range(self._constant(node.size)):
                yield from self._leaves(f"{name}[{at}]", node.elementType)
        elif node.kind in ("Type_Bits", "Type_Boolean", "Type_Error"):
            yield name, self._bits(node)
        else:
            raise NotImplementedError(f"variables of type {node.kind}")

    def _bits(self, node: Node) -> int:
        node = self._type(node)
        if node.kind == "Type_Boolean":
            return 1
        if node.kind == "Type_Error":
            return 16
        if node.kind == "Type_Enum":
            return 32
        if node.kind == "Type_SerEnum":
            return self._bits(node.type)
        if node.kind != "Type_Bits":
            raise NotImplementedError(f"a word of type {node.kind}")
        return int(node.size)

    def _declare(self, gress: str, lvalue: LValue) -> LValue:
        for name, _ in self._leaves(lvalue.name, lvalue.type):
            self.out.template[gress][name] = 0
        return lvalue

    def _lvalue(self, scope: Scope, expression: Node) -> LValue:
        kind = expression.kind
        if kind == "PathExpression":
            return scope.lvalues[expression.path.name]
        if kind == "Member":
            owner = self._lvalue(scope, expression.expr)
            for item in self._type(owner.type).fields:
                if item.name == expression.member:
                    return LValue(f"{owner.name}.{item.name}", item.type)
        if kind == "ArrayIndex":
            stack = self._lvalue(scope, expression.left)
            return LValue(f"{stack.name}[{self._constant(expression.right)}]", self._type(stack.type).elementType)
        raise NotImplementedError(f"an l-value like {expression!r}")

    def _constant(self, expression: Node) -> int:
        if expression.kind == "Constant":
            return int(expression.value)
        if expression.kind == "PathExpression":
            return self._constant(self.constants[expression.path.name])
        if expression.kind == "Cast":
            return self._constant(expression.expr)
        raise NotImplementedError(f"a constant like {expression!r}")

    def _signed(self, scope: Scope, expression: Node) -> bool:
        kind = expression.kind
        if kind == "Cast":
            node = self._type(expression.destType)
            return node.kind == "Type_Bits" and bool(node.isSigned)
        if kind == "Constant":
            return expression.type.kind == "Type_Bits" and bool(expression.type.isSigned)
        if kind in ("Add", "Sub"):
            return self._signed(scope, expression.left)
        return False

    def _width(self, scope: Scope, expression: Node) -> int:
        kind = expression.kind
        if kind == "Constant":
            return self._bits(expression.type)
        if kind == "PathExpression" and expression.path.name in scope.parameters:
            return scope.parameters[expression.path.name]
        if kind == "PathExpression" and expression.path.name not in scope.lvalues:
            return self._width(scope, self.constants[expression.path.name])
        if kind in ("PathExpression", "Member", "ArrayIndex"):
            return self._bits(self._lvalue(scope, expression).type)
        if kind == "Cast":
            return self._bits(expression.destType)
        if kind == "Slice":
            return self._constant(expression.e1) - self._constant(expression.e2) + 1
        if kind == "Concat":
            return self._width(scope, expression.left) + self._width(scope, expression.right)
        if kind in ("Cmpl", "Neg"):
            return self._width(scope, expression.expr)
        if kind == "Mux":
            return self._width(scope, expression.e1)
        if kind in RELATION or kind in ("LAnd", "LOr", "LNot", "BoolLiteral"):
            return 1
        if kind in ("Shl", "Shr"):
            return self._width(scope, expression.left)
        if kind in ("Add", "Sub", "AddSat", "SubSat", *BINARY):
            return max(self._width(scope, side) for side in (expression.left, expression.right))
        if kind == "MethodCallExpression":
            return self._bits(expression.type) if expression.type.kind != "Type_Unknown" else 32
        raise NotImplementedError(f"the width of a {kind}")

    # --- expressions --------------------------------------------------------------------------------------------------

    def _value(self, scope: Scope, expression: Node) -> str:
        """Return Python code for the unsigned value of an expression. Booleans become truth values."""
        kind = expression.kind
        if kind == "Constant":
            bits = expression.type.size if expression.type.kind == "Type_Bits" else 64
            return str(int(expression.value) & ((1 << bits) - 1))
        if kind == "BoolLiteral":
            return str(bool(expression.value))
        if kind == "PathExpression" and expression.path.name in scope.parameters:
            return f"p_{expression.path.name}"
        if kind == "PathExpression" and expression.path.name not in scope.lvalues:
            return self._value(scope, self.constants[expression.path.name])
        if kind in ("PathExpression", "Member", "ArrayIndex"):
            return f"s[{self._lvalue(scope, expression).name!r}]"
        if kind in BINARY:
            return f"({self._value(scope, expression.left)} {BINARY[kind]} {self._value(scope, expression.right)})"
        if kind in RELATION:
            sides = [self._ordered(scope, side) for side in (expression.left, expression.right)]
            return f"({sides[0]} {RELATION[kind]} {sides[1]})"
        if kind in ("Add", "Sub"):
            mask = (1 << self._width(scope, expression)) - 1
            sign = "+" if kind == "Add" else "-"
            left, right = self._value(scope, expression.left), self._value(scope, expression.right)
            return f"(({left} {sign} {right}) & {mask})"
        if kind == "SubSat":
            return f"max(0, {self._value(scope, expression.left)} - {self._value(scope, expression.right)})"
        if kind in ("Shl", "Shr"):
            mask = (1 << self._width(scope, expression)) - 1
            sign = "<<" if kind == "Shl" else ">>"
            return f"(({self._value(scope, expression.left)} {sign} {self._value(scope, expression.right)}) & {mask})"
        if kind == "Cmpl":
            return f"({self._value(scope, expression.expr)} ^ {(1 << self._width(scope, expression)) - 1})"
        if kind == "LNot":
            return f"(not {self._value(scope, expression.expr)})"
        if kind in ("LAnd", "LOr"):
            word = "and" if kind == "LAnd" else "or"
            return f"({self._value(scope, expression.left)} {word} {self._value(scope, expression.right)})"
        if kind == "Mux":
            condition, yes, no = (self._value(scope, part) for part in (expression.e0, expression.e1, expression.e2))
            return f"({yes} if {condition} else {no})"
        if kind == "Concat":
            bits = self._width(scope, expression.right)
            return f"({self._value(scope, expression.left)} << {bits} | {self._value(scope, expression.right)})"
        if kind == "Slice":
            low = self._constant(expression.e2)
            return f"({self._value(scope, expression.e0)} >> {low} & {(1 << self._width(scope, expression)) - 1})"
        if kind == "Cast":
            return f"(int({self._value(scope, expression.expr)}) & {(1 << self._width(scope, expression)) - 1})"
        if kind == "MethodCallExpression":
            return self._call(scope, expression)
        raise NotImplementedError(f"expressions like {kind}")

    def _ordered(self, scope: Scope, expression: Node) -> str:
        """Return Python code for a value that can be compared: a signed one if its type is signed."""
        value = self._value(scope, expression)
        if not self._signed(scope, expression):
            return value
        half = 1 << (self._width(scope, expression) - 1)
        return f"(({value} ^ {half}) - {half})"

    def _call(self, scope: Scope, call: Node) -> str:
        method = call.method
        arguments = [argument.expression for argument in call.arguments]
        if method.kind == "PathExpression":
            if method.path.name in ("min", "max"):
                return f"{method.path.name}({', '.join(self._value(scope, one) for one in arguments)})"
            raise NotImplementedError(f"function {method.path.name}")
        if method.member == "isValid":
            return f"bool(s[{self._lvalue(scope, method.expr).name + VALID!r}])"
        if method.member == "lookahead":
            return f"pkt.ahead({self._bits(call.typeArguments[0])})"
        instance = scope.instances[method.expr.path.name]
        kind = _extern(instance)
        name = f"{scope.block}_{instance.name}"
        if kind == "Random":
            return f"random_bits({self._bits(instance.type.arguments[0])})"
        if kind == "Checksum" and method.member == "verify":
            return f"(internet_checksum({name}) != 0)"
        if kind == "Checksum" and method.member == "update":
            return f"internet_checksum([{self._words(scope, arguments[0])}])"
        raise NotImplementedError(f"{kind}.{method.member} as a value")

    def _words(self, scope: Scope, expression: Node) -> str:
        """Return Python code for the (value, bits) of each part of a list or header."""
        if expression.kind in ("ListExpression", "StructExpression"):
            parts = [getattr(part, "expression", part) for part in expression.components]
            return ", ".join(f"({self._value(scope, one)}, {self._width(scope, one)})" for one in parts)
        lvalue = self._lvalue(scope, expression)
        leaves = [leaf for leaf in self._leaves(lvalue.name, lvalue.type) if not leaf[0].endswith(VALID)]
        return ", ".join(f"(s[{name!r}], {bits})" for name, bits in leaves)

    # --- statements ---------------------------------------------------------------------------------------------------

    def _line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def _body(self, scope: Scope, statements: list[Node]) -> None:
        """Translate statements, with one level more of indentation."""
        self.depth += 1
        before = len(self.lines)
        for statement in statements:
            self._statement(scope, statement)
        if len(self.lines) == before:
            self._line("pass")
        self.depth -= 1

    def _statement(self, scope: Scope, node: Node) -> None:
        kind = node.kind
        if kind == "BlockStatement":
            for one in node.components:
                self._statement(scope, one)
        elif kind == "AssignmentStatement":
            self._assign(scope, node.left, node.right)
        elif kind == "IfStatement":
            self._line(f"if {self._condition(scope, node.condition)}:")
            self._body(scope, [node.ifTrue])
            if getattr(node, "ifFalse", None) is not None:
                self._line("else:")
                self._body(scope, [node.ifFalse])
        elif kind == "MethodCallStatement":
            self._call_statement(scope, node.methodCall)
        elif kind == "SwitchStatement":
            self._switch(scope, node)
        elif kind == "Declaration_Variable":
            if getattr(node, "initializer", None) is not None:
                self._store(scope.lvalues[node.name], self._value(scope, node.initializer))
        elif kind != "EmptyStatement":
            raise NotImplementedError(f"statements like {kind}")

    def _condition(self, scope: Scope, expression: Node) -> str:
        """Return Python code for a condition. It may be `table.apply().hit`."""
        if expression.kind == "LNot":
            return f"not {self._condition(scope, expression.expr)}"
        if expression.kind == "Member" and expression.member in ("hit", "miss"):
            table = expression.expr.method.expr.path.name
            return f"{'not ' if expression.member == 'miss' else ''}table_{scope.block}_{table}(s)[0]"
        return self._value(scope, expression)

    def _assign(self, scope: Scope, left: Node, right: Node) -> None:
        if right.kind == "MethodCallExpression" and right.method.kind == "Member" and right.method.member == "execute":
            instance = scope.instances[right.method.expr.path.name]
            if _extern(instance) == "Meter":
                index = self._value(scope, right.arguments[0].expression)
                self._store(self._lvalue(scope, left), f"colour({self._name(scope, instance)!r}, {index})")
            else:
                self._execute(scope, right, left)
        elif right.kind == "Member" and right.member in ("hit", "miss"):
            self._store(self._lvalue(scope, left), self._condition(scope, right))
        elif left.kind == "Slice":
            lvalue = self._lvalue(scope, left.e0)
            low, high = self._constant(left.e2), self._constant(left.e1)
            mask = ((1 << (high - low + 1)) - 1) << low
            rest = ((1 << self._bits(lvalue.type)) - 1) ^ mask
            value = self._value(scope, right)
            self._store(lvalue, f"s[{lvalue.name!r}] & {rest} | {value} << {low}")
        else:
            lvalue = self._lvalue(scope, left)
            if self._type(lvalue.type).kind in ("Type_Header", "Type_Struct"):
                source = self._lvalue(scope, right)
                pairs = zip(self._leaves(lvalue.name, lvalue.type), self._leaves(source.name, source.type), strict=True)
                for (to, _), (of, _) in pairs:
                    self._line(f"s[{to!r}] = s[{of!r}]")
            else:
                self._store(lvalue, self._value(scope, right))

    def _store(self, lvalue: LValue, value: str) -> None:
        self._line(f"s[{lvalue.name!r}] = {value}")

    def _execute(self, scope: Scope, call: Node, to: Node | None) -> None:
        """Translate the execution of a stateful ALU.

        Its first result is that of the call. Further results go to the arguments after the index.
        """
        name = f"alu_{scope.block}_{call.method.expr.path.name}"
        index, *others = (argument.expression for argument in call.arguments)
        self._line(f"results = {name}(s, {self._value(scope, index)})")
        for number, one in enumerate([to, *others]):
            if one is not None:
                self._store(self._lvalue(scope, one), f"results[{number}]")

    def _call_statement(self, scope: Scope, call: Node) -> None:
        method = call.method
        arguments = [argument.expression for argument in call.arguments]
        if method.kind == "PathExpression":
            values = ", ".join(["s", *(self._value(scope, one) for one in arguments)])
            self._line(f"action_{scope.block}_{method.path.name}({values})")
        elif method.member in ("setValid", "setInvalid"):
            self._line(f"s[{self._lvalue(scope, method.expr).name + VALID!r}] = {int(method.member == 'setValid')}")
        elif method.expr.kind == "PathExpression" and method.expr.path.name in scope.tables:
            self._line(f"table_{scope.block}_{method.expr.path.name}(s)")
        elif method.expr.kind == "PathExpression" and method.expr.path.name == "pkt":
            self._packet_call(scope, method.member, arguments)
        else:
            instance = scope.instances[method.expr.path.name]
            kind = _extern(instance)
            if method.member == "execute":
                self._execute(scope, call, None)
            elif kind == "Counter" and method.member == "count":
                index, *surplus = (self._value(scope, one) for one in arguments)
                size = " - ".join(["s['$counted']", *surplus])
                self._line(f"count({self._name(scope, instance)!r}, {index}, {size})")
            elif kind == "DirectCounter" and method.member == "count":
                size = " - ".join(["s['$counted']", *(self._value(scope, one) for one in arguments)])
                self._line(f"count_entry(s, {size})")
            elif kind == "Resubmit" and not arguments:
                self._line("s['$resubmitted'] = 1")
            elif kind == "Checksum" and method.member == "add":
                self._line(f"{scope.block}_{instance.name} = [{self._words(scope, arguments[0])}]")
            else:
                raise NotImplementedError(f"{kind}.{method.member}")

    def _packet_call(self, scope: Scope, method: str, arguments: list[Node]) -> None:
        if method == "advance":
            self.out.port_metadata_bits = self._constant(arguments[0])  # the only bits that this program skips
            self._line(f"pkt.advance({self.out.port_metadata_bits})")
            return
        lvalue = self._lvalue(scope, arguments[0])
        stack = self._type(lvalue.type)
        lvalues = [lvalue]
        if stack.kind in ("Type_Array", "Type_Stack"):
            lvalues = [LValue(f"{lvalue.name}[{at}]", stack.elementType) for at in range(self._constant(stack.size))]
        for one in lvalues:
            fields = [leaf for leaf in self._leaves(one.name, one.type) if not leaf[0].endswith(VALID)]
            self._line(f"pkt.{method}(s, {one.name + VALID!r}, {fields!r})")

    def _switch(self, scope: Scope, node: Node) -> None:
        expression = node.expression
        if expression.kind != "Member" or expression.member != "action_run":
            raise NotImplementedError("a switch on anything but the action that a table ran")
        table = expression.expr.method.expr.path.name
        self.temporaries += 1
        ran = f"ran{self.temporaries}"
        self._line(f"{ran} = table_{scope.block}_{table}(s)[1]")
        named_labels = tuple(case.label.path.name for case in node.cases if case.label.kind != "DefaultExpression")
        labels: list[str] = []
        for case in node.cases:
            default = case.label.kind == "DefaultExpression"
            if not default:
                labels.append(case.label.path.name)
            if getattr(case, "statement", None) is not None:
                self._line(f"if {ran} not in {named_labels!r}:" if default else f"if {ran} in {tuple(labels)!r}:")
                self._body(scope, [case.statement])
                labels = []

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _name(self, scope: Scope, node: Node) -> str:
        """Return the name of an object in the control plane."""
        return (annotation(node, "name") or f"{scope.block}.{node.name}").removeprefix(".")

    def _scope(self, gress: str, block: Node, locals_: list[Node]) -> Scope:
        scope = Scope(block.name, {})
        for parameter in block.type.applyParams.parameters:
            kind = self._type(parameter.type)
            if kind.kind != "Type_Extern":
                scope.lvalues[parameter.name] = self._declare(
                    gress, LValue(kind.name if hasattr(kind, "fields") else parameter.name, kind)
                )
        for node in locals_:
            if node.kind == "Declaration_Variable":
                scope.lvalues[node.name] = self._declare(gress, LValue(f"{block.name}.{node.name}", node.type))
            elif node.kind == "Declaration_Constant":
                self.constants[node.name] = node.initializer
            elif node.kind == "Declaration_Instance":
                scope.instances[node.name] = node
            elif node.kind == "P4Action":
                scope.actions[node.name] = node
            elif node.kind == "P4Table":
                scope.tables[node.name] = node
        return scope

    def _control(self, role: str, gress: str, block: Node) -> None:
        scope = self._scope(gress, block, [*block.controlLocals, *_variables(block.body)])
        for instance in scope.instances.values():
            self._instance(scope, gress, instance)
        for action in scope.actions.values():
            parameters = {p.name: self._bits(p.type) for p in action.parameters.parameters}
            self._line(
                f"def action_{scope.block}_{action.name}({', '.join(['s', *(f'p_{name}' for name in parameters)])}):"
            )
            inner = Scope(**{**scope.__dict__, "parameters": parameters, "lvalues": dict(scope.lvalues)})
            for variable in _variables(action.body):
                inner.lvalues[variable.name] = self._declare(
                    gress, LValue(f"{block.name}.{action.name}.{variable.name}", variable.type)
                )
            self._body(inner, [action.body])
        for table in scope.tables.values():
            self._table(scope, table)
        packet = ", pkt" if role.endswith("deparser") else ""
        self._line(f"def {role}(s{packet}):")
        self._body(scope, [block.body])

    def _instance(self, scope: Scope, gress: str, instance: Node) -> None:
        kind = _extern(instance)
        if kind == "Counter":
            self.out.counters[self._name(scope, instance)] = self._constant(instance.arguments[0].expression)
        elif kind == "Meter":
            self.out.meters[self._name(scope, instance)] = self._constant(instance.arguments[0].expression)
        elif kind == "Register":
            words = list(self._leaves("", instance.type.arguments[0]))
            initial = [0] * len(words)
            if len(instance.arguments) == 2:
                first = instance.arguments[1].expression
                parts = (
                    [getattr(one, "expression", one) for one in first.components]
                    if hasattr(first, "components")
                    else [first]
                )
                initial = [self._constant(one) for one in parts]
            self.out.registers[self._name(scope, instance)] = (
                self._constant(instance.arguments[0].expression),
                tuple(initial),
            )
        elif kind.startswith("RegisterAction"):
            self._alu(scope, gress, instance)

    def _alu(self, scope: Scope, gress: str, instance: Node) -> None:
        """Translate the program of a stateful ALU.

        It reads the words at an index, computes, writes them back, and returns its results.
        """
        register = scope.instances[instance.arguments[0].expression.path.name]
        apply = next(node for node in instance.initializer.components if node.kind == "Function")
        stored, *results = apply.type.parameters.parameters
        inner = Scope(**{**scope.__dict__, "lvalues": dict(scope.lvalues)})
        prefix = f"{scope.block}.{instance.name}"
        for parameter in (stored, *results):
            inner.lvalues[parameter.name] = self._declare(gress, LValue(f"{prefix}.{parameter.name}", parameter.type))
        for variable in _variables(apply.body):
            inner.lvalues[variable.name] = self._declare(gress, LValue(f"{prefix}.{variable.name}", variable.type))
        words = [name for name, _ in self._leaves(f"{prefix}.{stored.name}", stored.type)]
        self._line(f"def alu_{scope.block}_{instance.name}(s, index):")
        self.depth += 1
        self._line(f"cells = registers[{self._name(scope, register)!r}]")
        for number, word in enumerate(words):
            self._line(f"s[{word!r}] = cells[{number}][index]")
        self.depth -= 1
        self._body(inner, [apply.body])
        self.depth += 1
        for number, word in enumerate(words):
            self._line(f"cells[{number}][index] = s[{word!r}]")
        self._line(f"return ({''.join(f's[{inner.lvalues[p.name].name!r}], ' for p in results)})")
        self.depth -= 1

    def _table(self, scope: Scope, table: Node) -> None:
        properties = {item.name: item for item in table.properties.properties}
        elements = properties["key"].value.keyElements if "key" in properties else []
        calls = [_callee(item.expression) for item in properties["actions"].value.actionList]
        default = properties["default_action"].value.expression if "default_action" in properties else None
        values = "".join(f"int({self._condition(scope, element.expression)}), " for element in elements)
        name = f"{scope.block}_{table.name}"
        fields = [
            KeyField(annotation(e, "name") or "", self._key_bits(scope, e.expression), e.matchType.path.name)
            for e in elements
        ]
        actions = [
            Action(
                n,
                self._name(scope, scope.actions[call]) if call in scope.actions else call,
                self._parameters(scope, call),
                (),
            )
            for n, call in enumerate(calls)
        ]
        kind = ExactTable if all(one.match == "exact" for one in fields) else MaskedTable
        size = self._constant(properties["size"].value.expression) if "size" in properties else 1024
        counts = "counters" in properties
        made = kind(self._name(scope, table), fields, actions, size, counts)
        constant_entries: list[tuple[tuple[tuple[int, int], ...], tuple[int, ...], int]] = []
        if "entries" in properties:
            made.constant_entries = True
            for entry in properties["entries"].value.entries:
                keys = tuple(self._mask(one, f.bits) for one, f in zip(entry.keys.components, fields, strict=True))
                number = calls.index(_callee(entry.action))
                arguments = tuple(self._constant(one.expression) for one in getattr(entry.action, "arguments", []))
                constant_entries.append((keys, arguments, number))
        self.out.tables[made.name] = made
        if annotation(table, "hidden") is not None:
            self.out.hidden.add(made.name)
        miss = (-1, None)
        if default is not None:
            arguments = tuple(self._constant(one.expression) for one in getattr(default, "arguments", []))
            miss = (calls.index(_callee(default)), None, *arguments)
        made.program_default = made.default[0] = miss
        made.constant_default = "default_action" in properties and bool(properties["default_action"].isConstant)
        # A lookup returns (action number, counter, arguments ...), as that of a table of the control plane does.
        if constant_entries:
            self._line(f"lookup_{name} = first_match({constant_entries!r})")
        elif kind is ExactTable:
            self._line(f"lookup_{name} = exact(tables[{made.name!r}])")
        else:
            self._line(f"lookup_{name} = tables[{made.name!r}].lookup")
        functions = "".join(
            f"action_{scope.block}_{call}, " if call in scope.actions else "no_action, " for call in calls
        )
        self._line(f"actions_{name} = ({functions}no_action)")
        self._line(f"names_{name} = {(*calls, '')!r}")
        self._line(f"default_{name} = tables[{made.name!r}].default")
        self._line(f"def table_{name}(s):")
        self.depth += 1
        self._line(f"entry = lookup_{name}({values})" if elements else "entry = None")
        self._line(f"number, cell, *arguments = default_{name}[0] if entry is None else entry")
        if counts:  # the actions decide whether to count
            self._line("s['$entry'] = cell")
        self._line(f"actions_{name}[number](s, *arguments)")
        self._line(f"return entry is not None, names_{name}[number]")
        self.depth -= 1

    def _key_bits(self, scope: Scope, expression: Node) -> int:
        if expression.kind == "MethodCallExpression":
            return 1
        return self._width(scope, expression)

    def _parameters(self, scope: Scope, action: str) -> tuple[Parameter, ...]:
        if action not in scope.actions:
            return ()
        parameters = scope.actions[action].parameters.parameters
        return tuple(Parameter(annotation(p, "name") or p.name, self._bits(p.type), "") for p in parameters)

    def _mask(self, expression: Node, bits: int) -> tuple[int, int]:
        """Return the (value, mask) of a constant keyset."""
        full = (1 << bits) - 1
        if expression.kind == "DefaultExpression":
            return 0, 0
        if expression.kind == "Mask":
            mask = self._constant(expression.right) & full
            return self._constant(expression.left) & mask, mask
        if expression.kind == "BoolLiteral":
            return int(expression.value), full
        return self._constant(expression) & full, full

    def _parser(self, role: str, gress: str, block: Node) -> None:
        scope = self._scope(gress, block, block.parserLocals)
        for state in block.states:
            for variable in named(state.components, "Declaration_Variable"):
                scope.lvalues[variable.name] = self._declare(
                    gress, LValue(f"{block.name}.{variable.name}", variable.type)
                )
        self.out.intrinsic[gress] = []
        for parameter in block.type.applyParams.parameters:
            kind = self._type(parameter.type)
            if kind.kind == "Type_Header":
                fields = self._leaves(kind.name, kind)
                self.out.intrinsic[gress] = [leaf for leaf in fields if not leaf[0].endswith(VALID)]
        for state in block.states:
            if state.name in ("accept", "reject"):
                continue
            self._line(f"def state_{block.name}_{state.name}(s, pkt):")
            self._body(scope, state.components)
            self.depth += 1
            select = state.selectExpression
            if select.kind == "PathExpression":
                self._line(f"return {select.path.name!r}")
            else:
                parts = select.select.components
                self._line(f"key = ({''.join(f'int({self._value(scope, one)}), ' for one in parts)})")
                for case in select.selectCases:
                    keyset = case.keyset
                    items = keyset.components if keyset.kind == "ListExpression" else [keyset] * len(parts)
                    tests = []
                    for at, (item, part) in enumerate(zip(items, parts, strict=True)):
                        value, mask = self._mask(item, self._width(scope, part))
                        if mask:
                            tests.append(f"key[{at}] & {mask} == {value}")
                    self._line(f"if {' and '.join(tests) or 'True'}:")
                    self._line(f"    return {case.state.path.name!r}")
                self._line("return 'reject'")
            self.depth -= 1
        self._line(f"def {role}(s, pkt):")
        names = ", ".join(
            f"{s.name!r}: state_{block.name}_{s.name}" for s in block.states if s.name not in ("accept", "reject")
        )
        self._line(f"    run_states({{{names}}}, s, pkt)")


def _extern(instance: Node) -> str:
    kind = instance.type
    return str((kind.baseType if kind.kind == "Type_Specialized" else kind).path.name)


def _callee(expression: Node) -> str:
    method = expression.method if expression.kind == "MethodCallExpression" else expression
    return str(method.path.name)


def _variables(body: Node) -> Iterator[Node]:
    """Yield the variables that are declared within a block."""
    for node in getattr(body, "components", []):
        if node.kind == "Declaration_Variable":
            yield node
        elif node.kind == "BlockStatement":
            yield from _variables(node)
        elif node.kind == "IfStatement":
            yield from _variables(node.ifTrue)
            if getattr(node, "ifFalse", None) is not None:
                yield from _variables(node.ifFalse)

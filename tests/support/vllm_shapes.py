"""Compares what the connector relies on of vLLM with the sources of one vLLM.

Nothing is run. What is relied on is what `vllm_names.py` declares, which is what type checkers
hold the connector to, and what the connector's modules do with objects that vLLM hands to them.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import griffe

_METADATA = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata"
_SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"
_SPIN = "vllm.distributed.device_communicators.shm_broadcast.SpinCondition"
# What vLLM hands over, by what the connector's modules call it.
_HANDED = {
    "request": "vllm.v1.request.Request",
    "scheduler_output": "vllm.v1.core.sched.output.SchedulerOutput",
    "connector_output": "vllm.v1.outputs.KVConnectorOutput",
    "meta.remote": f"{_METADATA}.RemoteMeta",
    "parallel": "vllm.config.parallel.ParallelConfig",
    "transfer": "vllm.config.kv_transfer.KVTransferConfig",
    "self._pool": "vllm.v1.core.block_pool.BlockPool",
    "pool": "vllm.v1.core.block_pool.BlockPool",
    "core": "vllm.v1.engine.core.EngineCoreProc",
    "core_class": "vllm.v1.engine.core.EngineCoreProc",
    "core.scheduler": _SCHEDULER,
    "scheduler": _SCHEDULER,
    "condition": _SPIN,
    "condition_class": _SPIN,
}
# What takes whatever arguments there are.
_OPEN = (griffe.ParameterKind.var_positional, griffe.ParameterKind.var_keyword)


class Reliance:
    """What the connector relies on.

    Args:
        package: The connector's folder.

    Attributes:
        names: The full name in vLLM of each thing that is declared.
        classes: The declared ones among them.
        ours: The connector's classes, each with the declared one that it extends.
        accesses: Attributes of objects handed over, as (vLLM's class, attribute).

    """

    def __init__(self, package: Path) -> None:
        declarations = package / "vllm_names.py"
        self.names, branch = _declarations(ast.parse(declarations.read_text()))
        module = griffe.visit("declared", declarations, branch)
        self.classes = {
            name: member
            for name, member in module.members.items()
            if isinstance(member, griffe.Class)
        }
        modules = {path: path.read_text() for path in sorted(package.glob("*.py"))}
        self.ours = [
            (base, member)
            for path, code in modules.items()
            for member in griffe.visit(path.stem, path, code).members.values()
            if isinstance(member, griffe.Class)
            for base in map(str, member.bases)
            if base in self.classes
        ]
        self._overridden = {(base, name) for base, ours in self.ours for name in ours.members}
        self.accesses = {
            (_HANDED[text], attribute)
            for path, code in modules.items()
            if path != declarations
            for node in ast.walk(ast.parse(code))
            for text, attribute in _accesses(node)
            if text in _HANDED
        }

    def is_overridden(self, name: str, member: str) -> bool:
        """Whether the connector has its own version of a declared method, which vLLM calls."""
        return (name, member) in self._overridden

    def members_of(self, name: str) -> dict[str, griffe.Object | griffe.Alias]:
        """What is declared of a class, and of those that it extends."""
        found: dict[str, griffe.Object | griffe.Alias] = {}
        declared = self.classes.get(name)
        if declared is not None:
            for base in map(str, declared.bases):
                found |= self.members_of(base)
            found |= declared.members
        return found


def _accesses(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Which attribute of what is asked for here: `it.name`, or by `getattr` or `hasattr`."""
    match node:
        case ast.Attribute(value=of, attr=attribute):
            yield ast.unparse(of), attribute
        case ast.Call(
            func=ast.Name(id="getattr" | "hasattr"),
            args=[of, ast.Constant(value=str(attribute)), *_],
        ):
            yield ast.unparse(of), attribute
        case _:
            pass


def load_vllm(folder: Path) -> griffe.Object:
    """The package `vllm` in a folder, as far as its sources are there."""
    loader = griffe.GriffeLoader(search_paths=[folder], allow_inspection=False)
    package = loader.load("vllm")
    loader.resolve_aliases(implicit=False)
    assert isinstance(package, griffe.Object)
    return package


def differences(relied_on: Reliance, vllm: griffe.Object) -> dict[str, str]:
    """What is relied on and is not so in this vLLM: by name, what is wrong with it."""
    wrong: dict[str, str] = {}
    for name, full_name in relied_on.names.items():
        theirs = _find(vllm, full_name)
        if theirs is None:
            wrong[name] = f"no {full_name}"
            continue
        for member in relied_on.members_of(name).values():
            if found := _difference(
                member, theirs, overridden=relied_on.is_overridden(name, member.name)
            ):
                wrong[f"{name}.{member.name}"] = found
        for ours in (ours for base, ours in relied_on.ours if base == name):
            for own in ours.members.keys() - relied_on.members_of(name).keys():
                if own in theirs.all_members:
                    wrong[f"{ours.name}.{own}"] = "vLLM has it too, and it is not declared"
    for full_name, attribute in sorted(relied_on.accesses):
        theirs = _find(vllm, full_name)
        if theirs is None or attribute not in theirs.all_members:
            wrong[f"{full_name.rpartition('.')[2]}.{attribute}"] = "not there"
    return wrong


def _declarations(tree: ast.Module) -> tuple[Mapping[str, str], str]:
    """Where in vLLM each declared name is, and the branch that only type checkers see."""
    branch = next(node for node in tree.body if isinstance(node, ast.If))
    names = {
        alias.asname or alias.name: f"{found.module}.{alias.name}"
        for statement in branch.orelse
        for found in ast.walk(statement)
        if isinstance(found, ast.ImportFrom) and str(found.module).startswith("vllm")
        for alias in found.names
    }
    return names, "\n".join(map(ast.unparse, branch.body))


def _find(vllm: griffe.Object, full_name: str) -> griffe.Object | None:
    try:
        return _target(vllm[full_name.removeprefix("vllm.")])
    except (KeyError, griffe.AliasResolutionError):
        return None


def _target(found: griffe.Object | griffe.Alias) -> griffe.Object:
    target = found.final_target if isinstance(found, griffe.Alias) else found
    assert isinstance(target, griffe.Object)
    return target


def _difference(
    ours: griffe.Object | griffe.Alias, theirs: griffe.Object, *, overridden: bool
) -> str | None:
    found = theirs.all_members.get(ours.name)
    if found is None:
        return "not there"
    target = _target(found)
    if not isinstance(ours, griffe.Function):
        return None
    if not isinstance(target, griffe.Function):
        return "no method"
    if _can_stand_for(ours, target, overridden=overridden):
        return None
    return f"takes {_names(target)}, not {_names(ours)}"


def _can_stand_for(ours: griffe.Function, theirs: griffe.Function, *, overridden: bool) -> bool:
    """Whether vLLM's takes all that we pass, and, if overridden, ours all that vLLM passes."""
    if any(one.kind in _OPEN for one in ours.parameters):
        return set(_names(ours)) <= set(_names(theirs))
    if overridden:
        return _names(ours) == _names(theirs)
    more = list(theirs.parameters)[len(_names(ours)) :]
    return _names(theirs)[: len(_names(ours))] == _names(ours) and not any(
        one.required for one in more
    )


def _names(function: griffe.Function) -> list[str]:
    return [one.name for one in function.parameters if one.kind not in _OPEN]

"""Python functions as tools: marked with `@tool`, or named by an import path.

A pydantic model is made from the type hints and the docstring: it gives the schema, and validates the arguments before the
call. Async functions run in the event loop, others in threads.
"""

import asyncio
import functools
import importlib
import inspect
import pkgutil
import sys
import sysconfig
import traceback
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, cast

import msgspec
import structlog
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

import callgate
from callgate.calls.outcome import Failed, FailureKind, Outcome
from callgate.calls.states import ReadyCall
from callgate.tools.concurrency import times_cancelled
from callgate.tools.executor import DEFAULT_POLICY, CallContext, Policy, Tool
from callgate.tools.kinds.python.authoring import Context, Mark, ToolError, hook_of, mark_of, progress_of
from callgate.tools.kinds.python.own_modules import name_taken, own_folders
from callgate.tools.kinds.python.threads import NoThreadLeft, ThreadPool
from callgate.tools.results import Unwritable, returned
from callgate.untrusted.pydantic_readers import check_model

_CONTEXT = "context"
"""Stands for the context of a call among the fields of a model, which are `p0`, `p1`, …"""

log = structlog.get_logger("callgate.tools")


class NotATool(Exception):
    """Raised for a function that cannot be a tool. For its author and the operator."""


def python_tool(
    function: Callable[..., Any],
    threads: ThreadPool,
    *,
    name: str | None = None,
    description: str | None = None,
    defaults: Policy = DEFAULT_POLICY,
    overrides: Mapping[str, Any] | None = None,
) -> Tool:
    """Make a tool of a function. Settings of the config take precedence over the decorator's, and these over the defaults."""
    executor = PythonFunction(function, threads)
    mark = mark_of(function) or Mark()
    if hasattr(function, "__qualname__"):
        owner_of_name = function
    else:
        owner_of_name = type(function)
    return Tool(
        name=name or mark.name or _name_of(function),
        description=description or mark.description or executor.description,
        parameters=executor.parameters,
        executor=executor,
        policy=msgspec.structs.replace(defaults, **{**mark.policy, **(overrides or {})}),
        kind="python",
        source=f"{owner_of_name.__module__}:{owner_of_name.__qualname__}",
        queue=None if executor.is_async else threads.queue,
    )


def module_at(path: str) -> ModuleType:
    """Return the module of a path `package.module` or `package.module:function`."""
    return _module(path.partition(":")[0])


def functions_at(path: str) -> tuple[Callable[..., Any], ...]:
    """Return the function at `package.module:function`, or all marked ones of `package.module`."""
    module_name, _, attribute = path.partition(":")
    if attribute:
        return (_function_at(path),)
    module = _module(module_name)
    marked_functions = [value for value in vars(module).values() if callable(value) and mark_of(value) is not None]
    if not marked_functions:
        function_names = [
            name
            for name, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module_name and hook_of(value) is None
        ]
        if function_names:
            hint = f": mark it, or name one function as `function: {module_name}:{function_names[0]}`"
        else:
            hint = ""
        raise NotATool(f"{module_name} has no function marked with @tool{hint}")
    return tuple(dict.fromkeys(marked_functions))


class PythonFunction:
    """Runs one Python function."""

    def __init__(self, function: Callable[..., Any], threads: ThreadPool) -> None:
        self._function = function
        self._threads = threads
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(_hinted(function))
        self._signature = _Signature(function)
        self.name = _name_of(function)
        self.description = self._signature.description
        self.parameters = self._signature.schema

    async def execute(self, call: ReadyCall, call_context: CallContext) -> Outcome:
        if self._signature.context:
            context = Context(call, call_context)
        else:
            context = None
        try:
            args, kwargs = self._signature.bind(call.arguments, context)
        except ValidationError as error:
            errors = error.errors(include_url=False, include_context=False, include_input=False)
            problems = "; ".join(f"/{'/'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in errors)
            return Failed(f"Not run: {problems}", FailureKind.NOT_RUN)
        if context is None:
            return await self._outcome(args, kwargs, call_context)
        progress = progress_of(context)
        try:
            async with _background(progress.forward(call_context.report)):
                outcome = await self._outcome(args, kwargs, call_context)
            await progress.flush(call_context.report)
            return outcome
        finally:
            progress.close()

    async def _outcome(self, args: list[Any], kwargs: dict[str, Any], call_context: CallContext) -> Outcome:
        cancelled_before = times_cancelled()
        try:
            if self.is_async:
                value = await self._function(*args, **kwargs)
            else:
                value = await self._in_thread(args, kwargs)
            return returned(value, call_context.max_bytes)
        except ToolError as error:
            return Failed(str(error), error.kind)
        except NoThreadLeft as error:
            return Failed(f"The tool cannot be run now: {error}. Try again later.", FailureKind.UNAVAILABLE)
        except Unwritable as error:
            return Failed(f"The tool ran, but returned {error}.")
        except OSError as error:
            # Files, sockets, DNS, timeouts: a retry may succeed.
            self._log_raised(error)
            return Failed(said(error), FailureKind.UNAVAILABLE)
        except asyncio.CancelledError as error:
            if times_cancelled() > cancelled_before:
                raise
            return Failed(said(error))  # cancelled inside the tool, and not by us
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's code: anything may come, and is the model's to read
            self._log_raised(error)
            return Failed(said(error))

    def _log_raised(self, error: BaseException) -> None:
        """Log where a tool raised, for its author. Without arguments."""
        log.warning("tool_raised", tool=self.name, where=raised_at(error), exc_info=error)

    async def _in_thread(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        value = await self._threads.run(lambda: self._function(*args, **kwargs))
        if inspect.isawaitable(value):
            return await value
        return value


class _background:  # noqa: N801 - lower case like asyncio.timeout
    """A context manager that runs a task during the block; its exception is raised at the end of the block."""

    def __init__(self, work: typing.Coroutine[Any, Any, None]) -> None:
        self._work = work

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._work)

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()


class _Signature:
    """A function's parameters: the schema for models, and the conversion of arguments for a call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = _name_of(function)
        candidates = (function, _hinted(function))
        if any(
            inspect.isgeneratorfunction(candidate) or inspect.isasyncgenfunction(candidate) for candidate in candidates
        ):
            raise NotATool(f"{self._name} is a generator; a tool returns its result in one piece")
        self.description, explained = read_docstring(inspect.getdoc(function) or "")
        self.context: str | None = None
        self._by_position: list[str] = []
        """The fields of the model whose values are passed in their order."""
        self._by_name: list[tuple[str, str]] = []
        """The parameters that are passed by name, each with its field."""
        fields: dict[str, Any] = {}
        for parameter, hint in _parameters(function, self._name):
            if hint is Context:
                self.context = parameter.name
                self._take(parameter, _CONTEXT)
                continue
            place = f"p{len(fields)}"  # a parameter's name may be reserved in pydantic models
            parameter_text = explained.get(parameter.name)
            default = parameter.default
            if default is inspect.Parameter.empty:
                default = ...
            fields_of_hint = (default, *getattr(hint, "__metadata__", ()))
            has_words = any(isinstance(candidate, FieldInfo) and candidate.description for candidate in fields_of_hint)
            if parameter_text and not has_words:
                fields[place] = (Annotated[hint, Field(alias=parameter.name, description=parameter_text)], default)
            else:
                fields[place] = (Annotated[hint, Field(alias=parameter.name)], default)
            self._take(parameter, place)
        self._model = _model(self._name, fields)
        try:
            schema = self._model.model_json_schema(by_alias=True, schema_generator=_WithoutTitles)
        except (PydanticInvalidForJsonSchema, PydanticUserError) as error:
            raise NotATool(f"a parameter of {self._name} cannot be described as JSON: {error}") from error
        for part in (schema, *schema.get("$defs", {}).values()):
            part.pop("title", None)
        schema.setdefault("properties", {})
        self.schema = schema

    def _take(self, parameter: inspect.Parameter, place: str) -> None:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            self._by_name.append((parameter.name, place))
        else:
            self._by_position.append(place)

    def bind(self, arguments: Mapping[str, Any], context: Context | None) -> tuple[list[Any], dict[str, Any]]:
        values = vars(check_model(self._model, arguments, by_alias=True))
        if self.context is not None:
            values = {**values, _CONTEXT: context}
        args = [values[place] for place in self._by_position]
        kwargs = {name: values[place] for name, place in self._by_name}
        return args, kwargs


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the text before the first section of a docstring, and the descriptions of the parameters."""
    from docstring_parser import ParseError, parse  # with the first function in Python

    try:
        doc = parse(text)
    except ParseError:
        return text.strip(), {}
    explained = {
        name.strip().lstrip("*"): " ".join((parameter.description or "").split())
        for parameter in doc.params
        for name in parameter.arg_name.split(",")  # numpy's style may describe several at once
    }
    return (doc.description or "").strip(), explained


def _parameters(function: Callable[..., Any], name: str) -> list[tuple[inspect.Parameter, Any]]:
    try:
        signature = inspect.signature(function)
        hints = typing.get_type_hints(_hinted(function), include_extras=True)
    except (NameError, TypeError, ValueError) as error:
        raise NotATool(f"the parameters of {name} cannot be read: {error}") from error
    bound: Mapping[str, Any] = {}
    if isinstance(function, functools.partial):
        bound = function.keywords  # fixed by the author, and no parameters for a model
    parameters = []
    for parameter in signature.parameters.values():
        if parameter.name in bound:
            continue
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise NotATool(f"{name} takes {parameter}; a tool names each of its parameters")
        parameters.append((parameter, hints.get(parameter.name, Any)))
    return parameters


def _model(name: str, fields: dict[str, Any]) -> type[BaseModel]:
    try:
        return create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    except (PydanticSchemaGenerationError, PydanticUserError, NameError, TypeError) as error:
        wrong = next((field for field in fields if not _has_schema(field, fields[field])), None)
        if wrong is None:
            raise NotATool(f"the parameters of {name} cannot be read: {error}") from error
        hinted, field = typing.get_args(fields[wrong][0])[:2]
        hint = inspect.formatannotation(hinted)
        raise NotATool(
            f"the parameter `{field.alias or wrong}` of {name} has a type that no JSON can be turned into, {hint}: use str, int, float, bool, "
            "list, dict, Literal, an Enum, a dataclass or a model of pydantic"
        ) from error


def _has_schema(field: str, definition: Any) -> bool:
    try:
        create_model("one", __config__=ConfigDict(extra="forbid"), **{field: definition})
    except (PydanticSchemaGenerationError, PydanticUserError, NameError, TypeError):
        return False
    return True


class _WithoutTitles(GenerateJsonSchema):
    """Leaves out titles, which repeat the names and cost tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _function_at(path: str) -> Callable[..., Any]:
    module_name, _, attribute = path.partition(":")
    value: Any = _module(module_name)
    for name in attribute.split("."):
        if not hasattr(value, name):
            raise NotATool(f"{module_name} has no {attribute}{_near_name(value, name)}")
        value = getattr(value, name)
    if not callable(value) or inspect.isclass(value):
        raise NotATool(f"{path} is not a function")
    return cast(Callable[..., Any], value)


def _near_name(owner: object, name: str) -> str:
    import difflib

    near = difflib.get_close_matches(
        name, [attribute for attribute in dir(owner) if not attribute.startswith("_")], n=1
    )
    if near:
        return f"; is it {near[0]}?"
    return ""


def _module(name: str) -> ModuleType:
    if hidden := name_taken(name):
        raise NotATool(hidden)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise NotATool(f"there is no module {name}{_near_module(name)}") from error
        advice = f"install it for the Python that runs Callgate ({sys.executable} -m pip install ...)"
        raise NotATool(f"{name} cannot be imported: {error} ({raised_at(error)}): {advice}") from error
    except Exception as error:  # importing runs code of the user, which may raise anything
        where = f" ({place})" if (place := raised_at(error)) else ""
        raise NotATool(f"{name} cannot be imported: {said(error)}{where}") from error
    return module


def _near_module(name: str) -> str:
    import difflib

    package, _, last = name.rpartition(".")
    if package and last == "py":
        return f": write `{package}`, without `.py`"
    paths = None
    if package:
        try:
            paths = list(importlib.import_module(package).__path__)
        except (ImportError, AttributeError):
            return ""
    folders = own_folders() if paths is None else paths  # a similar name of a library is not what was meant
    near = difflib.get_close_matches(last, [module.name for module in pkgutil.iter_modules(folders)], n=1)
    if near:
        return f"; is it {package + '.' if package else ''}{near[0]}?"
    return ""


def _name_of(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial):
        function = _hinted(function)
    return getattr(function, "__name__", None) or type(function).__name__


def _hinted(function: Callable[..., Any]) -> Any:
    """Return the function with the annotations: for a callable object its `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function):
        return function
    return type(function).__call__


def raised_at(error: BaseException) -> str:
    """Return the line of a tool that raised: the innermost one that is neither a library's nor ours."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen ")]
    tool_frames = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
    if not frames:
        return ""
    last = (tool_frames or frames)[-1]
    return f"{last.filename}:{last.lineno}"


_LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")
_NOT_THEIRS = (*map(sysconfig.get_path, _LIBRARIES), str(Path(callgate.__file__).resolve().parent))


def said(error: BaseException) -> str:
    """Describe an exception for a model: its type and message, without a traceback."""
    message = str(error)
    if message:
        return f"{type(error).__name__}: {message}"
    return type(error).__name__

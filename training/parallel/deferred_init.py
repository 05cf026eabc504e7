"""Initial weights that are drawn one tensor at a time: the same bits as building the whole model at once.

Building is recorded on the meta device, which has shapes and no memory. Replaying the record draws from the same
generator in the same order. A tensor is held from the operation that last overwrites it as a whole until the last one
that touches it; draws that are overwritten later are made too, for the generator's sake, and forgotten (the idea of
torchdistX's deferred_init).
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from headway.data_contracts.store.errors import ConfigError
from headway.training.launch.base.failure import cause_of

VALUE_DEPENDENT = (nn.init.trunc_normal_, nn.init.orthogonal_, nn.init.sparse_, nn.init.dirac_)
"""They do nothing at all to a tensor on the meta device, or look at what they draw: replayed as one operation each."""
# Operations that leave nothing of the old content; what was drawn before them need not be kept.
OVERWRITES = ("normal_", "uniform_", "zero_", "fill_", "copy_", "exponential_", "random_")
ALLOCATES = ("empty", "empty_strided", "empty_like", "new_empty")


class _View(NamedTuple):
    """A tensor of the recorded program: which storage, and how it looks at it."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class _Step(NamedTuple):
    func: Any
    arguments: list[Any]
    """Flat; tensors of the program as `_View`."""
    structure: Any
    outputs: list[_View | None]
    reads: frozenset[int]
    """Storages whose content it needs, or changes in part."""
    writes: frozenset[int]
    """Storages that it makes, or overwrites as a whole."""


class DeferredModel:
    """A model on the meta device, and how to draw its weights.

    Raises:
        ConfigError: building looks at values that it has just drawn.
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        recorder = _Recorder()
        try:
            with recorder, recorder.whole_functions():
                self.model = build()
        except (RuntimeError, NotImplementedError) as error:
            # A lack of memory is no property of the recipe, and keeps its own class.
            if cause_of(error) == "oom":
                raise
            raise ConfigError(
                f"the model's weights cannot be drawn one at a time ({error}).",
                where="training.parallel.deferred_init",
                advice="Say deferred_init: false; every rank then builds the whole model first.",
            ) from error
        self._steps, self._sizes = recorder.steps, recorder.sizes
        self._keep = recorder.seen  # storages are told apart by their address
        self._constants: list[tuple[str, Tensor]] = []
        self._names: dict[int, list[tuple[str, _View]]] = {}
        for name, value in (*self.model.named_parameters(), *self.model.named_buffers()):
            if value.is_meta:
                view = recorder.view(value)
                self._names.setdefault(view.storage, []).append((name, view))
            # What a recipe computes outside of torch, such as a table from numpy, is there already.
            else:
                self._constants.append((name, value.detach()))

    def draw(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter and buffer by its first name, whole, on the CPU, in the order in which they are finished."""
        yield from self._constants
        final_use, done_with = self._uses()
        held: dict[int, Tensor] = {}
        for index, step in enumerate(self._steps):
            self._replay(step, held)
            for storage in done_with.get(index, ()):
                # Let go at once: only the tensor at work is in memory, never the whole model.
                whole = held.pop(storage)
                # An earlier last use is of content that is overwritten later; only the final one is a weight.
                if final_use[storage] == index:
                    for name, view in self._names.get(storage, ()):
                        yield name, _look(whole, view)

    def _uses(self) -> tuple[dict[int, int], dict[int, list[int]]]:
        """The last step that touches each storage, and what each step is the last to touch before it is overwritten."""
        final_use: dict[int, int] = {}
        done_with: dict[int, list[int]] = {}
        is_needed: set[int] = set()
        # Backwards: whether content is needed depends on what reads it later.
        for index in reversed(range(len(self._steps))):
            step = self._steps[index]
            for storage in step.reads | step.writes:
                final_use.setdefault(storage, index)
                if storage not in is_needed:
                    done_with.setdefault(index, []).append(storage)
                    is_needed.add(storage)
            # A full overwrite needs nothing of before; a step that also reads does.
            is_needed -= step.writes - step.reads
        return final_use, done_with

    def _replay(self, step: _Step, held: dict[int, Tensor]) -> None:
        for storage in step.writes:
            # Memory that was only allocated, and is written in part: it appears when the first step touches it.
            if storage in self._sizes and storage not in held and not _makes(step, storage):
                dtype, numel = self._sizes[storage]
                held[storage] = torch.empty(numel, dtype=dtype)
        arguments = [_look(held[each.storage], each) if isinstance(each, _View) else each for each in step.arguments]
        args, kwargs = tree_unflatten(arguments, step.structure)
        with torch.no_grad():
            # The weights' history is of no use, and would keep every intermediate tensor.
            made = tree_flatten(step.func(*args, **kwargs))[0]
        for view, value in zip(step.outputs, made, strict=True):
            if view is not None and _makes(step, view.storage):
                held[view.storage] = value


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[_Step] = []
        self.sizes: dict[int, tuple[torch.dtype, int]] = {}
        self.seen: list[Tensor] = []

    def view(self, tensor: Tensor) -> _View:
        return _View(
            tensor.untyped_storage()._cdata, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
        )

    @contextlib.contextmanager
    def whole_functions(self) -> Iterator[None]:
        """Record calls of `VALUE_DEPENDENT` functions by their place in `nn.init`; refuse calls past it.

        Raises:
            NotImplementedError: one was imported by name, and called on a tensor without values.
        """
        # By code object: a function that was imported by name escapes the replacement, but not the profiler.
        by_code = {function.__code__: function for function in VALUE_DEPENDENT}

        def refuse(frame: FrameType, event: str, _argument: Any) -> None:
            if event == "call" and frame.f_code in by_code:
                name = frame.f_code.co_name
                raise NotImplementedError(f"{name} must be called as torch.nn.init.{name}")

        before = sys.getprofile()
        for function in VALUE_DEPENDENT:
            setattr(nn.init, function.__name__, functools.partial(self._record_whole, function))
        # A profiler sees every Python call, so it stays only while the model is built.
        sys.setprofile(refuse)
        try:
            yield
        finally:
            sys.setprofile(before)
            for function in VALUE_DEPENDENT:
                setattr(nn.init, function.__name__, function)

    def _record_whole(self, function: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        flat, structure = tree_flatten(((tensor, *args), kwargs))
        target = self.view(tensor)
        # A view of a part leaves the rest of the storage as it was.
        is_whole = tensor.numel() == self.sizes[target.storage][1]
        reads, writes = ((), (target.storage,)) if is_whole else ((target.storage,), ())
        arguments = [target, *flat[1:]]
        self.steps.append(_Step(function, arguments, structure, [None], frozenset(reads), frozenset(writes)))
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        flat, structure = tree_flatten((args, kwargs))
        tensors = [each for each in flat if isinstance(each, Tensor)]
        if tensors and not any(tensor.is_meta for tensor in tensors):
            return func(*args, **kwargs)  # constants of the user's
        meta_args, meta_kwargs = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
        # A factory would otherwise allocate on the device that the recipe names.
        if any(argument.name == "device" for argument in func._schema.arguments):
            meta_kwargs = {**meta_kwargs, "device": torch.device("meta")}
        result = func(*meta_args, **meta_kwargs)
        made = tree_flatten(result)[0]
        self._record(func, flat, structure, made)
        return result

    def _record(self, func: Any, flat: list[Any], structure: Any, made: list[Any]) -> None:
        known = set(self.sizes)
        views = [self.view(each) if isinstance(each, Tensor) and each.is_meta else None for each in made]
        new = {view.storage for view in views if view is not None} - known
        for each in made:
            if isinstance(each, Tensor) and each.is_meta:
                self.seen.append(each)
                storage = each.untyped_storage()
                self.sizes[storage._cdata] = (each.dtype, storage.nbytes() // each.element_size())
        # It changes nothing, so replaying it would draw and compute nothing.
        if not new and not func._schema.is_mutable:
            return  # another look at what there is
        arguments = [self._argument(each) for each in flat]
        touched = {each.storage for each in arguments if isinstance(each, _View)}
        name = func._schema.name.removeprefix("aten::")
        if name in OVERWRITES and arguments and isinstance(arguments[0], _View):
            target = arguments[0]
            # Only if it covers the whole storage; a slice keeps what is beside it.
            if torch.Size(target.size).numel() == self.sizes[target.storage][1]:
                new.add(target.storage)
                touched -= {target.storage} - {each.storage for each in arguments[1:] if isinstance(each, _View)}
        if name in ALLOCATES:
            return  # memory comes when something is written into it
        self.steps.append(_Step(func, arguments, structure, views, frozenset(touched), frozenset(new)))

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_meta:
            return self.view(value)
        # The recording ran on the meta device; the replay is on the CPU, whatever the recipe's own choice was.
        return torch.device("cpu") if value == torch.device("meta") else value


def _look(storage: Tensor, view: _View) -> Tensor:
    return storage.as_strided(view.size, view.stride, view.offset)


def _makes(step: _Step, storage: int) -> bool:
    """Whether the step returns that storage as a new one, rather than writing into memory it was given."""
    given = {each.storage for each in step.arguments if isinstance(each, _View)}
    return storage not in given

"""Layers with one set of weights, or with one set per replicate along a leading axis, and what makes their steps fast.

What goes into a layer with the weights of several replicates holds their rows one replicate after another, equally many
of each, along its first axis.

On a GPU a step is recorded once as a CUDA graph, with parallel streams, and then replayed: views run in parallel, and
gradients of weights beside all else, which takes half of the time (results/speed). Elsewhere everything runs in turn.
Backward runs in another thread, so what is known of a recording belongs to the module. One recording is made at a time,
and only work that is being recorded is put on its streams: other threads may train meanwhile.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from inspect import unwrap
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Generator, Tensor, nn, optim
from torch.autograd import Function
from torch.nn import functional

_Arguments = ParamSpec("_Arguments")
T = TypeVar("T")
_step = torch.no_grad()(unwrap(optim.Adam.step))
_recording = threading.RLock()
"""Held while a step is recorded; guards all that follows."""
_made: dict[torch.device, list[torch.cuda.Stream]] = {}
"""Made once, as libraries keep memory for every stream that they have seen."""
_streams: _Streams | None = None
"""There while a step is recorded."""


def times(x: Tensor, matrix: Tensor) -> Tensor:
    """`x` @ `matrix`: shapes (rows, ..., in) and (in, out), or (replicates, in, out), to (rows, ..., out)."""
    if matrix.dim() == 2:
        return x @ matrix
    return torch.bmm(_by_replicate(x, len(matrix)), matrix).view(*x.shape[:-1], -1)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(rows, ..., in) to (rows, ..., out); weight (out, in) and bias (out,) may have a leading axis for replicates."""
    if weight.dim() == 2:
        return functional.linear(x, weight, bias)
    stacked: Tensor = _StackedLinear.apply(_by_replicate(x, len(weight)), weight, bias)  # type: ignore[no-untyped-call]
    return stacked.view(*x.shape[:-1], -1)


class _StackedLinear(Function):
    """Torch's own would give the gradient of the weights transposed, and copy it to turn it round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.is_whole = weight.is_leaf and bias.is_leaf  # the gradient of a part is computed with before the optimiser
        note_use(weight)
        return torch.baddbmm(bias[:, None], x, weight.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        with side_stream(gradient, x) if ctx.is_whole and is_used_once(weight) else nullcontext():
            of_weight, of_bias = torch.bmm(gradient.mT, x), gradient.sum(dim=1)
        return torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None, of_weight, of_bias


class _StackedScale(Function):
    """Normed rows of shape (replicates, rows, width), times the weight, plus the bias."""

    @staticmethod
    def forward(ctx: Any, normed: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(normed, weight)
        note_use(weight)
        return torch.addcmul(bias[:, None], normed, weight[:, None])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normed, weight = ctx.saved_tensors
        with side_stream(gradient, normed) if is_used_once(weight) else nullcontext():
            of_weight, of_bias = (gradient * normed).sum(dim=1), gradient.sum(dim=1)
        return gradient * weight[:, None], of_weight, of_bias


def _by_replicate(x: Tensor, n_replicates: int) -> Tensor:
    """(rows, ..., columns) to (replicates, rows of each, columns)."""
    return x.reshape(n_replicates, -1, x.shape[-1])


class Linear(nn.Linear):
    """A linear layer whose weights are drawn when the network is built."""

    def reset_parameters(self) -> None:
        """Nothing: what torch would draw is never used, and to draw it takes as long as all else in a small network."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, ..., in) to (rows, ..., out)."""
        return linear(x, self.weight, self.bias)


class PReLU(nn.PReLU):
    """max(x, 0) + slope * min(x, 0), with one slope."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, ..., width) to the same shape."""
        rows = x.reshape(self.weight.numel(), -1)
        if x.is_cuda:
            return torch.prelu(rows[None], self.weight.view(-1)).view_as(x)
        # On a CPU torch's own PReLU goes back number by number; this was 1.2 times as fast (results/speed).
        return torch.lerp(rows.relu(), rows, self.weight.view(-1, 1)).view_as(x)


class LayerNorm(nn.LayerNorm):
    """Each row shifted and scaled to mean 0 and variance 1, then scaled and shifted by the weights."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, ..., width) to the same shape."""
        if self.weight.dim() == 1:
            return super().forward(x)
        normed = _by_replicate(functional.layer_norm(x, self.normalized_shape, eps=self.eps), len(self.weight))
        scaled: Tensor = _StackedScale.apply(normed, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return scaled.view_as(x)


@torch.no_grad()
def start_weights(network: nn.Module, generator: Generator) -> None:
    """Every kind of layer and its start: linear ones uniform within 1/sqrt(in), PReLU 0.25, norms 1 and 0."""
    for name, buffer in network.named_buffers():
        buffer.fill_(1.0 if name.endswith("variance") else 0.0)
    module: Any
    for module in network.modules():
        if isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            module.weight.uniform_(-bound, bound, generator=generator)
            module.bias.uniform_(-bound, bound, generator=generator)
        elif isinstance(module, nn.PReLU):
            module.weight.fill_(0.25)
        elif isinstance(getattr(module, "weight", None), nn.Parameter):
            module.weight.fill_(1.0)
            module.bias.zero_()


class Adam(optim.Adam):
    """torch's Adam, which waits for gradients that are computed in side streams.

    `unwrap` leaves out what imports torch's compiler, for 2.5 to 5 s on two cores: nothing here is compiled.
    """

    add_param_group = unwrap(optim.Optimizer.add_param_group)
    zero_grad = unwrap(optim.Optimizer.zero_grad)
    state_dict = unwrap(optim.Optimizer.state_dict)
    load_state_dict = unwrap(optim.Optimizer.load_state_dict)

    def step(self, closure: Any = None) -> Any:
        """One update of all weights."""
        join_streams()
        return _step(self, closure)


def with_gradients(train: Callable[_Arguments, T]) -> Callable[_Arguments, T]:
    """Let a function train, also inside the caller's `torch.no_grad` or `torch.inference_mode`."""
    return torch.inference_mode(False)(torch.enable_grad()(train))


class _Streams:
    """The streams that a step is recorded on, besides the main one."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._taken = device, 0
        self._numbered: list[torch.cuda.Stream] = []
        self.beside: dict[int, torch.cuda.Stream] = {}
        self._kept: list[object] = []
        self.in_turn = False
        self.uses = Counter[int]()  # of weights in the step, by where they lie

    def _stream(self) -> torch.cuda.Stream:
        made = _made.setdefault(self._device, [])
        if self._taken == len(made):
            made.append(torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]
        self._taken += 1
        return made[self._taken - 1]

    def first(self, count: int) -> list[torch.cuda.Stream]:
        """The first so many streams for parallel work."""
        self._numbered += [self._stream() for _ in range(count - len(self._numbered))]
        return self._numbered[:count]

    @contextmanager
    def aside(self, reads: tuple[Tensor, ...]) -> Iterator[None]:
        """Inside, work goes to the stream beside the current one."""
        main = torch.cuda.current_stream()
        if main.cuda_stream not in self.beside:
            self.beside[main.cuda_stream] = self._stream()
        own = self.beside[main.cuda_stream]
        own.wait_stream(main)
        self._kept += reads  # else the main stream could write over them
        before, self.in_turn = self.in_turn, True
        try:
            with torch.cuda.stream(own):
                yield
        finally:
            self.in_turn = before


def _current() -> _Streams | None:
    """The streams of the recording that the current stream is part of."""
    return _streams if _streams is not None and torch.cuda.is_current_stream_capturing() else None


def map_views(work: Callable[[int], T], n_views: int) -> list[T]:
    """The result of `work` for every view number, in order; in parallel while a graph is recorded.

    What goes into `work` has to live on until this returns, and what comes out may be used at once.
    """
    return in_parallel([partial(work, v) for v in range(n_views)])


def in_parallel(works: Sequence[Callable[[], T]]) -> list[T]:
    """The result of each, in order; in parallel while a graph is recorded."""
    streams = _current()
    if streams is None or streams.in_turn:
        return [work() for work in works]
    main, own, results = torch.cuda.current_stream(), streams.first(len(works)), []
    for work, stream in zip(works, own, strict=True):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            results.append(work())
    for stream in own:
        main.wait_stream(stream)
    return results


def side_stream(*reads: Tensor) -> AbstractContextManager[None]:
    """Inside, work whose results are needed after `join_streams` only; in parallel while a graph is recorded.

    Gradients of weights that are used once in a step are such: only the optimiser waits for them; others are added to
    each other at once. None has a gradient before the step. Tensors in `reads` might be freed before `join_streams`;
    they are kept until the recording ends.
    """
    streams = _current()
    return nullcontext() if streams is None else streams.aside(reads)


def note_use(weight: Tensor) -> None:
    """Count that a step which is recorded uses a weight."""
    streams = _current()
    if streams is not None:
        streams.uses[weight.data_ptr()] += 1


def is_used_once(weight: Tensor) -> bool:
    """Whether the step uses a weight only once; True where no step is recorded."""
    streams = _current()
    return streams is None or streams.uses[weight.data_ptr()] == 1


def join_streams() -> None:
    """Wait for all work in side streams."""
    streams = _current()
    for stream in streams.beside.values() if streams is not None else ():
        torch.cuda.current_stream().wait_stream(stream)


@contextmanager
def recording_on(device: torch.device) -> Iterator[None]:
    """Inside, a step is recorded on the streams of a device."""
    global _streams
    with _recording:
        _streams = _Streams(device)
        try:
            yield
        finally:
            _streams = None


@contextmanager
def tensor_cores(device: torch.device) -> Iterator[None]:
    """Inside, a GPU multiplies float32 matrices with 10 bits of each factor (TF32); afterwards as before."""
    if device.type != "cuda":
        yield
        return
    products = torch.backends.cuda.matmul
    before, products.fp32_precision = products.fp32_precision, "tf32"
    try:
        yield
    finally:
        products.fp32_precision = before


class GraphedStep:
    """A step that takes and returns nothing, and reads and writes memory that stays where it is.

    On a GPU its first calls run as they are; then it is recorded, and replayed from there on: one launch instead of
    hundreds. Elsewhere, and where recording fails, every call runs as it is.
    """

    _CALLS_BEFORE_RECORDING = 3
    """Libraries set themselves up, and the optimiser its state, in calls that cannot be recorded."""

    def __init__(self, step: Callable[[], None], device: torch.device) -> None:
        self._step, self._device, self._calls = step, device, 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Do the step."""
        self._calls += 1
        if self._device.type == "cuda" and self._calls == self._CALLS_BEFORE_RECORDING + 1:
            self._graph = self._record()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._step()

    def _record(self) -> torch.cuda.CUDAGraph | None:
        """The step as a graph; recording does not run it."""
        graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
        gc.disable()  # another graph that Python's collector clears away would spoil the recording of this one
        try:
            # Where a recording cannot be ended, torch would go on with the stream that it was recorded on.
            with (
                torch.cuda.device(self._device),
                torch.cuda.stream(torch.cuda.current_stream(self._device)),
                recording_on(self._device),
                torch.cuda.graph(graph),
            ):
                self._step()
        except RuntimeError as error:
            logging.getLogger(__name__).warning("the step runs without a CUDA graph: %s", error)
            return None
        finally:
            if collects:
                gc.enable()
        return graph

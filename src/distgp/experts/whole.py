"""The exact expert on one large shard: as few n × n matrices as can be.

K̃ = k(X, X) + diag(noise) is made in blocks of rows, on and below the diagonal, in the memory in which it
is then factorised and inverted. With α = K̃⁻¹y and G = ½(K̃⁻¹ − ααᵀ) the gradient of the likelihood is
Σ_ij G_ij ∂K_ij, and Σ_i G_ii in the noise: each block of the kernel is differentiated with its block of
G. Up to `cost.KEPT` rows the blocks and what their derivatives need are kept until then; beyond, each is
made again and forgotten. So any kernel will do, and of very many rows one matrix is held. The gradient is
computed along with the value, and nothing of size n × n is kept for later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx, once_differentiable

from distgp import linalg
from distgp._util.threads import on_threads
from distgp.data.shard import Shard
from distgp.experts import cost
from distgp.experts.base import Parameters, chunk_rows
from distgp.likelihoods import noise_of_rows

LARGE = 768
"""Rows from which a shard is worked on in this way, if it is alone."""
MOST_PARTS = 8
"""Threads that share the entries of a block, at most, and blocks of a matrix, at least."""
Block: TypeAlias = tuple[int, int]
"""The first row of a block, and the one after its last."""
Blocks: TypeAlias = dict[Block, Tensor]
"""Blocks of K, differentiable."""
Result = TypeVar("Result")


def alone(parameters: Parameters, shard: Shard) -> tuple[Parameters, Shard] | None:
    """θ and rows of a batch of one large shard, without batch dimensions; None for anything else."""
    batch = linalg.broadcast(shard.batch, parameters.batch)
    learnt = shard.X.requires_grad or shard.y.requires_grad
    if shard.n < LARGE or learnt or batch not in ((), (1,)):
        return None
    theta = parameters[0] if parameters.batch else parameters
    return theta, (shard[0] if shard.batch else shard).without_padding()


class _WithGradient(torch.autograd.Function):
    """A value whose gradients in some tensors are known already."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, value: Tensor, gradients: list[Tensor], *tensors: Tensor
    ) -> Tensor:
        """Keep the gradients."""
        del tensors
        ctx.save_for_backward(*gradients)
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: BackwardCFunction, gradient: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Multiply them by the incoming gradient."""
        return None, None, *(gradient * known for known in ctx.saved_tensors)


def negative_log_likelihood(parameters: Parameters, shard: Shard) -> Tensor:
    """½(yᵀK̃⁻¹y + log det K̃) of one shard without padding, differentiable in every tensor of θ."""
    own = _detached(parameters)
    cost.refuse_above_free(shard.n, cost.bytes_of_objective(shard.n, shard.X), shard.X.device)
    blocks: Blocks | None = {} if shard.n <= cost.KEPT else None
    L, alpha = factor_and_weights(own, shard, blocks)
    value = 0.5 * (shard.y @ alpha + linalg.log_det(L))
    pairs = zip(_tensors(own), _tensors(parameters), strict=True)
    learnt = [(leaf, tensor) for leaf, tensor in pairs if leaf.requires_grad]
    if not learnt:
        return value
    linalg.invert_(L)  # from here on the inverse, on and below the diagonal
    gradients = _gradients(own, shard, (L, alpha), [leaf for leaf, _ in learnt], blocks or {})
    given = [tensor for _, tensor in learnt]
    return _WithGradient.apply(value, gradients, *given)  # pyright: ignore[reportReturnType]


def factor_and_weights(
    parameters: Parameters, shard: Shard, kept: Blocks | None = None
) -> tuple[Tensor, Tensor]:
    """L with L Lᵀ = K̃, for which one matrix is held, and α = K̃⁻¹y; blocks of K are put into `kept`."""
    X, y, kernel = shard.X, shard.y, parameters.kernel
    gradients = torch.is_grad_enabled() and kept is not None
    with torch.no_grad():
        noise = noise_of_rows(shard, parameters.noise)

        def fill(K: Tensor) -> None:
            def rows(block: Block) -> None:
                start, stop = block
                with torch.set_grad_enabled(gradients):
                    found = kernel(X[start:stop], X[:stop])
                K[start:stop, :stop] = found.detach()
                if kept is not None and found.requires_grad:
                    kept[block] = found

            _each(rows, shard)
            K.diagonal().add_(noise)

        L = X.new_empty(shard.n, shard.n)
        linalg.cholesky_(L, fill)
        half = linalg.solve_lower(L, y[:, None])
        return L, linalg.solve_upper(L, half, overwrite=True)[:, 0]


def _each(function: Callable[[Block], Result], shard: Shard) -> list[Result]:
    """Call a function on all blocks of rows; on a CPU each thread with its own."""
    n, device, threads = shard.n, shard.X.device, torch.get_num_threads()
    on_cpu = device.type == "cpu"
    most = chunk_rows(n * min(threads, MOST_PARTS) if on_cpu else n, device)
    size = min(most, -(-n // MOST_PARTS))
    found = [(start, min(n, start + size)) for start in range(0, n, size)]
    found = found[::-1]  # the longest rows first
    return on_threads(function, found) if on_cpu else [function(block) for block in found]


def _tensors(parameters: Parameters) -> list[Tensor]:
    """List the tensors of θ, without inducing inputs."""
    return [*parameters.kernel.parameters().values(), parameters.noise]


def _detached(parameters: Parameters) -> Parameters:
    """The same θ in tensors that remember nothing; those that a gradient is wanted in ask for it."""
    enabled = torch.is_grad_enabled()

    def leaf(tensor: Tensor) -> Tensor:
        return tensor.detach().requires_grad_(enabled and tensor.requires_grad)

    values = {name: leaf(value) for name, value in parameters.kernel.parameters().items()}
    return Parameters(parameters.kernel.with_parameters(values), leaf(parameters.noise))


def _gradients(
    parameters: Parameters,
    shard: Shard,
    solved: tuple[Tensor, Tensor],
    leaves: list[Tensor],
    kept: Blocks,
) -> list[Tensor]:
    """The derivatives of the value in tensors of θ, from K̃⁻¹ and α, added up over the blocks of K̃.

    As K is symmetric, that in its entries is G on the diagonal, 2G below it, and nothing above.
    """
    X, kernel, (inverse, alpha) = shard.X, parameters.kernel, solved

    def of_rows(block: Block) -> list[Tensor]:
        start, stop = block
        weight = torch.addr(inverse[start:stop, :stop], alpha[start:stop], alpha[:stop], alpha=-1)
        weight[:, start:].tril_()
        weight.diagonal(start).mul_(0.5)
        found = kept.pop(block) if block in kept else kernel(X[start:stop], X[:stop])
        return _derivatives(found, leaves, weight)

    noise = noise_of_rows(shard, parameters.noise)
    of_noise = _derivatives(noise, leaves, 0.5 * (inverse.diagonal() - alpha.square()))
    return [
        torch.stack(parts).sum(0) for parts in zip(of_noise, *_each(of_rows, shard), strict=True)
    ]


def _derivatives(values: Tensor, leaves: list[Tensor], weight: Tensor) -> list[Tensor]:
    """The derivatives of Σ weight · values in the leaves, zero where there is none."""
    if not values.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad(values, leaves, weight, allow_unused=True, materialize_grads=True)
    return list(found)

"""The tensors of tensor.safetensors (tensor.py), and how a case of an op is drawn, computed and kept in them."""
import torch

random = torch.Generator().manual_seed(20)
tensors = {}


def normal(*shape, scale=1.0, offset=0.0):
    return offset + scale * torch.randn(shape, generator=random)


def keep(name, tensor):
    assert name not in tensors, name
    # A copy: optimizers change their parameters in place.
    dtype = torch.float if tensor.is_floating_point() else torch.int
    tensors[name] = tensor.detach().to(dtype).contiguous().clone()


def constants(name, **values):
    for key, value in values.items():
        tensors[f"{name}/{key}"] = torch.tensor(float(value), dtype=torch.float64)
    return values


def op(name, function, constant=(), **inputs):
    """One case of an op, inputs in its order; indices and those in `constant` are not differentiated."""
    indices = tuple(k for k, x in inputs.items() if not x.is_floating_point())
    constant = (*constant, *indices)
    exact = {k: x if k in indices else x.double() for k, x in inputs.items()}
    for key, x in exact.items():
        x.requires_grad_(key not in constant)
    out = function(*exact.values())
    dout = normal(*out.shape)
    out.backward(dout.double())
    keep(f"{name}/out", out)
    keep(f"{name}/dout", dout)
    for key, x in exact.items():
        keep(f"{name}/{key}", x)
        if key not in constant:
            keep(f"{name}/d{key}", x.grad)

"""GPU memory of a training run on images, part by part. Bytes throughout."""

from __future__ import annotations

from runner.estimate import measured
from runner.estimate.activations import FULL
from runner.estimate.memory import NCCL_BUFFERS, Memory
from runner.estimate.resnet import Images, convolutions, copy_of, counts, kept, width
from runner.estimate.state import State


def estimate(work: Images) -> Memory:
    """The parts at the moment when most is taken: at the end of the forward pass, in some layer's backward pass, or in
    the optimizer's step."""
    layers, rows, wide = list(convolutions(work)), work.micro_batch_size, width(work)
    weights = FULL * (counts(work).total + 2 * sum(layer.fan_out for layer in layers))  # norms count as they go
    gradients = FULL * counts(work).total
    state = State(
        weights,
        gradients,
        0 if work.optimizer == "sgd" else 2 * gradients,
        buffers=gradients if work.sharding == "ddp" else 0,
    )
    # Beside its activations each layer keeps the weights that autocast made of its own.
    cast = [0, *(copy_of(work, layer) for layer in layers)]
    whole = [rows * size + copy for size, copy in zip(kept(work), cast, strict=True)]
    there = gradients if work.accumulation > 1 else 0
    moments = [("loss", there, sum(whole), 0)]
    done = there
    for index in reversed(range(len(layers))):
        layer = layers[index]
        done = min(gradients, done + FULL * layer.weights) if not there else gradients
        # The gradient that comes in and the one that goes out, and in a block that of the way around it.
        flight = wide * rows * (layer.output + max(layer.output, layer.input if index else 0))
        flight += 0 if index == 0 or layer.shortcut else wide * rows * layer.output
        fresh = FULL * layer.weights if there else 0
        moments.append(("backward", done, sum(whole[: index + 2]), flight + fresh))
    # The plain AdamW works on lists of tensors and holds the roots of all second moments at once.
    moments.append(("step", gradients, 0, gradients if work.optimizer == "adamw_torch" else 0))
    name, present, activations, flight = max(moments, key=lambda moment: sum(moment[1:]))
    return _memory(work, state, name, present, activations, flight)


def _memory(work: Images, state: State, name: str, gradients: int, activations: int, flight: int) -> Memory:
    known = measured.constants(work.machines.gpu)
    tensors = state.weights + state.optimizer + state.buffers + gradients + activations + flight
    evaluated = evaluation(work, state)
    return Memory(
        weights=state.weights,
        gradients=gradients,
        optimizer=state.optimizer,
        activations=activations,
        logits=0,
        temporary=flight,
        communication=state.buffers,
        context=known.context + (NCCL_BUFFERS if work.sharding == "ddp" else 0),
        slack=round(tensors * known.slack),
        training_moment=name,
        evaluation=evaluated,
        evaluation_slack=round(evaluated * known.slack),
        state=state,
    )


def evaluation(work: Images, state: State) -> int:
    """Nothing is kept for later: the stem's output, the block's input, what a layer reads, and its output before and
    after the norm are there at once, and the images."""
    stem, *layers = convolutions(work)
    images = kept(work)[0]
    widest = max(
        work.evaluation_batch_size * (images + width(work) * (stem.output + 4 * layer.output)) + copy_of(work, layer)
        for layer in layers
    )
    return state.weights + state.optimizer + state.buffers + widest

"""Our training loops beside numbers of the published programs: losses of every step, weights, embeddings."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from golden import (
    check_weights,
    close,
    golden,
    needs_golden,
    network_of,
    put,
    put_all,
    samples_of,
    steps,
    term,
    trained,
)
from viewfuse import Views
from viewfuse.data.scaling import fit_scaler, fit_whole_views
from viewfuse.engine.training import Stage
from viewfuse.methods.published import completer, cpspan, dsimvc, recformer, sure

pytestmark = needs_golden
__all__ = ["steps"]
alone_and_beside = pytest.mark.parametrize("beside", [False, pytest.param(True, marks=pytest.mark.slow)])
"""Two networks in one stack are compared with a plain loop in test_published_training, for every method."""


# COMPLETER and DCP


def autoencoders(network, core=True):
    """Parts of a network by their golden names."""
    parts = {f"enc{v}": one for v, one in enumerate(network.encoders)}
    parts |= {f"dec{v}": one for v, one in enumerate(network.decoders)}
    return parts | {f"pre{name[0]}{name[-1]}": one for name, one in network.predictors.items()}


def without_decoders(parts):
    return {name: one for name, one in parts.items() if not name.startswith("dec")}


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setattr(completer, "_PREDICTOR", (8, 10, 8, 10, 8))
    return {"latent_dim": 6, "hidden_dims": (12, 12, 12), "learning_rate": 1e-3}


@alone_and_beside
def test_completer(narrow, steps, beside):
    g = golden("COMPLETER")
    samples = samples_of(g)
    method, network = network_of("completer", samples, epochs=4, prediction_start=1, **narrow)
    put_all(autoencoders(network), g, "init_")
    trained(method, network, samples, beside=beside)
    close(term(steps), g["steps_total"])
    close(term(steps, "contrast"), g["steps_contrast"])
    close(term(steps, "reconstruction"), 0.1 * g["steps_reconstruction"].sum(dim=1))
    close(term(steps, "prediction")[1:], 0.1 * g["steps_prediction"].sum(dim=1)[1:])


@pytest.mark.parametrize(("name", "kind"), [("COMPLETER", "range"), ("SURE", "minmax")])
def test_scaling(name, kind):
    g = golden(name)
    views = Views([g["scale_in"].numpy()])
    scaler = fit_whole_views(views) if kind == "range" else fit_scaler(views, kind)
    close(scaler.apply(views).arrays[0], g["scale_out"], 1e-6)


def test_completer_weights_and_embedding(narrow, steps):
    g = golden("COMPLETER")
    samples = samples_of(g)
    method, network = network_of("completer", samples, epochs=3, prediction_start=1, **narrow)
    put_all(autoencoders(network), g, "init_")
    trained(method, network, samples, beside=True)
    check_weights(autoencoders(network), g, "final_")
    put_all(autoencoders(network), g, "final_", running=True)
    close(network.embed(samples, samples), g["embedding"])


@alone_and_beside
def test_dcp_of_two_views(narrow, steps, beside):
    g = golden("DCP")
    samples = samples_of(g, "two_")
    method, network = network_of("dcp", samples, epochs=2, prediction_start=1, batch_size=8, **narrow)
    put_all(autoencoders(network), g, "two_init_")
    trained(method, network, samples, beside=beside)
    close(term(steps), g["two_steps_total"])
    close(term(steps, "contrast"), g["two_steps_contrast"])
    check_weights(without_decoders(autoencoders(network)), g, "two_final_")
    put_all(without_decoders(autoencoders(network)), g, "two_final_", running=True)
    close(network.embed(samples, samples), g["two_embedding"])


@alone_and_beside
@pytest.mark.parametrize("n_views", [3, 4])
def test_dcp_with_a_core_view(narrow, steps, n_views, beside):
    g, prefix = golden("DCP"), f"v{n_views}_"
    samples = samples_of(g, prefix)
    complete = samples.take(g[f"{prefix}steps_rows"])
    method, network = network_of("dcp", samples, epochs=4, prediction_start=1, **narrow)
    put_all(autoencoders(network), g, f"{prefix}init_")
    trained(method, network, complete, beside=beside)
    close(term(steps), g[f"{prefix}core_steps_total"])
    close(term(steps, "contrast"), g[f"{prefix}core_steps_contrast"])
    close(term(steps, "reconstruction"), 0.1 * g[f"{prefix}core_steps_reconstruction"])
    close(term(steps, "prediction")[1:], 0.1 * g[f"{prefix}core_steps_prediction"][1:])


def test_dcp_weights_and_embedding_with_a_core_view(narrow, steps):
    g = golden("DCP")
    samples = samples_of(g, "v3_")
    method, network = network_of("dcp", samples, epochs=3, prediction_start=1, **narrow)
    put_all(autoencoders(network), g, "v3_init_")
    trained(method, network, samples.take(g["v3_steps_rows"]), beside=True)
    parts = without_decoders(autoencoders(network))
    check_weights(parts, g, "v3_core_final_")
    put_all(parts, g, "v3_core_final_", running=True)
    close(network.embed(samples, samples), g["v3_core_embedding"])


# DSIMVC

NARROW = {"latent_dim": 8, "feature_dim": 6, "hidden_dims": (9, 9, 10)}


def heads(network):
    parts = {f"enc{v}": one for v, one in enumerate(network.encoders)}
    return parts | {"feature": network.feature_head, "label": network.label_head}


@pytest.fixture
def dsimvc_starts(monkeypatch):
    """Everything that DSIMVC draws weights for itself begins with golden ones."""
    g, decoders = golden("DSIMVC"), []

    def start(module, generator):
        if isinstance(module, dsimvc.Encoders):
            put_all(heads(module), g, "second_init_")
            return
        if isinstance(module, dsimvc.MLP):  # the network of the weights
            put(module.double(), g["init_weigher"])
            return
        decoders.append(module)
        prefix = "pretrain_init_dec" if len(decoders) <= start.networks else "second_init_dec"
        for v, mlp in enumerate(module):
            put(mlp.double(), g[f"{prefix}{v}"])

    start.networks = 1
    monkeypatch.setattr(dsimvc, "start_weights", start)
    monkeypatch.setattr(dsimvc.DSIMVC, "empty", lambda self, widths: self.network(widths).double())
    return g, start


@alone_and_beside
def test_dsimvc_before_the_two_levels(dsimvc_starts, steps, monkeypatch, beside):
    g, start = dsimvc_starts
    start.networks = 1 + beside
    epochs = {"pretrain_epochs": 4, "neighbor_pretrain_epochs": 3, "neighbor_epochs": 3, "iterations": 0}
    samples = samples_of(g)
    method, network = network_of("dsimvc", samples, **epochs, **NARROW)
    parts = {name: one for name, one in heads(network).items() if name.startswith("enc")}
    put_all(parts, g, "pretrain_init_")
    kept = []

    fill_gaps = dsimvc.fill_gaps

    def spy(side, features):
        fill_gaps(side, features)
        kept.extend([[own[-1] for own in features], [view[-1] for view in side.values]])

    monkeypatch.setattr(dsimvc, "fill_gaps", spy)
    trained(method, network, samples, beside=beside)
    totals = term(steps)
    close(totals[:4], g["pretrain_total"])
    close(totals[4:], g["second_total"])
    for v, (features, filled) in enumerate(zip(*kept, strict=True)):
        there = samples.present[:, v]
        close(features[there], g[f"second_features{v}"][there])
        rows = [i for i in range(24) if v or i not in (1, 10)]  # which depend on features of hidden rows
        close(filled[rows], g[f"filled{v}"][rows], 1e-7)


@alone_and_beside
def test_dsimvc_two_levels(dsimvc_starts, steps, monkeypatch, beside):
    g, _ = dsimvc_starts
    epochs = {"pretrain_epochs": 0, "neighbor_pretrain_epochs": 0, "neighbor_epochs": 0, "iterations": 3}
    samples = samples_of(g)
    method, network = network_of("dsimvc", samples, **epochs, **NARROW)
    put_all(heads(network), g, "init_")

    def fill(side, features):
        for v, view in enumerate(side.values):
            view[-1] = g[f"filled{v}"]

    drawn = iter(
        [
            own[None].expand(1 + beside, -1)
            for t in range(3)
            for own in (g["steps_rows_complete"][t], g["steps_rows_filled"][t])
        ]
    )
    slopes, weights, judge, weigh = [], [], dsimvc.TwoLevels._judge, dsimvc.TwoLevels.weights

    def spy(levels, *args):
        judge(levels, *args)
        slopes.append(torch.cat([own.grad.reshape(1 + beside, -1)[-1] for own in levels.weigher.parameters()]))

    def spy_weights(levels, labels):
        found = weigh(levels, labels)
        weights.append(found[-1].detach())
        return found

    monkeypatch.setattr(dsimvc, "fill_gaps", fill)
    monkeypatch.setattr(dsimvc, "_drawn", lambda *_: next(drawn))
    monkeypatch.setattr(dsimvc.TwoLevels, "_judge", spy)
    monkeypatch.setattr(dsimvc.TwoLevels, "weights", spy_weights)
    trained(method, network, samples, beside=beside)
    close(term(steps), g["steps_total"][:3])
    close(torch.stack(slopes), g["steps_weigher_grad"][:3])
    for t in range(3):
        for own, name in ((weights[2 * t], "before"), (weights[2 * t + 1], "after")):
            raw = g[f"steps_raw_weights_{name}"][t]
            close(own, raw / raw.sum())
    check_weights(heads(network), g, "final_")
    close(network.embed(samples, samples), g["final_labels"])


# RecFormer


@torch.no_grad()
def put_transformer(network, g, prefix):
    for name in ("encoder", "decoder"):
        layer = getattr(network, name)
        for part in ("query", "key", "value", "out", "first", "second"):
            getattr(layer, part).weight.copy_(g[f"{prefix}{name}_{part}_W"])
            getattr(layer, part).bias.copy_(g[f"{prefix}{name}_{part}_b"])
        for i, norm in enumerate(layer.norms):
            norm.weight.copy_(g[f"{prefix}{name}_norm{i}"][0])
            norm.bias.copy_(g[f"{prefix}{name}_norm{i}"][1])
    for name, linears in (("input", network.inputs), ("output", network.outputs)):
        for v, linear in enumerate(linears):
            linear.weight.copy_(g[f"{prefix}{name}{v}_W"])
            linear.bias.copy_(g[f"{prefix}{name}{v}_b"])


def recformer_of(g):
    samples = samples_of(g)
    widths = {"token_dim": 8, "feedforward_dim": 16, "n_heads": 4, "n_neighbors": 4}
    method, network = network_of("recformer", samples, recover_epochs=2, refine_epochs=2, batch_size=12, **widths)
    put_transformer(network.refine, g, "init_")
    return method, network, samples


def neighbors_of(graph):
    """Per view and sample the set of neighbours, of a 0/1 matrix."""
    return [[set(row.nonzero().flatten().tolist()) for row in view] for view in graph]


@alone_and_beside
def test_recformer(steps, monkeypatch, beside):
    g = golden("RecFormer")
    method, network, samples = recformer_of(g)
    graphs, renew = [], recformer._Graph.renew_neighbors

    def spy(graph, epoch):
        renew(graph, epoch)
        epoch -= 1  # counted from 0 in the file
        graphs.append(graph)
        for v, view in enumerate(graph.completed):
            close(view[-1], g[f"epoch{epoch}_completed{v}"])
        found = graph.neighbors[-1].transpose(0, 1)
        assert [[set(own.tolist()) for own in view] for view in found] == neighbors_of(g[f"epoch{epoch}_graph"])

    monkeypatch.setattr(recformer._Graph, "renew_neighbors", spy)
    trained(method, network, samples, beside=beside)
    close(term(steps), g["steps_total"])
    close(term(steps, "reconstruction"), g["steps_reconstruction"])
    close(term(steps, "graph"), g["steps_graph"])
    close(graphs[-1].tokens[-1].mean(dim=1), g["last_epoch_mean"])
    _, wanted, _ = recformer_of(g)
    put_transformer(wanted.refine, g, "final_")
    for ours, theirs in zip(network.refine.parameters(), wanted.refine.parameters(), strict=True):
        close(ours, theirs.detach(), 1e-8)


def test_recformer_network():
    g = golden("RecFormer")
    _, network, samples = recformer_of(g)
    values, present = [view[None] for view in samples.values], samples.present[None]
    for name, shown in (("masked", present), ("free", torch.ones_like(present))):
        tokens = network.refine.tokens(values, shown)
        close(tokens[0], g[f"{name}_tokens"])
        close(recformer.mean_token(tokens, shown)[0], g[f"{name}_mean"])
        for v, view in enumerate(network.refine.decode(recformer.mean_token(tokens, shown))):
            close(view[0], g[f"{name}_found{v}"])
        close(network.refine.encoder._attend(g["attention_in"][None], shown)[0], g[f"attention_out_{name}"])
    close(network.refine.encoder.norms[0](g["norm_in"][None])[0], g["attention_in"])


def test_recformer_losses():
    g = golden("RecFormer")
    found = [g[f"rec_found{v}"][None].requires_grad_() for v in range(3)]
    wanted, shown = [g[f"rec_wanted{v}"][None] for v in range(3)], g["rec_shown"].bool()[None]
    loss = recformer.reconstruction_loss(found, wanted, shown)
    close(loss[0], g["rec_loss"])
    close(torch.autograd.grad(loss.sum(), found[0])[0][0], g["rec_loss_grad_found0"])
    close(recformer.reconstruction_loss(found, wanted, torch.ones_like(shown))[0], g["rec_loss_all_shown"])
    tokens, near = g["graph_tokens"][None].requires_grad_(), []
    for v in range(3):
        near.append(recformer.nearest(g[f"rec_found{v}"], 4))
        assert [set(own.tolist()) for own in near[v]] == neighbors_of(g["graph"])[v]
    loss = recformer.graph_loss(tokens, g["graph_memory"][None], torch.stack(near, dim=1)[None, :10])
    close(loss[0], g["graph_loss"])
    close(torch.autograd.grad(loss.sum(), tokens)[0][0], g["graph_loss_grad_tokens"])


# SURE


def sure_run(monkeypatch, g, **params):
    samples = samples_of(g)
    narrow = {"latent_dim": 10, "hidden_dims": (12, 12, 12), "dropout": 0.0, "batch_size": 64}
    method, network = network_of("sure", samples, **narrow, **params)
    pairs = torch.cat([g["pairs"], g["pairs_positive"][:, None]], dim=1)
    monkeypatch.setattr(sure.SURE, "_pairs", lambda *_: pairs)
    put_all(sure_parts(network), g, "init_")
    return method, network, samples


def sure_parts(network):
    parts = {f"enc{v}": one for v, one in enumerate(network.encoders)}
    return parts | {f"dec{v}": one for v, one in enumerate(network.decoders)}


@alone_and_beside
@pytest.mark.parametrize("kind", ["plain", "robust"])
def test_sure(steps, monkeypatch, kind, beside):
    g = golden("SURE")
    method, network, samples = sure_run(monkeypatch, g, epochs=3 if kind == "plain" else 4)
    measure, margins = sure._Contrast._measured_margin, []

    def spy(contrast, *args):
        contrast.robust.fill_(kind == "robust")
        margins.append(measure(contrast, *args))
        return margins[0]

    monkeypatch.setattr(sure._Contrast, "_measured_margin", spy)
    trained(method, network, samples, beside=beside)
    assert margins[0][-1] == g["plain_margin"]
    close(term(steps), g[f"{kind}_total"][: method.epochs], 1e-7)
    close(term(steps, "contrast"), g[f"{kind}_contrast"][: method.epochs], 1e-7)
    if kind == "plain":
        check_weights(sure_parts(network), g, "plain_final_")
        for v, encoder in enumerate(network.encoders):
            put(encoder, g[f"plain_final_enc{v}"], g[f"plain_final_enc{v}_running"])
        close(network.embed(samples, samples), g["plain_embedding"])


def test_sure_spares_near_pairs_for_good_after_the_epoch_that_says_so(steps, monkeypatch):
    g = golden("SURE")
    method, network, samples = sure_run(monkeypatch, g, epochs=40, learning_rate=float(g["switch_lr"]))
    after, robust, means = sure._Contrast.after_epoch, [], []

    def spy(contrast, epoch):
        means.append(float(contrast._sums[-1, 0] / contrast._sums[-1, 1]))
        after(contrast, epoch)
        robust.append(bool(contrast.robust[-1]))

    monkeypatch.setattr(sure._Contrast, "after_epoch", spy)
    trained(method, network, samples, beside=False)
    assert robust == g["switch_robust_after_epoch"][1:].tolist()
    close(means, g["switch_negative_mean"][1:], 1e-6)
    close(term(steps), g["switch_total"], 1e-6)
    close(term(steps, "contrast"), g["switch_contrast"], 1e-6)


@pytest.mark.parametrize("margin", [1, 3, 5])
@pytest.mark.parametrize("when", ["before", "after"])
def test_sure_loss(margin, when):
    g = golden("SURE")
    distance, positive = g["pair_distance"][None].requires_grad_(), g["pair_positive"].bool()[None]
    robust = torch.tensor([when == "after"])
    both = torch.ones_like(positive)
    loss = sure.contrastive_loss(distance, positive, both, torch.tensor([float(margin)]), robust)
    close(loss[0], g[f"pair_loss_margin{margin}_{when}"], 1e-7)
    wanted = g[f"pair_loss_margin{margin}_{when}_grad"]
    close(torch.autograd.grad(loss.sum(), distance)[0][0], wanted, 1e-7)
    close(sure.pair_distance(g["dist_h0"][None], g["dist_h1"][None])[0], g["dist"])


# CPSPAN


class InOrder:
    """A random generator that leaves things as they are."""

    permutation = staticmethod(np.asarray)


def cpspan_run(g, **params):
    samples = samples_of(g)
    method, network = network_of("cpspan", samples, latent_dim=10, hidden_dims=(9, 9, 10), **params)
    put_all(sure_parts(network), g, "init_")
    return method, network, samples


@alone_and_beside
def test_cpspan_first_stage(steps, monkeypatch, beside):
    g = golden("CPSPAN")
    method, network, samples = cpspan_run(g, pretrain_epochs=3, epochs=0, batch_size=19)
    monkeypatch.setattr(np.random, "default_rng", lambda seed: InOrder)
    close(cpspan._lists(samples.present, 19, 0), g["pretrain_rows"])
    trained(method, network, samples, beside=beside)
    close(term(steps), g["pretrain_total"][:3])
    check_weights(sure_parts(network), g, "pretrain_final_")


@alone_and_beside
@pytest.mark.parametrize(("kind", "weight"), [("align", 1e-3), ("heavy", 1.0)])
def test_cpspan_second_stage(steps, kind, weight, beside):
    g, weights = golden("CPSPAN"), {"prototype_weight": weight, "instance_weight": weight}
    method, network, samples = cpspan_run(g, pretrain_epochs=0, epochs=4, **weights)
    trained(method, network, samples, beside=beside)
    close(term(steps), g[f"{kind}_total"])
    close(term(steps, "reconstruction"), g[f"{kind}_reconstruction"])
    for name, golden_name in (("instances", "instance"), ("prototypes", "prototype")):
        close(term(steps, name), weight * g[f"{kind}_{golden_name}_of_pairs"].sum(dim=1))
    if kind == "heavy":
        wanted = torch.stack([g[f"fill_codes{v}"] for v in range(3)], dim=1) * samples.present[..., None]
        close(network.codes(samples), wanted)


def test_cpspan_weights(steps):
    g = golden("CPSPAN")
    method, network, samples = cpspan_run(g, pretrain_epochs=0, epochs=3, prototype_weight=1.0, instance_weight=1.0)
    trained(method, network, samples, beside=True)
    check_weights(sure_parts(network), g, "heavy_final_")


@pytest.mark.parametrize("case", ["a", "b"])
def test_cpspan_losses(case):
    g = golden("CPSPAN")
    first, second = g[f"{case}_z1"][None].requires_grad_(), g[f"{case}_z2"][None]
    both = torch.ones(1, first.shape[1], dtype=torch.bool)
    for name, loss in (("instance", cpspan.instance_loss), ("prototype", cpspan.prototype_loss)):
        found = loss(first, second, both)
        close(found[0], g[f"{case}_{name}"])
        close(torch.autograd.grad(found.sum(), first)[0][0], g[f"{case}_{name}_grad_z1"])


# Losses of COMPLETER, DCP and DSIMVC


@pytest.mark.parametrize("kind", ["soft", "hard"])
@pytest.mark.parametrize("alpha", [9, 0])
def test_completer_contrast(kind, alpha):
    g = golden("COMPLETER")
    first, second = g[f"cl_{kind}_z1"][None].requires_grad_(), g[f"cl_{kind}_z2"][None]
    both = torch.ones(1, first.shape[1], dtype=torch.bool)
    loss = completer.mutual_information_loss(first, second, both, alpha)
    close(loss[0], g[f"cl_{kind}_alpha{alpha}"])
    close(torch.autograd.grad(loss.sum(), first)[0][0], g[f"cl_{kind}_alpha{alpha}_grad_z1"])


@pytest.mark.parametrize(("name", "last", "column"), [("COMPLETER", "spread", 2), ("DCP", "drop", 2)])
def test_batches_of_an_epoch(name, last, column):
    for row in golden(name)["batches"]:
        n, size, wanted = (int(row[i]) for i in (0, 1, column))
        assert Stage("any", 1, size, 1e-3, None, last=last).steps(n)[0] == max(1, wanted)  # the only batch is kept


@pytest.mark.parametrize("case", ["b32", "b64"])
def test_dsimvc_losses(case):
    g = golden("DSIMVC")
    first, second = g[f"{case}_z1"][None].requires_grad_(), dsimvc.shortened(g[f"{case}_z2"][None])
    logits = g[f"{case}_logits1"][None].requires_grad_()
    each = dsimvc.feature_terms(dsimvc.shortened(first), second)
    shared = dsimvc.label_loss(logits.softmax(dim=2), g[f"{case}_q2"][None])
    close(each[0] / each.shape[1], g[f"{case}_feature_each"])
    close(shared[0], g[f"{case}_label"])
    close(torch.autograd.grad(shared.sum(), logits)[0][0], g[f"{case}_label_grad_logits1"])
    found = dsimvc.Found(each, torch.zeros(1).double(), each)
    raw = g[f"{case}_raw_weight"][None]
    for loss, name in ((found.total(), "feature"), (found.total(raw / raw.sum()), "filled_feature")):
        close(loss[0], g[f"{case}_{name}"])
        slopes = torch.autograd.grad(loss.sum(), first, retain_graph=True)[0][0]
        close(slopes, g[f"{case}_{name}_grad_z1"])
    close(found.total(torch.full_like(raw, 1 / raw.shape[1]))[0], g[f"{case}_filled_feature_uniform"])

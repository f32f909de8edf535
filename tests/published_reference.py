"""Trainings of published methods, written out in plain torch: one network, ordinary layers, loops over samples.

Each function trains copies of the parts of our network and returns the losses before every update and the parts.
"""

from __future__ import annotations

import copy
from itertools import combinations
from math import log

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cosine_similarity, mse_loss, normalize

from reference_step import Adam


def plain(mlp):
    """A fully connected network of ours as torch's own layers."""
    layers = []
    for i, linear in enumerate(mlp.linears):
        own = nn.Linear(linear.in_features, linear.out_features).double()
        own.load_state_dict(linear.state_dict())
        layers.append(own)
        if i < mlp.n_ended:
            if mlp.norms is not None:
                norm = nn.BatchNorm1d(linear.out_features).double()
                norm.load_state_dict(mlp.norms[i].state_dict(), strict=False)
                layers.append(norm)
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def plain_parts(network):
    """Encoders, decoders and predictors, by name."""
    parts = {f"encoder {v}": plain(one) for v, one in enumerate(network.encoders)}
    parts |= {f"decoder {v}": plain(one) for v, one in enumerate(getattr(network, "decoders", ()))}
    parts |= {name: plain(one) for name, one in getattr(network, "predictors", {}).items()}
    return nn.ModuleDict(parts)


def descend(adam, loss):
    adam.zero_grad()
    loss.backward()
    adam.step()
    return loss.item()


# COMPLETER and DCP


def information(first, second, alpha):
    joint = sum(torch.outer(a, b) for a, b in zip(first, second, strict=True))
    joint = (joint + joint.T) / 2
    joint = joint / joint.sum()
    p, q = joint.sum(dim=1), joint.sum(dim=0)
    width = range(len(joint))
    return -sum(joint[a, b] * (joint[a, b].log() - (alpha + 1) * (p[a] * q[b]).log()) for a in width for b in width)


def train_completer(network, values, mask, method, pairs, share):
    """`pairs` of views with the weights of their contrast and prediction; `share` of a view in the reconstruction."""
    parts, losses = plain_parts(network), []
    adam = Adam(parts.parameters(), lr=method.learning_rate)
    learned = [i for i in range(len(mask)) if mask[i].sum() > 1]
    for epoch in range(method.epochs):
        total, codes = 0.0, {}
        for v, x in enumerate(values):
            here = [i for i in learned if mask[i, v]]
            found = parts[f"encoder {v}"](x[here]).softmax(dim=1)
            total = total + method.reconstruction_weight * share * mse_loss(parts[f"decoder {v}"](found), x[here])
            codes[v] = dict(zip(here, found, strict=True))
        for a, b, contrast, prediction in pairs:
            both = [i for i in learned if mask[i, a] and mask[i, b]]
            own = {v: torch.stack([codes[v][i] for i in both]) for v in (a, b)}
            total = total + contrast * information(own[a], own[b], method.entropy_weight)
            for u, v in ((a, b), (b, a)) if epoch >= method.prediction_start else ():
                found = parts[f"{u} to {v}"](own[u]).softmax(dim=1)
                total = total + method.prediction_weight * prediction * mse_loss(found, own[v])
        losses.append(descend(adam, total))
    return losses, parts


# SURE


def train_sure(network, values, mask, method, pairs):
    """`pairs` as rows of the views, and whether all are one sample."""
    parts, losses, robust, views = plain_parts(network), [], False, range(len(values))
    adam = Adam(parts.parameters(), lr=method.learning_rate)

    def encode():
        codes = []
        for v in views:
            here = [e for e, pair in enumerate(pairs) if mask[pair[v], v]]
            found = parts[f"encoder {v}"](values[v][[pairs[e][v] for e in here]])
            own = dict(zip(here, found, strict=True))
            codes.append([own.get(e, torch.zeros_like(found[0])) for e in range(len(pairs))])
        return codes

    def distances(codes, a, b):
        """Of pairs that have both views, positive and negative ones."""
        kinds = {True: [], False: []}
        for e, pair in enumerate(pairs):
            if mask[pair[a], a] and mask[pair[b], b]:
                kinds[bool(pair[-1])].append((codes[a][e] - codes[b][e] + 1e-6).norm())
        return kinds

    def mean_distance(codes, kind):
        found = [d.item() for a, b in combinations(views, 2) for d in distances(codes, a, b)[kind]]
        return sum(found) / len(found)

    codes = encode()  # training mode: what normalisations keep moves
    margin = max(1, round(mean_distance(codes, True) + mean_distance(codes, False)))
    for _ in range(method.epochs):
        codes, total, count = encode(), 0.0, 0
        for a, b in combinations(views, 2):
            kinds = distances(codes, a, b)
            near = sum(d**2 for d in kinds[True])
            far = sum((d / margin if robust else 1) * torch.clamp(margin - d, min=0) ** 2 for d in kinds[False])
            total, count = total + (near + far) / (2 * sum(map(len, kinds.values()))), count + 1
        total = total / count
        together = torch.stack([torch.cat([codes[v][e] for v in views]) for e in range(len(pairs))])
        for v in views:
            here = [e for e, pair in enumerate(pairs) if mask[pair[v], v]]
            wanted = values[v][[pairs[e][v] for e in here]]
            total = total + method.reconstruction_weight * mse_loss(parts[f"decoder {v}"](together)[here], wanted)
        robust = robust or mean_distance(codes, False) >= margin
        losses.append(descend(adam, total))
    return losses, parts


# CPSPAN


def train_cpspan(network, values, mask, method, lists):
    """`lists` holds per view the rows of the first stage."""
    parts, losses, views = plain_parts(network), [], range(len(values))
    adam = Adam(parts.parameters(), lr=method.pretrain_rate)
    for _ in range(method.pretrain_epochs):
        wanted = [x[own] for x, own in zip(values, lists, strict=True)]
        found = [parts[f"decoder {v}"](parts[f"encoder {v}"](wanted[v])) for v in views]
        losses.append(descend(adam, sum(map(mse_loss, found, wanted))))
    adam = Adam(parts.parameters(), lr=method.learning_rate)
    for _ in range(method.epochs):
        codes, total = [parts[f"encoder {v}"](x) for v, x in enumerate(values)], 0.0
        for v in views:
            total = total + mse_loss(parts[f"decoder {v}"](codes[v])[mask[:, v]], values[v][mask[:, v]])
        for a, b in combinations(views, 2):
            one, two = (codes[v][mask[:, a] & mask[:, b]] for v in (a, b))
            instances = [(1 - cosine_similarity(x, y, dim=0)) ** 2 for x, y in zip(one, two, strict=True)]
            columns = [(1 - cosine_similarity(x, y, dim=0)) ** 2 for x in one.T for y in two.T]
            total = total + method.instance_weight * sum(instances) / len(instances)
            total = total + method.prototype_weight * sum(columns) / len(columns)
        losses.append(descend(adam, total))
    return losses, parts


# RecFormer


class Recovering:
    """The Transformer on one sample."""

    def __init__(self, network, n_heads):
        self.parts, self.n_heads = copy.deepcopy(network), n_heads

    def norm(self, own, x):
        return (x - x.mean(dim=1, keepdim=True)) / (x.std(dim=1, keepdim=True) + 1e-6) * own.weight + own.bias

    def linear(self, own, x):
        return x @ own.weight.T + own.bias

    def layer(self, own, tokens, present):
        normed = self.norm(own.norms[0], tokens)
        query, key, value = (self.linear(one, normed) for one in (own.query, own.key, own.value))
        width, heads = tokens.shape[1] // self.n_heads, []
        for h in range(self.n_heads):
            part = slice(h * width, (h + 1) * width)
            logits = query[:, part] @ key[:, part].T / width**0.5
            seen = logits.masked_fill(~torch.outer(present, present), -1e9)
            heads.append(seen.softmax(dim=1) @ value[:, part])
        tokens = tokens + self.linear(own.out, torch.cat(heads, dim=1))
        tokens = tokens + self.linear(own.second, self.linear(own.first, self.norm(own.norms[1], tokens)).relu())
        return self.norm(own.norms[2], tokens)

    def __call__(self, values, present):
        """Tokens of a sample, of shape (views, width), and what is expected in its views."""
        embedded = [self.linear(own, x[None])[0] for own, x in zip(self.parts.inputs, values, strict=True)]
        tokens = self.layer(self.parts.encoder, torch.stack(embedded), present)
        repeated = tokens[present].mean(dim=0).expand_as(tokens)
        decoded = self.layer(self.parts.decoder, repeated, torch.ones_like(present))
        return tokens, [self.linear(own, x[None])[0] for own, x in zip(self.parts.outputs, decoded, strict=True)]


def train_recformer(network, values, mask, method, batches):
    """`batches` of an epoch, each a list of rows."""
    model, losses = Recovering(network.refine, method.n_heads), []
    adam = Adam(model.parts.parameters(), lr=method.learning_rate)
    n, views = len(mask), range(len(values))
    completed, present, near = [x.clone() for x in values], mask.clone(), None
    memory = torch.ones(n, len(values), method.token_dim).double()
    for epoch in range(method.recover_epochs + method.refine_epochs):
        refines = epoch >= method.recover_epochs
        if epoch == method.recover_epochs:
            values, present = [x.clone() for x in completed], torch.ones_like(mask)
        passed = memory.clone() if refines else memory
        for rows in batches:
            errors, graph, news = 0.0, 0.0, []
            for i in rows:
                tokens, found = model([x[i] for x in values], present[i])
                for v in views:
                    error = (present[i, v] * (values[v][i] - found[v]) ** 2).sum()
                    errors = errors + error / (len(values) * len(rows) * values[v].shape[1])
                    for j in near[v][i] if near else ():
                        graph = graph + ((tokens[v] - memory[j, v]) ** 2).sum() / (len(values) * len(rows) * n)
                    if not mask[i, v] and not refines:
                        completed[v][i] = found[v].detach()
                news.append(tokens.detach())
            losses.append(descend(adam, errors + method.graph_weight * graph))
            for i, own in zip(rows, news, strict=True):
                passed[i] = own
        memory = passed
        if not refines:
            near = [nearest(x, method.n_neighbors) for x in completed]
    return losses, model.parts


def nearest(points, count):
    apart = torch.cdist(points, points)
    return [
        sorted((j for j in range(len(points)) if j != i), key=apart[i].__getitem__)[:count] for i in range(len(points))
    ]


# DSIMVC


class Clustering(nn.Module):
    """Encoders with two heads, in plain layers."""

    def __init__(self, network):
        super().__init__()
        self.encoders = nn.ModuleList(plain(own) for own in network.encoders)
        self.feature, self.label = plain(network.feature_head), plain(network.label_head)

    def forward(self, values):
        codes = [encode(x) for encode, x in zip(self.encoders, values, strict=True)]
        return [self.feature(code) for code in codes], [self.label(code).softmax(dim=1) for code in codes]


def feature_loss(first, second, weights=None):
    """Of one pair of views; `weights` are those of filled samples."""
    n, each = len(first), []
    for i in range(n):
        inner = second @ first[i]
        each.append((-2 * inner[i] + (inner.square().sum() - inner[i] ** 2) / (n - 1)) / n)
    if weights is None:
        return sum(each)
    return sum(u * own for u, own in zip(weights, each, strict=True)) / sum(weights)


def label_loss(first, second):
    total, k = 0.0, first.shape[1]
    for own, other in ((first, second), (second, first)):
        p = own.mean(dim=0)
        total = total + log(k) + (p * p.log()).sum()
        for a in range(k):
            logits = [cosine_similarity(own[:, a], (other if b == a else own)[:, b], dim=0) for b in range(k)]
            total = total + (torch.stack(logits).logsumexp(dim=0) - logits[a]) / (2 * k)
    return total


def shortened(features):
    return torch.stack([own if own.norm() <= 3**0.5 else own * 3**0.5 / own.norm() for own in features])


def contrast(features, labels, weights=None):
    pairs = list(combinations(range(len(features)), 2))
    return sum(feature_loss(features[a], features[b], weights) + label_loss(labels[a], labels[b]) for a, b in pairs)


def train_dsimvc(network, values, mask, method, starts):
    """`starts` are the decoders of the first network, the second network with its own, and the weigher."""
    decoders, second, second_decoders, weigher = starts
    complete = [i for i in range(len(mask)) if mask[i].all()]
    others = [i for i in range(len(mask)) if not mask[i].all()]
    means = [x[mask[:, v]].mean(dim=0) for v, x in enumerate(values)]
    values = [torch.where(mask[:, v, None], x, means[v]) for v, x in enumerate(values)]
    if len(complete) < 2:
        complete, others = list(range(len(mask))), []
    main, second, weigher = Clustering(network), Clustering(second), plain(weigher)
    losses = []

    def reconstruct(model, decoders, epochs):
        decoders = nn.ModuleList(plain(own) for own in decoders)
        adam = Adam([*model.parameters(), *decoders.parameters()], lr=method.learning_rate)
        for _ in range(epochs):
            own = [x[complete] for x in values]
            found = [decode(encode(x)) for encode, decode, x in zip(model.encoders, decoders, own, strict=True)]
            losses.append(descend(adam, sum(map(mse_loss, found, own))))
        return adam

    reconstruct(main, decoders, method.pretrain_epochs)
    adam = reconstruct(second, second_decoders, method.neighbor_pretrain_epochs)
    for _ in range(method.neighbor_epochs):
        features, labels = second([x[complete] for x in values])
        losses.append(descend(adam, contrast([normalize(own, dim=1) for own in features], labels)))
    filled = filled_views(values, mask, [normalize(own, dim=1).detach() for own in second(values)[0]])
    adams = [Adam(main.parameters(), lr=method.learning_rate)]
    adams.append(Adam(weigher.parameters(), lr=method.weight_rate))

    def loss(parameters, *, weighs=None):
        features, labels = functional_call(main, parameters, ([x[complete] for x in filled],))
        total = contrast([shortened(own) for own in features], labels)
        if not others or weighs is None:
            return total
        features, labels = functional_call(main, parameters, ([x[others] for x in filled],))
        weights = weighs(sum(labels) / len(labels))
        return total + contrast([shortened(own) for own in features], labels, weights)

    def weighed(q):
        return weigher(q)[:, 0].sigmoid()

    for _ in range(method.iterations):
        own = dict(main.named_parameters())
        if others:
            slopes = torch.autograd.grad(loss(own, weighs=weighed), list(own.values()), create_graph=True)
            moved = {k: p - method.virtual_rate * d for (k, p), d in zip(own.items(), slopes, strict=True)}
            adams[1].zero_grad()
            loss(moved).backward(inputs=list(weigher.parameters()))
            adams[1].step()
        losses.append(descend(adams[0], loss(own, weighs=lambda q: weighed(q).detach())))
    return losses, main


def filled_views(values, mask, features):
    """Donors by the views that a sample has, in turn; whoever has three looks at one more of each further view."""
    filled, views = [x.clone() for x in values], range(len(values))
    for i, v in ((i, v) for i in range(len(mask)) for v in views if not mask[i, v]):
        donors = []
        for w in (w for w in views if mask[i, w]):
            ranked = [j for j in range(len(mask)) if j != i and mask[j, w]]
            for j in sorted(ranked, key=lambda j: -float(features[w][i] @ features[w][j])):
                if mask[j, v]:
                    donors.append(j)
                if len(donors) >= 3:
                    break
        if donors:
            filled[v][i] = sum(values[v][j] for j in donors) / len(donors)
    return filled

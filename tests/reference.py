"""The paper's equations and algorithms, written out literally and slowly in float64 numpy."""

from __future__ import annotations

import math

import numpy as np


def knn(values, mask, view, i, count):
    """The sample itself, then its nearest neighbours among samples that have the view."""
    others = [j for j in range(len(mask)) if j != i and mask[j, view]]
    others.sort(key=lambda j: (math.dist(values[view][i].astype(float), values[view][j].astype(float)), j))
    return [i, *others][:count]


def algorithm_1(values, mask, row_mask, i, view, k):
    """KNN list of view `view` of sample `i`, whose own indicator is `row_mask`, as sample numbers."""
    if row_mask[view]:
        return knn(values, mask, view, i, k)
    found = []
    for a in range(k):
        for b in range(mask.shape[1]):
            if b == view or not row_mask[b]:
                continue
            neighbors = knn(values, mask, b, i, k)
            if a >= len(neighbors):
                continue
            j = neighbors[a]
            is_self = j == i  # its view is missing, or dropped: it is never its own donor
            if mask[j, view] and not is_self:
                found.append(j)
    return found[:k]


def knn_list(values, mask, row_mask, i, view, k, depth):
    """Algorithm 1; where it finds nobody, its search repeated with `depth` neighbours (the project's addition)."""
    printed = algorithm_1(values, mask, row_mask, i, view, k)
    return printed or algorithm_1(values, mask, row_mask, i, view, max(k, depth))[:k]


def knn_imputation(values, mask, row_mask, i, k, depth):
    """x-bar per view, of shape (k, columns), and m-bar of shape (views, k)."""
    tokens, valid = [], np.zeros((mask.shape[1], k), dtype=bool)
    for v in range(mask.shape[1]):
        block = np.zeros((k, values[v].shape[1]))
        for place, j in enumerate(knn_list(values, mask, row_mask, i, v, k, depth)):
            block[place] = values[v][j]
            valid[v, place] = True
        tokens.append(block)
    return tokens, valid


def cosine_distance(a, b):
    norms = math.sqrt((a * a).sum()) * math.sqrt((b * b).sum())
    return 1.0 - float(a @ b) / norms if norms > 0 else 1.0


def cdpe(block):
    k = len(block)
    distances = np.array([[cosine_distance(block[a], block[b]) for b in range(k)] for a in range(k)])
    return np.concatenate([block, distances], axis=1)


def tam(valid, available, gamma):
    bias = np.zeros(len(available))
    for j in range(len(available)):
        if not available[j]:
            bias[j] = gamma if valid[j].sum() > 0 else -np.inf
    return bias


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def attention(query, key, value, bias):
    """softmax(QK'/sqrt(d) + M_A) V for one head; a row with nothing to attend to gives zero."""
    out = np.zeros((len(query), value.shape[1]))
    for a in range(len(query)):
        scores = np.array([query[a] @ key[b] / math.sqrt(query.shape[1]) + bias[b] for b in range(len(key))])
        if not np.isneginf(scores).all():
            out[a] = sum(w * v for w, v in zip(softmax(scores), value, strict=True))
    return out


def linear(layer, x):
    return x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()


def layer_norm(norm, x):
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + norm.eps)
    return scaled * norm.weight.detach().numpy() + norm.bias.detach().numpy()


def transformer(block, tokens, bias):
    """All outputs of one post-norm block."""
    width = tokens.shape[1]
    key_value = linear(block.key_value, tokens)
    query, key, value = linear(block.query, tokens), key_value[:, :width], key_value[:, width:]
    size = width // block.n_heads
    heads = [slice(h * size, (h + 1) * size) for h in range(block.n_heads)]
    mixed = np.concatenate([attention(query[:, h], key[:, h], value[:, h], bias) for h in heads], axis=1)
    x = layer_norm(block.norm_attention, tokens + linear(block.merge, mixed))
    first, _, last = block.feedforward
    return layer_norm(block.norm_feedforward, x + linear(last, np.maximum(linear(first, x), 0)))


def fully_connected(layers, x):
    for layer in layers:
        if hasattr(layer, "in_features"):
            x = linear(layer, x)
        else:
            slope = float(layer.weight.detach())
            x = np.where(x > 0, x, slope * x)
    return x


def encode(network, tokens, valid, available, gamma):
    """z of one sample: NDE with the first output, VDE with the mean output."""
    views = []
    for v, encoder in enumerate(network.neighbor_encoders):
        bias = np.where(valid[v], 0.0, -np.inf)
        views.append(transformer(encoder.block, cdpe(tokens[v]), bias)[0])
    rows = [fully_connected(ffn, x) for ffn, x in zip(network.view_encoder.embed, views, strict=True)]
    return transformer(network.view_encoder.block, np.stack(rows), tam(valid, available, gamma)).mean(axis=0)


def view_weights(network, tokens, valid, available, gamma):
    """How far z moves when nothing stands in a view, as a share over the views (the project's definition)."""
    z = encode(network, tokens, valid, available, gamma)
    moved = []
    for v in range(len(available)):
        fewer_tokens = [0.0 * block if u == v else block for u, block in enumerate(tokens)]
        fewer_filled, fewer_have = valid.copy(), available.copy()
        fewer_filled[v] = fewer_have[v] = False
        moved.append(math.dist(z, encode(network, fewer_tokens, fewer_filled, fewer_have, gamma)))
    return np.array(moved) / sum(moved)


def loss_rec(rebuilt, values, present):
    """Mean over columns, sum over views, mean over the batch (the project's reading of the sums)."""
    total = 0.0
    for i in range(len(present)):
        for v in range(present.shape[1]):
            if present[i, v]:
                total += float(((rebuilt[v][i] - values[v][i]) ** 2).mean())
    return total / len(present)


def loss_aug(z, z_aug):
    total = 0.0
    for i in range(len(z)):
        terms = [math.exp(-math.dist(z_aug[i], z[j])) for j in range(len(z))]
        total += -math.log(terms[i] / sum(terms))
    return total / len(z)


def student_t(z, centers):
    kernel = np.array([[1.0 / (1.0 + math.dist(a, c) ** 2) for c in centers] for a in z])
    return kernel / kernel.sum(axis=1, keepdims=True)


def target(q):
    f = q.sum(axis=0)
    p = np.array([[q[i, j] ** 2 / f[j] for j in range(q.shape[1])] for i in range(len(q))])
    return p / p.sum(axis=1, keepdims=True)


def loss_clu(z, centers):
    q = student_t(z, centers)
    p = target(q)
    rows, columns = q.shape
    return sum(p[i, j] * math.log(p[i, j] / q[i, j]) for i in range(rows) for j in range(columns)) / rows

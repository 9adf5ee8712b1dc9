"""The ranker of leafy chain graphs: an encoder of roots and leaves, vectors of entities, and a pointer into the text.

The encoder is GraphMERT's, arXiv 2510.09580, sections 4.2 (leafy chain graphs) and 4.3 (architecture): H-GAT at the
embeddings, attention that decays with distance on the graph. Its leaves are one masked node for each fact.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.task import Batch
from workloads.graphmer import settings
from workloads.graphmer.settings import CONDITIONS, FEATURES, MASK, NEAR, PAD

# Parts of an entity's vector, and the pieces of each at most
PARTS = (("name", 6), ("owner", 4), ("package", 3))
WIDTH = sum(most for _, most in PARTS)
MOST_MEANT = 8.0  # the most that a place may add for or against an entity of its name
IMPOSSIBLE = -1e4  # the score of a candidate whose type the relation does not have
_UNSEEN = -1e4  # attention's addition at masked places


def room(candidates: int, facts: int) -> int:
    """Returns how many candidates a batch has at most: those asked for, or twice its facts where these are more."""
    return max(candidates, 2 * facts)


class HGat(nn.Module):
    """Fuses a relation and its head into the embeddings of a leaf.

        e_ij = LeakyReLU(a_r . [W_r t_i ; W_r h_j]),  alpha = softmax over the head's tokens j,
        t_i <- t_i + sum_j alpha_ij W_r h_j

    W_r is 1 + U_r V_r of rank `rank`: full matrices would be 9 M parameters at width 768, and with the identity a leaf
    begins as the text that it hangs on. The sum is taken before W_r, so that all relations share two matrix products.
    """

    def __init__(self, hidden: int, relations: int, rank: int):
        super().__init__()
        self.relations = relations
        self.rank = rank
        scale = math.sqrt(hidden)
        self.down = nn.Parameter(torch.randn(hidden, relations * rank) / scale)
        self.up = nn.Parameter(0.02 * torch.randn(relations * rank, hidden))
        self.attend_leaf = nn.Parameter(torch.randn(relations, hidden) / scale)
        self.attend_head = nn.Parameter(torch.randn(relations, hidden) / scale)

    def forward(self, leaves: Tensor, relation: Tensor, roots: Tensor, span: Tensor) -> Tensor:
        """leaves (B, G, d), relation (B, G), roots (B, L, d), span (B, G, L) bool -> (B, G, d)."""
        to_leaf = self._of_questions(self.attend_leaf, relation)
        to_head = self._of_questions(self.attend_head, relation)
        of_leaf = (leaves * to_leaf).sum(-1, keepdim=True)
        scores = F.leaky_relu(of_leaf + to_head @ roots.mT, 0.2)  # (B, G, L)
        attention = scores.masked_fill(~span, _UNSEEN).softmax(-1)
        mixed = attention.to(roots.dtype) @ roots  # (B, G, d)
        inner = (mixed @ self.down).unflatten(-1, (self.relations, self.rank))
        is_relation = F.one_hot(relation, self.relations)[..., None]
        chosen = (inner * is_relation.to(inner.dtype)).flatten(-2)
        return leaves + mixed + (chosen @ self.up)

    def _of_questions(self, vectors: Tensor, relation: Tensor) -> Tensor:
        """(relations, d) vectors, (B, G) relations -> (B, G, d) W_r^T of each relation's vector."""
        # a_r . W_r x = (W_r^T a_r) . x, which needs no W_r x for every relation
        up = self.up.view(self.relations, self.rank, -1)
        down = self.down.view(-1, self.relations, self.rank)
        inner = torch.einsum("rkd,rd->rk", up, vectors)
        vectors = vectors + torch.einsum("drk,rk->rd", down, inner)
        # and not [relation]: deterministic backwards, on a GPU too
        return F.embedding(relation, vectors)


class Block(nn.Module):
    """A pre-norm transformer layer with an additive attention bias."""

    def __init__(self, shape: settings.Model):
        super().__init__()
        d = shape.hidden
        self.heads = shape.heads
        self.dropout = shape.dropout
        self.norm1 = nn.LayerNorm(d)
        self.norm2 = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.fc1 = nn.Linear(d, shape.feed_forward)
        self.fc2 = nn.Linear(shape.feed_forward, d)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """x (B, P, d), bias (B, H, P, P) -> (B, P, d)."""
        B, P, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(B, P, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        drop = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=drop)
        mixed = self.out(mixed.transpose(1, 2).reshape(B, P, d))
        x = x + F.dropout(mixed, self.dropout, self.training)
        inner = F.gelu(self.fc1(self.norm2(x)))
        return x + F.dropout(self.fc2(inner), self.dropout, self.training)


class Ranker(nn.Module):
    """Scores entities as the tails of facts: the encoder's addition to the score of the counts.

    Trust is what it changes in the weights of the counts' features and of the entity types, and adds to the score of
    each root as a place of the entity's name. To a place it adds which entity of that name is meant: weights of types
    and of what they are to the head, and the product of the root and the entity's origin, its vector without its name.
    An origin counts only where other files have the entity: training would know by heart where the others stand.
    Likeness is the product of the leaf's query and the entity's vector, composed of the pieces of its name, owner and
    package, its type and, where several files have it, one of its own. All begin at 0, so that training begins at the
    counts. `gate` (conditions, 2) opens trust and likeness; it is chosen on validation, and training does not read it.
    """

    def __init__(self, chain: settings.Chain, shape: settings.Model):
        super().__init__()
        self.shape = shape
        d = shape.hidden
        conditions = len(CONDITIONS)
        self.token = nn.Embedding(chain.vocabulary, d)
        self.root_position = nn.Embedding(chain.roots, d)
        self.piece = nn.Embedding(settings.LONGEST_WORD, d)
        self.relation = nn.Embedding(shape.relations, d)
        self.condition = nn.Embedding(conditions, d)
        self.hgat = HGat(d, shape.relations, shape.relation_rank)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(d)
        # p: how far each head sees undimmed
        self.reach = nn.Parameter(torch.linspace(0.0, 4.0, shape.heads))
        self.query = nn.Linear(d, d)
        self.place_query = nn.Linear(d, d)
        self.place_key = nn.Linear(d, d)
        self.meaning = nn.Linear(d, d)
        self.meant = nn.Linear(d, shape.types + len(NEAR) + 1)
        self.compose = nn.ModuleDict({name: nn.Linear(d, d, bias=False) for name, _ in PARTS})
        self.kind = nn.Embedding(shape.types, d)
        # the first is that of entities without one
        self.vector = nn.Embedding(1 + shape.own_vectors, d)
        self.strength = nn.Parameter(torch.zeros(conditions, shape.relations))
        self.strength_of_places = nn.Parameter(torch.zeros(conditions, shape.relations))
        self.strength_of_meaning = nn.Parameter(torch.zeros(1))
        self.own_file = nn.Parameter(torch.ones(conditions, shape.relations))
        weights = len(FEATURES) + shape.types
        self.trust = nn.Linear(d, weights)
        self.trust_beside_file = nn.Linear(d, weights)
        self.register_buffer("gate", torch.ones(conditions, 2))
        # Weights of the probabilities of predictions, fitted on validation
        self.register_buffer("of_references", torch.zeros(len(settings.OF_REFERENCES)))
        self._initialise()

    def _initialise(self) -> None:
        """Starts attention near the identity (mimetic initialisation, arXiv 2305.09828) and positions as sinusoids.

        So a leaf begins as a mixture of the text that it hangs on, and an entity's vector as the pieces of its name.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for table in (self.token, self.piece, self.relation):
            nn.init.normal_(table.weight, std=self.shape.hidden**-0.5)
        for linear in (self.trust, self.trust_beside_file, self.meant):
            nn.init.zeros_(linear.weight)
        positions = self.root_position.weight
        # Rows of norm 0.7 (Vaswani et al., 2017, section 3.5)
        positions.data.copy_(0.7 * _sinusoids(*positions.shape))
        with torch.no_grad():
            identity = torch.eye(self.shape.hidden)
            for block in self.blocks:
                query, key, value = block.qkv.weight.chunk(3)
                query += 0.5 * identity
                key += 0.5 * identity
                value += 0.7 * identity
                block.out.weight += 0.7 * identity
            for linear in (self.query, self.meaning, self.compose["name"]):
                linear.weight += identity
            self.compose["owner"].weight += 0.3 * identity

    def read(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns roots (B, L, d) and leaves (B, G, d). A leaf reads only the roots and itself."""
        relation = batch["relation"]
        distance = batch["distance"]
        text = self._embedded(self._thinned(batch["roots"]), batch["within"])
        leaves = self.token.weight[MASK] + self.relation(relation)
        leaves = leaves + self.condition(batch["condition"])
        leaves = self.hgat(leaves, relation, text, distance == 1)
        embedded = torch.cat([text, leaves.to(text.dtype)], 1)
        hidden = self._encoded(embedded, batch["roots"], distance)
        return hidden.tensor_split([text.shape[1]], 1)

    def _thinned(self, roots: Tensor) -> Tensor:
        """Masks a share of the pieces in training, so that texts are not known by heart."""
        share = self.shape.token_dropout
        if not self.training or not share:
            return roots
        chosen = torch.rand(roots.shape, device=roots.device) < share
        is_piece = roots >= len(settings.SPECIALS)
        return roots.masked_fill(chosen & is_piece, MASK)

    def _embedded(self, roots: Tensor, within: Tensor) -> Tensor:
        positions = self.root_position.weight[: roots.shape[1]]
        return self.token(roots) + positions + self.piece(within)

    def _encoded(self, x: Tensor, roots: Tensor, distance: Tensor) -> Tensor:
        x = F.dropout(x, self.shape.dropout, self.training)
        # In the layers' format: otherwise each would keep a copy for the backward pass.
        dtype = (x[0, :1] @ self.token.weight[0]).dtype
        bias = self._bias(roots, distance).to(dtype)
        for block in self.blocks:
            x = block(x, bias)
        return self.norm(x)

    def _bias(self, roots: Tensor, distance: Tensor) -> Tensor:
        """log(lambda) * GELU(sqrt(distance) - p) for each head, 0 for padding and other leaves: (B, H, P, P)."""
        B, L = roots.shape
        G = distance.shape[1]
        place = torch.arange(L, device=roots.device)
        chain = (place[:, None] - place).abs()
        steps = torch.cat([chain.expand(B, L, L), distance], 1)  # (B, P, L): to the roots
        undimmed = steps.sqrt()[:, None] - self.reach[:, None, None]
        decay = math.log(self.shape.decay) * F.gelu(undimmed)
        is_padding = (roots == PAD)[:, None, None]
        decay = decay.masked_fill(is_padding, _UNSEEN)  # (B, H, P, L)
        to_leaves = torch.full((L + G, G), _UNSEEN, device=roots.device)
        to_leaves[L:].fill_diagonal_(0)
        to_leaves = to_leaves.to(decay.dtype).expand(*decay.shape[:2], -1, -1)
        return torch.cat([decay, to_leaves], -1)

    def entities(self, pieces: Tensor, kind: Tensor, vector: Tensor) -> Tensor:
        """pieces (C, WIDTH), kind, vector (C) -> (C, 2, d), the vector of each and its origin."""
        origin = self.kind(kind) + self.vector(vector)
        parts = {}
        sizes = [most for _, most in PARTS]
        for (name, _), part in zip(PARTS, pieces.split(sizes, 1), strict=True):
            is_piece = (part != PAD)[..., None].to(origin.dtype)
            total = (self.token(part) * is_piece).sum(1)
            number = is_piece.sum(1).clamp(min=1)
            parts[name] = self.compose[name](total / number.sqrt())
        origin = origin + parts["owner"] + parts["package"]
        return torch.stack([origin + parts["name"], origin], 1)

    def added(self, roots: Tensor, leaves: Tensor, batch: Batch) -> dict[str, Tensor]:
        """roots (B, L, d), leaves (B, G, d) -> the encoder's additions to the scores of the counts.

        `weights` (B, G, FEATURES + types) are those of features and of entity types, `places` (B, G, L) is added to the
        score of a root as a place. Where a name stands, the product of `meanings` (B, 1, L, d) and an entity's origin
        is added, and `meant` (B, 1, L, types + NEAR + 1) are weights of the entity's type and of its relation to the
        head. The product of `queries` (B, G, d) and an entity's vector is added to its score.
        """
        scale = math.sqrt(self.shape.hidden)
        weights = self.trust(leaves)
        places = self.place_query(leaves) @ self.place_key(roots).mT / scale
        places = places * self._of(self.strength_of_places, batch)[..., None]
        meant = self.meant(roots)[:, None]
        meanings = self.meaning(roots) * (self.strength_of_meaning / scale)
        queries = self.query(leaves) * self._of(self.strength, batch)[..., None]
        of_text = {"meanings": meanings[:, None], "meant": meant}
        return {"weights": weights, "places": places, "queries": queries, **of_text}

    def forward(self, batch: Batch, masked: Tensor | None = None) -> Any:
        """Returns the scores (B, G, C) of a training batch with trust only, and with likeness.

        See `Collator` for the tensors of a batch. Sharded weights are whole only in here, so other outputs are here as
        well: for `masked` (N), numbers of the B * L roots, their logits (N, vocabulary); for a batch of questions
        `added`; for a batch without roots the vectors and origins of its entities, (C, 2, d).
        """
        if "roots" not in batch:
            return self.entities(batch["pieces"], batch["kind"], batch["vector"])
        if masked is not None:
            return self._logits(batch, masked)
        roots, leaves = self.read(batch)
        added = self.added(roots, leaves, batch)
        if "prior" not in batch:
            return added
        return self._scores(batch, leaves, added)

    def _logits(self, batch: Batch, masked: Tensor) -> Tensor:
        roots = batch["masked_roots"]
        no_facts = roots.new_zeros(len(roots), 0, roots.shape[1])
        embedded = self._embedded(roots, batch["within"])
        hidden = self._encoded(embedded, roots, no_facts)
        return F.linear(hidden.flatten(0, 1)[masked], self.token.weight)

    def _scores(
        self, batch: Batch, leaves: Tensor, added: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Returns the scores (B, G, C) of a training batch with trust only, and with likeness.

        Likeness learns what trust does not explain, nor the tails of the fact's own file with weights of the counts
        beside them. So trust is learned without these, as in an evaluation.
        """
        features = batch["features"]
        kind = batch["kind"][0]
        name = batch["name"][0]
        owner = batch["name_owner"][0]
        trusting = batch["prior"] + _weighted(features, kind, added["weights"])
        entities = self.entities(batch["pieces"][0], kind, batch["vector"][0])
        vectors, origins = entities.unbind(1)
        near = batch["near"]  # its last one: whether other files have the entity
        is_kind = F.one_hot(kind, self.shape.types).to(near.dtype)
        is_kind = is_kind.expand(len(near), -1, -1)
        facts = torch.cat([is_kind, near], 2)
        meant = added["meant"][:, 0] @ facts.mT
        alike = added["meanings"][:, 0] @ origins.T
        meant = meant + alike * near[:, None, :, -1]
        with torch.autocast(leaves.device.type, enabled=False):
            places = batch["places"] + added["places"]
            trusting = trusting + pointed(places, meant, batch, name, owner)
        strength = self._of(self.own_file, batch)[..., None]
        of_file = strength * torch.log1p(batch["own"])
        of_file = of_file + _weighted(features, kind, self.trust_beside_file(leaves))
        likeness = added["queries"] @ vectors.T
        return trusting, trusting.detach() + of_file + likeness

    @staticmethod
    def _of(table: Tensor, batch: Batch) -> Tensor:
        """(conditions, relations) -> (B, G), the entry of each question."""
        index = batch["condition"] * table.shape[1] + batch["relation"]
        return F.embedding(index, table.reshape(-1, 1)).squeeze(-1)


def _sinusoids(rows: int, width: int) -> Tensor:
    """Returns (rows, width), rows of norm 1."""
    rates = 200.0 ** (-torch.arange(width // 2) * 2 / width)
    angles = torch.arange(rows)[:, None] * rates
    waves = torch.cat([angles.sin(), angles.cos()], 1)
    return F.pad(waves, (0, width % 2)) * (2 / width) ** 0.5


def _weighted(features: Tensor, kind: Tensor, weights: Tensor) -> Tensor:
    """features (B, G, C, FEATURES), kind (C), weights (B, G, FEATURES + types) -> (B, G, C)."""
    of_features = weights[..., : len(FEATURES), None]
    of_kinds = weights[..., len(FEATURES) :]
    # a product, whose gradient is deterministic
    is_kind = F.one_hot(kind, of_kinds.shape[-1]).to(of_kinds.dtype)
    return (features @ of_features).squeeze(-1) + of_kinds @ is_kind.T


def pointed(places: Tensor, meant: Tensor, batch: Batch, name: Tensor, owner: Tensor) -> Tensor:
    """places (B, G, L), name and owner (C) of candidates -> (B, G, C) log(1 + sum of exp over the name's places).

    `meant` (B, L, C) is added to a place for a candidate. A place after `owner.` of the candidate's owner, or after
    `self.` of its class, counts more. The gradient of `total` is up to exp(15) where no place names a candidate, so
    the caller switches off autocast: fp16 ends at 65,504, and that times 0 is NaN.
    """
    is_named = batch["word"][:, :, None] == name  # (B, L, C)
    is_owned = is_named & (batch["owner"][:, :, None] == owner)
    factor = meant.float().clamp(-MOST_MEANT, MOST_MEANT).exp()
    named = factor * is_named
    owned = factor * is_owned
    places = places.float().clamp(max=15.0)
    most = places.detach().amax(-1, keepdim=True).clamp(min=0)
    weight = (places - most).exp()
    after_self = weight * (batch["is_self"] == 1)[:, None]
    boost = batch["boost"][..., None]
    total = weight @ named + boost * (weight @ owned)
    total = total + batch["sibling"] * (after_self @ named)
    total = total.float().clamp(min=0)
    return torch.log1p(most.exp() * total)

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

PARTS = (
    ("name", 6),
    ("owner", 4),
    ("package", 3),
)  # of an entity's vector, and the pieces of each at most
WIDTH = sum(most for _, most in PARTS)
MOST_MEANT = 8.0  # that a place may say for or against an entity of its name
IMPOSSIBLE = -1e4  # the score of a candidate whose type the relation does not have
_UNSEEN = -1e4  # what attention adds where it does not go


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
        self.down = nn.Parameter(torch.randn(hidden, relations * rank) / math.sqrt(hidden))
        self.up = nn.Parameter(0.02 * torch.randn(relations * rank, hidden))
        self.attend_leaf = nn.Parameter(torch.randn(relations, hidden) / math.sqrt(hidden))
        self.attend_head = nn.Parameter(torch.randn(relations, hidden) / math.sqrt(hidden))

    def forward(self, leaves: Tensor, relation: Tensor, roots: Tensor, span: Tensor) -> Tensor:
        """leaves (B, G, d), relation (B, G), roots (B, L, d), span (B, G, L) bool -> (B, G, d)."""

        def of_questions(vectors: Tensor) -> Tensor:  # (relations, d) -> (B, G, d)
            # a_r . W_r x = (W_r^T a_r) . x, which needs no W_r x for every relation
            up = self.up.view(self.relations, self.rank, -1)
            down = self.down.view(-1, self.relations, self.rank)
            vectors = vectors + torch.einsum(
                "drk,rk->rd", down, torch.einsum("rkd,rd->rk", up, vectors)
            )
            return F.embedding(
                relation, vectors
            )  # and not [relation]: deterministic backwards, on a GPU too

        to_leaf = of_questions(self.attend_leaf)
        to_head = of_questions(self.attend_head)
        scores = (leaves * to_leaf).sum(-1, keepdim=True) + to_head @ roots.mT  # (B, G, L)
        scores = F.leaky_relu(scores, 0.2).masked_fill(~span, _UNSEEN)
        mixed = scores.softmax(-1).to(roots.dtype) @ roots  # (B, G, d)
        inner = (mixed @ self.down).unflatten(-1, (self.relations, self.rank))
        chosen = F.one_hot(relation, self.relations)[..., None].to(inner.dtype)
        return leaves + mixed + ((inner * chosen).flatten(-2) @ self.up)


class Block(nn.Module):
    """A pre-norm transformer layer with an additive attention bias."""

    def __init__(self, shape: settings.Model):
        super().__init__()
        self.heads = shape.heads
        self.dropout = shape.dropout
        self.norm1, self.norm2 = nn.LayerNorm(shape.hidden), nn.LayerNorm(shape.hidden)
        self.qkv, self.out = (
            nn.Linear(shape.hidden, 3 * shape.hidden),
            nn.Linear(shape.hidden, shape.hidden),
        )
        self.fc1, self.fc2 = (
            nn.Linear(shape.hidden, shape.feed_forward),
            nn.Linear(shape.feed_forward, shape.hidden),
        )

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """x (B, P, d), bias (B, H, P, P) -> (B, P, d)."""
        B, P, d = x.shape
        q, k, v = (
            self.qkv(self.norm1(x))
            .view(B, P, 3, self.heads, d // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        drop = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=drop)
        x = x + F.dropout(
            self.out(mixed.transpose(1, 2).reshape(B, P, d)), self.dropout, self.training
        )
        return x + F.dropout(self.fc2(F.gelu(self.fc1(self.norm2(x)))), self.dropout, self.training)


class Ranker(nn.Module):
    """Scores entities as the tails of facts: what the encoder adds to the score of the counts.

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
        self.token, self.root_position = (
            nn.Embedding(chain.vocabulary, d),
            nn.Embedding(chain.roots, d),
        )
        self.piece = nn.Embedding(settings.LONGEST_WORD, d)
        self.relation, self.condition = (
            nn.Embedding(shape.relations, d),
            nn.Embedding(conditions, d),
        )
        self.hgat = HGat(d, shape.relations, shape.relation_rank)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(d)
        self.reach = nn.Parameter(
            torch.linspace(0.0, 4.0, shape.heads)
        )  # p: how far each head sees undimmed
        self.query, self.place_query, self.place_key = (
            nn.Linear(d, d),
            nn.Linear(d, d),
            nn.Linear(d, d),
        )
        self.meaning, self.meant = nn.Linear(d, d), nn.Linear(d, shape.types + len(NEAR) + 1)
        self.compose = nn.ModuleDict({name: nn.Linear(d, d, bias=False) for name, _ in PARTS})
        self.kind = nn.Embedding(shape.types, d)
        self.vector = nn.Embedding(
            1 + shape.own_vectors, d
        )  # the first is that of entities without one
        self.strength = nn.Parameter(torch.zeros(conditions, shape.relations))
        self.strength_of_places = nn.Parameter(torch.zeros(conditions, shape.relations))
        self.strength_of_meaning = nn.Parameter(torch.zeros(1))
        self.own_file = nn.Parameter(torch.ones(conditions, shape.relations))
        self.trust, self.trust_beside_file = (
            nn.Linear(d, len(FEATURES) + shape.types) for _ in range(2)
        )
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
        # Rows of norm 0.7 (Vaswani et al., 2017, section 3.5)
        roots, hidden = self.root_position.weight.shape
        angles = torch.arange(roots)[:, None] * (200.0 ** (-torch.arange(hidden // 2) * 2 / hidden))
        sinusoids = (
            F.pad(torch.cat([angles.sin(), angles.cos()], 1), (0, hidden % 2)) * (2 / hidden) ** 0.5
        )
        self.root_position.weight.data.copy_(0.7 * sinusoids)
        with torch.no_grad():
            identity = torch.eye(self.shape.hidden)
            for block in self.blocks:
                query, key, value = block.qkv.weight.chunk(3)
                for weight, scale in (
                    (query, 0.5),
                    (key, 0.5),
                    (value, 0.7),
                    (block.out.weight, 0.7),
                ):
                    weight += scale * identity
            for linear in (self.query, self.meaning, self.compose["name"]):
                linear.weight += identity
            self.compose["owner"].weight += 0.3 * identity

    def read(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns roots (B, L, d) and leaves (B, G, d). A leaf reads the roots and itself alone."""
        text = self._embedded(self._thinned(batch["roots"]), batch["within"])
        leaves = (
            self.token.weight[MASK]
            + self.relation(batch["relation"])
            + self.condition(batch["condition"])
        )
        leaves = self.hgat(leaves, batch["relation"], text, batch["distance"] == 1)
        hidden = self._encoded(
            torch.cat([text, leaves.to(text.dtype)], 1), batch["roots"], batch["distance"]
        )
        return hidden.tensor_split([text.shape[1]], 1)

    def _thinned(self, roots: Tensor) -> Tensor:
        """Masks a share of the pieces in training, so that texts are not known by heart."""
        if not self.training or not self.shape.token_dropout:
            return roots
        chosen = torch.rand(roots.shape, device=roots.device) < self.shape.token_dropout
        return roots.masked_fill(chosen & (roots >= len(settings.SPECIALS)), MASK)

    def _embedded(self, roots: Tensor, within: Tensor) -> Tensor:
        return self.token(roots) + self.root_position.weight[: roots.shape[1]] + self.piece(within)

    def _encoded(self, x: Tensor, roots: Tensor, distance: Tensor) -> Tensor:
        x = F.dropout(x, self.shape.dropout, self.training)
        # In the format that the layers compute in: each would otherwise keep a copy of its own for the backward pass.
        bias = self._bias(roots, distance).to((x[0, :1] @ self.token.weight[0]).dtype)
        for block in self.blocks:
            x = block(x, bias)
        return self.norm(x)

    def _bias(self, roots: Tensor, distance: Tensor) -> Tensor:
        """log(lambda) * GELU(sqrt(distance) - p) for each head; none for padding and other leaves: (B, H, P, P)."""
        L = roots.shape[1]
        G = distance.shape[1]
        place = torch.arange(L, device=roots.device)
        chain = (place[:, None] - place[None, :]).abs().expand(len(roots), L, L)
        steps = torch.cat([chain, distance], 1)  # (B, P, L): to the roots
        decay = math.log(self.shape.decay) * F.gelu(
            steps.sqrt()[:, None] - self.reach[:, None, None]
        )
        decay = decay.masked_fill((roots == PAD)[:, None, None], _UNSEEN)  # (B, H, P, L)
        to_leaves = torch.full((L + G, G), _UNSEEN, device=roots.device)
        to_leaves[L:].fill_diagonal_(0)
        return torch.cat([decay, to_leaves.to(decay.dtype).expand(*decay.shape[:2], L + G, G)], -1)

    def entities(self, pieces: Tensor, kind: Tensor, vector: Tensor) -> Tensor:
        """pieces (C, WIDTH), kind, vector (C) -> (C, 2, d), the vector of each and its origin."""
        origin = self.kind(kind) + self.vector(vector)
        begin = 0
        parts = {}
        for name, most in PARTS:
            part = pieces[:, begin : begin + most]
            is_piece = (part != PAD)[..., None].to(origin.dtype)
            parts[name] = self.compose[name](
                (self.token(part) * is_piece).sum(1) / is_piece.sum(1).clamp(min=1).sqrt()
            )
            begin += most
        origin = origin + parts["owner"] + parts["package"]
        return torch.stack([origin + parts["name"], origin], 1)

    def added(self, roots: Tensor, leaves: Tensor, batch: Batch) -> dict[str, Tensor]:
        """roots (B, L, d), leaves (B, G, d) -> what the encoder adds to the scores of the counts.

        `weights` (B, G, FEATURES + types) are those of features and of entity types, `places` (B, G, L) is added to the
        score of a root as a place. Where a name stands, the product of `meanings` (B, 1, L, d) and an entity's origin
        is added, and `meant` (B, 1, L, types + NEAR + 1) are weights of the entity's type and of what it is to the
        head. The product of `queries` (B, G, d) and an entity's vector is added to its score.
        """
        weights = self.trust(leaves)
        places = self.place_query(leaves) @ self.place_key(roots).mT / math.sqrt(self.shape.hidden)
        places = places * self._of(self.strength_of_places, batch)[..., None]
        meant = self.meant(roots)
        meanings = self.meaning(roots) * (self.strength_of_meaning / math.sqrt(self.shape.hidden))
        queries = self.query(leaves) * self._of(self.strength, batch)[..., None]
        of_text = {"meanings": meanings[:, None], "meant": meant[:, None]}
        return {"weights": weights, "places": places, "queries": queries, **of_text}

    def forward(self, batch: Batch, masked: Tensor | None = None) -> Any:
        """Returns the scores (B, G, C) of a training batch with trust alone, and with likeness too.

        Likeness learns what trust, and the tails of the fact's own file with weights of the counts beside them, do not
        explain. So trust is learned without these, as it is asked. See `Collator` for the tensors of a batch. Sharded
        weights are whole only in here: so where `masked` (N), numbers of the B * L roots, is given, it returns their
        logits (N, vocabulary); of a batch of questions what `added` does; and of one without roots the vectors and
        origins of its entities, (C, 2, d).
        """
        if "roots" not in batch:
            return self.entities(batch["pieces"], batch["kind"], batch["vector"])
        if masked is not None:
            roots = batch["masked_roots"]
            nothing = roots.new_zeros(len(roots), 0, roots.shape[1])
            hidden = self._encoded(self._embedded(roots, batch["within"]), roots, nothing)
            return F.linear(hidden.flatten(0, 1)[masked], self.token.weight)
        roots, leaves = self.read(batch)
        added = self.added(roots, leaves, batch)
        if "prior" not in batch:
            return added
        keys = "pieces", "kind", "vector", "name", "name_owner"
        pieces, kind, vector, name, owner = (batch[key][0] for key in keys)
        trusting = batch["prior"] + _weighted(batch["features"], kind, added["weights"])
        vectors, origins = self.entities(pieces, kind, vector).unbind(1)
        near = batch["near"]  # of which the last is whether other files have the entity
        is_kind = F.one_hot(kind, self.shape.types).to(near.dtype).expand(len(near), -1, -1)
        meant = added["meant"][:, 0] @ torch.cat([is_kind, near], 2).mT
        meant = meant + (added["meanings"][:, 0] @ origins.T) * near[:, None, :, -1]
        with torch.autocast(roots.device.type, enabled=False):
            trusting = trusting + pointed(
                batch["places"] + added["places"], meant, batch, name, owner
            )
        of_file = self._of(self.own_file, batch)[..., None] * torch.log1p(batch["own"])
        of_file = of_file + _weighted(batch["features"], kind, self.trust_beside_file(leaves))
        return trusting, trusting.detach() + of_file + added["queries"] @ vectors.T

    @staticmethod
    def _of(table: Tensor, batch: Batch) -> Tensor:
        """(conditions, relations) -> (B, G), the entry of each question."""
        return F.embedding(
            batch["condition"] * table.shape[1] + batch["relation"], table.reshape(-1, 1)
        ).squeeze(-1)


def _weighted(features: Tensor, kind: Tensor, weights: Tensor) -> Tensor:
    """features (B, G, C, FEATURES), kind (C), weights (B, G, FEATURES + types) -> (B, G, C)."""
    of_kinds = weights[..., len(FEATURES) :]
    is_kind = F.one_hot(kind, of_kinds.shape[-1]).to(
        of_kinds.dtype
    )  # a product, whose gradient is deterministic
    return (features @ weights[..., : len(FEATURES), None]).squeeze(-1) + of_kinds @ is_kind.T


def pointed(places: Tensor, meant: Tensor, batch: Batch, name: Tensor, owner: Tensor) -> Tensor:
    """places (B, G, L), name and owner (C) of candidates -> (B, G, C) log(1 + sum of exp over the name's places).

    `meant` (B, L, C) is added to a place for a candidate. A place after `owner.` of the candidate's owner, or after
    `self.` of its class, counts more. The gradient of `total` is up to exp(15) where no place names a candidate, so
    the caller switches off autocast: fp16 ends at 65,504, and that times 0 is NaN.
    """
    named = batch["word"][:, :, None] == name  # (B, L, C)
    owned = named & (batch["owner"][:, :, None] == owner)
    factor = meant.float().clamp(-MOST_MEANT, MOST_MEANT).exp()
    named = factor * named
    owned = factor * owned
    places = places.float().clamp(max=15.0)
    most = places.detach().amax(-1, keepdim=True).clamp(min=0)
    weight = (places - most).exp()
    after_self = weight * (batch["is_self"] == 1)[:, None]
    total = weight @ named + batch["boost"][..., None] * (weight @ owned)
    total = total + batch["sibling"] * (after_self @ named)
    return torch.log1p(most.exp() * total.float().clamp(min=0))

"""Members: several networks in one."""

import torch
from torch import nn
from torch.nn import functional as F

from trainbook.supervised import members

MEMBERS = 3


def test_each_member_is_a_linear_layer_whose_weights_are_the_shared_ones_scaled_by_its_own():
    torch.manual_seed(0)
    layer = members.Shared(MEMBERS, 4, 5, differ=True)
    for own in (layer.after, layer.bias):
        nn.init.normal_(own)
    x = torch.randn(7, MEMBERS, 4)
    y = layer(x)
    for number in range(MEMBERS):
        weight = layer.after[number][:, None] * layer.linear.weight * layer.before[number]
        expected = F.linear(x[:, number], weight, layer.bias[number])
        torch.testing.assert_close(y[:, number], expected)
    one = x[:, :1]
    assert layer(one).shape == (7, MEMBERS, 5), "all members see the input"
    assert not torch.equal(layer(one)[:, 0], layer(one)[:, 1])


def test_heads_are_a_layer_for_each_member():
    heads = members.Heads(MEMBERS, 4, 2)
    x = torch.randn(7, MEMBERS, 4)
    for number in range(MEMBERS):
        torch.testing.assert_close(heads(x)[:, number], x[:, number] @ heads.weight[number])


def test_members_answer_by_the_mean_of_their_probabilities_or_numbers(task):
    answers = torch.randn(6, MEMBERS, 4)
    log = members.joined(task("Words"), answers)
    torch.testing.assert_close(log.exp(), answers.softmax(-1).mean(1))
    torch.testing.assert_close(members.joined(task("Heights"), answers), answers.mean(1))


def test_the_loss_of_members_is_the_mean_of_their_own_losses_not_that_of_their_mean(task):
    words = task("Words")
    answers = torch.randn(6, MEMBERS, 4)
    labels = torch.tensor([0, 1, 2, 3, 1, -100])
    loss = members.loss_of_each(words.summed_loss, answers, labels)
    each = [F.cross_entropy(answers[:, m], labels, reduction="sum") for m in range(MEMBERS)]
    torch.testing.assert_close(loss, sum(each) / MEMBERS)
    together = members.joined(words, answers)
    alone = members.loss_of_each(words.summed_loss, together, labels)
    torch.testing.assert_close(alone, F.cross_entropy(together, labels, reduction="sum"))
    assert alone < loss

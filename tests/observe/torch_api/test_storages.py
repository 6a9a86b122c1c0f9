"""Storages: what has a key."""

import torch

from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.witness.witness import Witness


def test_a_storage_without_its_memory_has_another_key():
    """A reversible block frees its input, and another tensor gets the address."""
    tensor = torch.ones(4)
    key, storage = storages.storage_key(tensor), storages.storage_ref(tensor)
    witness = Witness(key, tensor)
    assert storages.is_at(storage, key)
    assert witness.is_below(tensor)
    tensor.untyped_storage().resize_(0)
    assert not storages.is_at(storage, key)
    assert not witness.is_below(tensor)
    assert storages.is_at(storage, storages.storage_key(tensor))
    tensor.untyped_storage().resize_(16)
    assert storages.is_at(storage, storages.storage_key(tensor))
    del tensor
    assert not storages.is_at(storage, key)


def test_a_storage_without_an_address_keeps_its_key():
    tensor = torch.ones(4, device="meta")
    assert storages.is_at(storages.storage_ref(tensor), storages.storage_key(tensor))

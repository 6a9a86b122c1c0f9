"""Cures that change what autograd records: under `no_grad`, declared, detached, let see."""
